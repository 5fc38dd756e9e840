"""The command `refine`: parses, calls, prints."""

import enum
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import adapters
from .._progress import Progress
from ._common import REFUSED, console, fail, folder
from ._ending import in_order, say
from ._samples import read_samples, words
from ._tables import advice, refine_tables


FOUND = 3  # the exit status where a client has a verdict of --fail-on
Shared = enum.StrEnum("Shared", ["auto", "rows", "columns"])


@in_order()
def refine(
    clients: Annotated[
        list[str],
        typer.Argument(
            metavar="CLIENT_DIR…",
            help="A folder with a PEFT LoRA adapter each, or NAME=FOLDER for its name; or one folder with all below.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(parser=folder, metavar="DIRECTORY", help="Folder for what is made, and the report."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Rank of what is written; the smallest within --tolerance if left out.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Relative error allowed by truncation.")] = 0.05,
    samples: Annotated[
        str | None,
        typer.Option(metavar="FILE|N,…", help="How many samples each client has: JSON, or lines NAME,N, or in order."),
    ] = None,
    evaluate: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Prints a client's validation loss last: 'score {client} {adapter}'."),
    ] = None,
    blend: Annotated[
        float | None, typer.Option(metavar="T", help="Write T · own + (1 − T) · shared for each, unproved as it is.")
    ] = None,
    shared: Annotated[Shared, typer.Option(help="What is shared: CLAIR's rows or columns; auto looks.")] = Shared.auto,
    shared_rank: Annotated[int | None, typer.Option(help="Rank of shared rows or columns; found if left out.")] = None,
    shrink: Annotated[bool, typer.Option("--shrink", help="Pool by as much as the data support.")] = False,
    include: Annotated[str, typer.Option(metavar="NAME,…", help="Members, whatever the verdict.")] = "",
    exclude: Annotated[str, typer.Option(metavar="NAME,…", help="Clients to leave out.")] = "",
    fail_on: Annotated[
        str, typer.Option(metavar="VERDICT,…", help="Exit with status 3 if a client has one of these verdicts.")
    ] = "",
    for_serving: Annotated[
        bool, typer.Option("--for-serving", help="One rank everywhere, scale 1: as inference servers need.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse all if one client's folder is at fault.")] = False,
    same_base: Annotated[
        bool, typer.Option("--same-base", help="The base models are the same, whatever they are called.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of a dry run; report.json if left out.", dir_okay=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the report alone.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what an earlier refine wrote to --out.")] = False,
) -> None:
    """Find who does not belong among many clients' LoRA adapters, and write what the others have in common.

    The folder receives global/, an adapter that PEFT loads, report.json and report.png. It receives CLIENT/ for every
    member where validation, halves or the adapters show that it helps, or where it was asked for. Nothing is written
    unless everything could be.
    """
    if out is None and not dry_run:
        fail(ValueError("--out must be a folder, unless --dry-run is given."), REFUSED)
    if report is not None and not dry_run:
        fail(ValueError("--report must be left out, unless --dry-run is given: --out has it."), REFUSED)
    try:
        wanted = words(fail_on, "--fail-on", adapters.VERDICTS)
        adapters.check_options(blend=blend, shared_rank=shared_rank)
        measure = None if evaluate is None else adapters.command(evaluate)
        place = adapters.check_report(Path("report.json") if report is None else report) if dry_run else None
        left_out = words(exclude, "--exclude")
        loaded = adapters.load(clients, exclude=left_out, strict=strict, same_base=same_base)
        counts = None if samples is None else read_samples(samples, list(loaded.clients), left_out)
        if out is not None and not dry_run:
            adapters.check_out(loaded, out, force)
        modules = len(loaded.modules)
        with _bar(modules if dry_run else 4 * modules + len(loaded.clients)) as step:
            found = adapters.refine(
                loaded,
                rank=rank,
                tolerance=tolerance,
                shrink=shrink,
                shared=shared.value,
                shared_rank=shared_rank,
                include=words(include, "--include"),
                progress=step,
            )
            if out is None or place is not None:
                content = adapters.report(found)
            else:
                how: dict[str, Any] = {"samples": counts, "evaluate": measure, "blend": blend, "serving": for_serving}
                content = adapters.save(found, out, **how, force=force, progress=step)
    except ValueError as error:
        fail(error, REFUSED)
    except ImportError as error:
        fail(error)
    if place is not None:
        place.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    console().print(*refine_tables(content))
    for notice in [*advice(content), *content["notices"]]:
        print(f"Note: {notice}")
    print(f"Rule: {content['rule']}.")
    if content["sharing"] is not None:
        print(f"Shared: {content['sharing']['why']}.")
    _told(content, out, place)
    if named := [name for name, client in content["clients"].items() if client["verdict"] in wanted]:
        say(f"--fail-on: {', '.join(named)}.")
        raise typer.Exit(FOUND)


def _told(content: dict[str, Any], out: Path | None, place: Path | None) -> None:
    if place is not None:
        print(f"Report: {place}")
        return
    folders = dict.fromkeys(file.split("/")[0] for file in content["files"] if "/" in file)
    print(f"In {out}: {', '.join(folders) or 'no adapter'}, report.json, report.png")


@contextmanager
def _bar(total: int) -> Iterator[Callable[[str], None]]:
    """Of at most so many steps: whether CLAIR's part and the clients' own are written is known on the way."""
    left = total
    with Progress(total, True) as bar:

        def step(module: str) -> None:
            nonlocal left
            left -= 1
            bar.show(module)
            bar.advance(1)

        yield step
        bar.advance(left)
