"""The command `refine`: parses, calls, prints."""

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .. import adapters
from .._progress import Progress
from ._common import REFUSED, console, fail, folder
from ._ending import in_order
from ._tables import advice, refine_tables


Shared = enum.StrEnum("Shared", ["auto", "rows", "columns"])


@in_order()
def refine(
    clients: Annotated[
        list[str],
        typer.Argument(
            metavar="CLIENT_DIR…", help="A folder with a PEFT LoRA adapter each, or NAME=FOLDER for its client's name."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(parser=folder, metavar="DIRECTORY", help="Folder for the refined adapters and the report."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Rank of the refined factors; the smallest within --tolerance if left out.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Relative error allowed by truncation.")] = 0.05,
    shrink: Annotated[bool, typer.Option("--shrink", help="Pool by as much as the data support.")] = False,
    shared: Annotated[Shared, typer.Option(help="Space in common; auto looks for it.")] = Shared.auto,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse all if one client's folder is at fault.")] = False,
    same_base: Annotated[
        bool, typer.Option("--same-base", help="The base models are the same, whatever they are called.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report only; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what an earlier refine wrote to --out.")] = False,
) -> None:
    """Find who does not belong among many parties' LoRA adapters, and refine the others' with each other's help.

    The folder receives CLIENT/adapter_config.json and adapter_model.safetensors for every member, report.json and
    report.png. Nothing is written unless everything could be.
    """
    if out is None and not dry_run:
        fail(ValueError("--out must be a folder, unless --dry-run is given."), REFUSED)
    try:
        loaded = adapters.load(clients, strict=strict, same_base=same_base)
        if out is not None and not dry_run:
            adapters.check_out(loaded, out, force)
        with _bar(len(loaded.modules) * (1 if dry_run else 2)) as step:
            found = adapters.refine(
                loaded,
                rank=rank,
                tolerance=tolerance,
                shrink=shrink,
                shared=shared.value,
                progress=step,
            )
            if out is None or dry_run:
                content = adapters.report(found)
            else:
                content = adapters.save(found, out, force=force, progress=step)
    except ValueError as error:
        fail(error, REFUSED)
    except ImportError as error:
        fail(error)
    console().print(*refine_tables(content))
    for notice in [*advice(content), *content["notices"]]:
        print(f"Note: {notice}")
    print(f"Rule: {content['rule']}.")
    if not dry_run:
        print(f"In {out}: {', '.join(found.members) or 'no client'}, report.json, report.png")


@contextmanager
def _bar(total: int) -> Iterator[Callable[[str], None]]:
    with Progress(total, True) as bar:

        def step(module: str) -> None:
            bar.show(module)
            bar.advance(1)

        yield step
