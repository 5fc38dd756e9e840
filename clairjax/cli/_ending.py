"""How a command ends: well, on an error, on a full device, or because it was told to."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn


_WORDS: dict[int, str] = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated"}
_SHOW_CURSOR = "\x1b[?25h\n"  # a progress bar hides it
PATIENCE = 1.0  # seconds to leave in order, until a second signal is heard


def handle(handler: Callable[[int, Any], Any]) -> dict[int, Any]:
    """Have the signals that end a command handled, but for those ignored, as in a shell's background; the formers."""
    if threading.current_thread() is not threading.main_thread():  # no other may
        return {}
    ours = [number for number in _WORDS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    return {number: signal.signal(number, handler) for number in ours}


def at_once(number: int, _: Any = None) -> NoReturn:
    """Where nothing is to be left in order, as while modules are imported, and where a command is told again."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    with suppress(OSError):
        os.write(2, f"{_SHOW_CURSOR if terminal else ''}{_WORDS[number]}.\n".encode())
    os._exit(128 + number)


@contextmanager
def in_order(advice: str = "") -> Iterator[None]:
    """A command: told to end, it raises `KeyboardInterrupt` and leaves files and manifests in order.

    It then exits with one line and status 130, or 143 if it was terminated, whatever else the exception broke on its
    way. An `OSError`, as of a full device or a closed pipe, is one line and status 1.
    """
    told: list[int] = []
    begun = 0.0

    def stop(number: int, _: Any) -> None:
        nonlocal begun
        if told and time.monotonic() - begun > PATIENCE:
            at_once(number)
        if not told:
            told.append(number)
            begun = time.monotonic()
            raise KeyboardInterrupt

    def unraisable(problem: Any) -> None:
        if told and problem.exc_type is KeyboardInterrupt:
            _remind(told.pop())
        else:
            former_hook(problem)

    former_hook, sys.unraisablehook = sys.unraisablehook, unraisable
    former = handle(stop)
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not told:
            told.append(signal.SIGINT)
        if not told and isinstance(error, OSError):
            raise SystemExit(tell(error)) from None
        if not told:
            raise
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        sys.unraisablehook = former_hook
    if told:
        say(f"{_WORDS[told[0]]}{advice and '; '}{advice}.")
        raise SystemExit(128 + told[0]) from None


def _remind(number: int) -> None:
    """Tell this process again: where the exception was raised it was dropped.

    JAX's callback for the garbage collector drops a quarter of those that are raised while a function is traced.
    """
    if sys.platform == "win32":
        at_once(number)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.01, signal.pthread_kill, (main, number)).start()


def say(line: str) -> None:
    with suppress(OSError):  # standard error may be what is full
        print(line, file=sys.stderr, flush=True)


def tell(error: Exception, status: int = 1) -> int:
    """Say what is wrong; the exit status."""
    say(f"Error: {error}")
    return status


def leave(status: int) -> None:
    """Exit; with anything but 0 without the interpreter's end, at which XLA crashes if it still compiles."""
    try:
        sys.stdout.flush()
    except OSError as error:
        status = status or tell(error)
    with suppress(OSError):
        sys.stderr.flush()
    if status:
        os._exit(status)
