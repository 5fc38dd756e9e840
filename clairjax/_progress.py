"""How far long work has come, on standard error. It speaks between chunks only; nothing compiled calls back to it."""

import sys
import time
from importlib.util import find_spec
from types import TracebackType
from typing import Any


class Progress:
    """A bar of rich's on a terminal; elsewhere a line at the start and one for each tenth of the work.

    `show=None`: the bar, and no lines. `show=False`: neither.
    """

    def __init__(self, total: int, show: bool | None):
        self._total, self._done, self._said, self._phase = total, 0, -1, ""
        self._started = time.perf_counter()
        bar = show is not False and sys.stderr.isatty() and find_spec("rich") is not None
        self._bar: Any = _rich_bar() if bar else None
        self._lines = bool(show) and not bar
        if self._bar is not None:
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, phase: str) -> None:
        self._phase = phase
        if self._bar is not None:
            self._bar.update(self._task, description=phase, refresh=True)
        self._say()

    def advance(self, count: int) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        if count:
            self._say()

    def _say(self) -> None:
        tenth = 10 * self._done // max(self._total, 1)
        if self._lines and tenth > self._said:
            seconds = time.perf_counter() - self._started
            print(f"{self._phase}: {self._done} of {self._total}, {seconds:.0f} s", file=sys.stderr, flush=True)
            self._said = tenth


def _rich_bar() -> Any:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
