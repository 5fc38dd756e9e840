"""The command `compare`: parses, calls, prints."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from .. import _validate, adapters
from .._files import create_file
from ._common import REFUSED, console, fail, folder
from ._ending import in_order, say
from ._refine import FOUND
from ._samples import words
from ._tables import advice, client_table


@in_order()
def compare(
    out: Annotated[Path, typer.Argument(parser=folder, metavar="OUT", help="What `refine --out` wrote.")],
    clients: Annotated[
        list[str],
        typer.Argument(metavar="CLIENT_DIR…", help="Folders of clients that came late, or NAME=FOLDER for a name."),
    ],
    fail_on: Annotated[
        str, typer.Option(metavar="VERDICT,…", help="Exit with status 3 if a client has one of these verdicts.")
    ] = "",
    same_base: Annotated[
        bool, typer.Option("--same-base", help="The base models are the same, whatever they are called.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what was found there.", dir_okay=False)
    ] = None,
) -> None:
    """Say how clients that came late stand to a stored result, by its global adapter: nobody else's is read again.

    Direction and size are compared. For row spaces, copies and a new result run `refine` again.
    """
    try:
        wanted = words(fail_on, "--fail-on", adapters.VERDICTS)
        if report is not None and os.path.lexists(report):  # a link to nothing has the name, too
            raise _validate.fail("--report", "a new file", report)
        content = adapters.comparison(adapters.compare(out, clients, same_base=same_base), out)
    except ValueError as error:
        fail(error, REFUSED)
    except ImportError as error:
        fail(error)
    if report is not None and not create_file(report, json.dumps(content, indent=1, ensure_ascii=False) + "\n"):
        fail(_validate.fail("--report", "a new file", report), REFUSED)  # another process was faster
    console().print(client_table(content))
    for notice in advice(content):
        print(f"Note: {notice}")
    print(f"Rule: {content['rule']}.")
    if named := [name for name, client in content["clients"].items() if client["verdict"] in wanted]:
        say(f"--fail-on: {', '.join(named)}.")
        raise typer.Exit(FOUND)
