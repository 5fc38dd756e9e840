"""`python -m bench [NAME…] [--out FILE.json] [--quick]`, from the root of the repository."""

import os
import sys


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin: one other busy process makes it crawl

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console

from . import (
    _measure,
    adapters,
    correctness,
    federated,
    first_call,
    memory,
    parts,
    program,
    representation,
    scaling,
    sweep,
    verdict,
)
from ._report import Report, show, write_json


BENCHMARKS: dict[str, Callable[[bool], Report]] = {
    "correctness": correctness.measure,
    "first-call": first_call.measure,
    "program": program.measure,
    "sweep": sweep.measure,
    "parts": parts.measure,
    "scaling": scaling.measure,
    "memory": memory.measure,
    "representation": representation.measure,
    "adapters": adapters.measure,
    "federated": federated.measure,
    "verdict": verdict.measure,
}


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(BENCHMARKS)}; all if none.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file, written anew after each benchmark.")] = None,
    quick: Annotated[bool, typer.Option(help="Toy sizes, to see that all runs: the times mean nothing.")] = False,
) -> None:
    """Measure what the library claims of its speed and memory, and print it beside the target."""
    unknown = [name for name in names or () if name not in BENCHMARKS]
    if unknown:
        raise typer.BadParameter(f"NAME must be one of {', '.join(BENCHMARKS)}; got {', '.join(unknown)}.")
    jax.config.update("jax_enable_x64", True)
    console = Console(width=None if sys.stdout.isatty() else 150)
    content = {"machine": _measure.machine(), "quick": quick, "benchmarks": {}}
    console.print(", ".join(f"{name} {value}" for name, value in content["machine"].items()))
    for name in names or BENCHMARKS:
        before = _measure.load()
        report = BENCHMARKS[name](quick)
        content["benchmarks"][name] = report.to_dict() | {"load": [before, _measure.load()]}
        show(console, name, report)
        console.print(f"  load {before} before, {_measure.load()} after\n")
        if out is not None:
            write_json(out, content)


if __name__ == "__main__":
    typer.run(main)
