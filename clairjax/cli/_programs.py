"""Compiled programs are kept from one command to the next, in JAX's own cache: the same again compiles nothing."""

import os
import re
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any


_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_EVERYTHING = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
_FAULT = "Error (reading|writing) persistent compilation cache"


def keep_programs() -> None:
    """Name the folder to JAX, which must not be imported yet; what the user has set stands.

    Nothing about the folder fails a command, or is said: where it cannot be used, programs are compiled.
    """
    for name, value in _EVERYTHING.items():
        os.environ.setdefault(name, value)
    with suppress(OSError, RuntimeError):  # as where there is no home
        ours = folder()
        if _FOLDER not in os.environ:
            ours.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.environ[_FOLDER] = os.fspath(ours)
    _hear_of_faults()


def folder() -> Path:
    """In the place of the platform for what can be made again."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        place = Path(given)
    elif sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        place = Path(local)
    else:
        place = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return place / "clairjax" / "programs"


def _hear_of_faults() -> None:
    """JAX warns of a damaged entry and never replaces it: our folder is emptied where one is, and fills again."""
    show = warnings.showwarning

    def hear(message: Any, *others: Any, **named: Any) -> None:
        if not re.match(_FAULT, str(message)):
            show(message, *others, **named)
        elif "reading" in str(message):
            with suppress(OSError, RuntimeError):
                if os.environ.get(_FOLDER) == os.fspath(ours := folder()):
                    for entry in ours.glob("*-cache"):
                        entry.unlink(missing_ok=True)

    warnings.filterwarnings("always", message=_FAULT)  # heard even where warnings are errors
    warnings.showwarning = hear
