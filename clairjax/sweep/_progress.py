"""The bar of a sweep. It moves between chunks only; nothing compiled calls back to it."""

import sys
from types import TracebackType
from typing import Any


class Progress:
    """A rich bar on standard error. `show=None`: where that is a terminal and rich is installed."""

    def __init__(self, total: int, show: bool | None):
        self._bar: Any = None
        if show is None and not sys.stderr.isatty():
            return
        try:
            from rich import progress
            from rich.console import Console
        except ImportError as error:
            if show:
                message = "progress=True needs rich: pip install 'clairjax[experiments]'"
                raise ImportError(message) from error
            return
        if show is None or show:
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("replicates", total=total)

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, phase: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=phase, refresh=True)

    def advance(self, replicates: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, replicates)
