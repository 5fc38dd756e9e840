"""The command line: how every command starts and ends. The commands themselves are imported once they may end."""

import io
import os
import sys
from importlib.util import find_spec
from typing import TextIO

from .._cores import cores, quota
from ._ending import at_once, handle, leave, tell
from ._programs import keep_programs


_EXTRA = ("matplotlib", "rich", "scipy", "typer", "xarray")
if _missing := [name for name in _EXTRA if find_spec(name) is None]:
    sys.exit(f"The command line needs {', '.join(_missing)}: pip install 'clairjax[experiments]'")


def main() -> None:
    handle(at_once)
    sys.stdout, sys.stderr = _open(sys.stdout), _open(sys.stderr)
    _limit_threads()
    keep_programs()
    status = 0
    try:
        from ._app import app

        app()
    except SystemExit as end:
        status = int(end.code or 0)
        if isinstance(end.__context__, OSError) and not end.__suppress_context__:
            tell(end.__context__)  # rich and typer exit without a word where a pipe is closed
    except OSError as error:
        status = tell(error)
    leave(status)


def _limit_threads() -> None:
    """Before JAX starts its own. What the user has set stands."""
    # LAPACK's threads spin beside XLA's and can slow small problems manyfold; read at the first call to it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if quota() is not None:  # XLA would start a thread for every core of the host
        os.environ.setdefault("NPROC", str(cores()))


def _open(stream: TextIO | None) -> TextIO:
    """A stream that replaces what its encoding lacks, and is there: a closed one's number would go to another file."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream
