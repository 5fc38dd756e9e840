"""What commands share: how they refuse, a folder they are given, where they print."""

from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from ._ending import tell


REFUSED = 2  # the exit status where what was asked for is at fault, as typer's own


def folder(text: str) -> Path:
    if not text:  # `Path("")` is the current folder
        raise typer.BadParameter("a folder is needed, got ''.")
    try:
        if Path(text).is_file():
            raise typer.BadParameter(f"{text!r} is a file.")
    except OSError as error:  # as of a name that is too long
        raise typer.BadParameter(f"{text[:40]!r} cannot be a folder: {error.strerror}.") from None
    return Path(text)


def fail(error: Exception, code: int = 1) -> NoReturn:
    raise typer.Exit(tell(error, code))


def console() -> Console:
    """Outside a terminal there is no width to respect, and wrapped tables are hard to read."""
    wide = Console()
    return wide if wide.is_terminal else Console(width=160)
