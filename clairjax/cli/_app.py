"""The commands: each parses, calls, prints."""

import enum
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.table import Table

from .. import __version__, experiments
from ..experiments import Experiment
from ..profiling import profile as measure
from ._common import REFUSED, console, fail, folder
from ._compare import compare
from ._ending import in_order, say
from ._parts import parse, several_tasks
from ._refine import refine


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


SIZES = ("smoke", "laptop", "paper")
Precision = enum.StrEnum("Precision", ["float32", "float64"])


def _version(wanted: bool) -> bool:
    if wanted:
        print(f"clairjax {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def clairjax(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Keep no compiled programs, and use none that were kept.")
    ] = False,
) -> None:
    """Reproduce the papers' tables and figures, profile what computes them, and refine LoRA adapters.

    Compiled programs are kept in the user's cache folder, clairjax/programs, or in JAX_COMPILATION_CACHE_DIR: the same
    command again compiles nothing. That folder may be deleted at any time.
    """
    if no_cache:
        jax.config.update("jax_enable_compilation_cache", False)


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="As `clairjax list` prints it, or a Python file: path/to/mine.py.")
]
Size = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(SIZES),
        help="smoke: a minute or two, nearly all compilation; laptop: minutes on two cores; paper: as printed. "
        "A file has its own. Left out: laptop, or a file's first.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of all draws.")]
Dtype = Annotated[
    Precision | None,
    typer.Option(help="Precision of everything; float64 if left out, float32 where networks are trained."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Change a field in the cells that have it, as law=normal or epsilons=1,2."
    ),
]


@app.command("list")
@in_order()
def list_experiments() -> None:
    """Print the experiments and their sizes."""
    table = Table("name", "what", *SIZES, box=None, pad_edge=False)
    for name, experiment in experiments.EXPERIMENTS.items():
        sizes = [f"{len(size.cells)} × {size.replicates}" for size in map(experiment.preset, SIZES)]
        table.add_row(name, experiment.summary, *sizes)
    console().print(table, "\nSizes are cells × replicates.")


@app.command()
@in_order("the same command goes on from here")
def reproduce(
    name: Name,
    preset: Size = None,
    replicates: Annotated[int | None, typer.Option(min=1, help="Replicates a cell; the preset's if left out.")] = None,
    seed: Seed = 0,
    dtype: Dtype = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=folder, metavar="DIRECTORY", help="Folder for the results; results/NAME/… if left out."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            parser=folder,
            metavar="DIRECTORY",
            help="Images to use, where networks are trained: CIFAR's binary version, idx files, or a folder a class. "
            "Digits that scikit-learn ships if left out.",
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="I/N|prepare",
            help="Compute and store one of N parts, I from 0 to N − 1: on many machines, in any order, also at once. "
            "The same command without it collects them. prepare: only what all parts share.",
        ),
    ] = None,
    changes: Changes = None,
) -> None:
    """Run an experiment and print our figures beside the paper's.

    The folder receives results.csv (one row a number), results.nc (labelled NetCDF), report.md, figure.png and
    manifest.json. The same command again goes on where it stopped.
    """
    with _refusing(name):
        stretch = None if part is None else parse(part, out)
        experiment, preset, cells = _chosen(name, preset, dtype, changes)
        if out is None:
            own = [preset, dtype or experiment.precision, f"seed{seed}", *(changes or [])]
            out = Path("results") / experiment.name / "-".join(own + ([data.resolve().name] if data else []))
        asked: dict[str, Any] = {"preset": preset, "replicates": replicates, "seed": seed, "cells": cells}
        asked |= {"out": out, "progress": True, "data": data}
        if part is not None:
            computed = experiment.run_part(stretch, **asked)
            done = "Prepared" if stretch is None else f"Part {part}: {computed} blocks computed"
            print(f"{done}. In {out}.")
            return
        if (warning := several_tasks()) is not None:
            say(f"Warning: {warning}")
        results = experiment.run(**asked)
        tables = experiment.write(results, out)
    console().print(*tables)
    seconds = results.manifest["wall_seconds"]
    files = ["results.csv", "results.nc", "report.md", *(["figure.png"] if experiment.plot else []), "manifest.json"]
    print(f"{results}, {seconds:.0f} s. In {out}: {', '.join(files)}")


@app.command()
@in_order()
def profile(
    name: Name,
    trace: Annotated[
        Path | None,
        typer.Option(
            parser=folder, metavar="DIRECTORY", help="Folder that receives a trace for TensorBoard or Perfetto."
        ),
    ] = None,
    preset: Size = None,
    cell: Annotated[int, typer.Option(min=0, help="Which cell of the preset.")] = 0,
    lanes: Annotated[int, typer.Option(min=1, help="Replicates computed at once.")] = 8,
    seed: Seed = 0,
    dtype: Dtype = None,
    changes: Changes = None,
) -> None:
    """Compile one cell's replicates as one program, run it, and print what it costs."""
    with _refusing(name):
        experiment, preset, cells = _chosen(name, preset, dtype, changes)
        if cell >= len(cells):
            raise ValueError(f"--cell must be below {len(cells)}, the number of cells of {preset}, got {cell}.")
        replicate = experiment.prepared(cells[cell : cell + 1])

        def replicates(keys: jax.Array) -> dict[str, jax.Array]:
            return jax.vmap(lambda key: replicate(key, cells[cell]))(keys)

        replicates.__name__ = experiment.name
        print(f"{cells[cell]}, {lanes} replicates at once")
        print(measure(replicates, jax.random.split(jax.random.key(seed), lanes), trace=trace))


def _chosen(
    name: str, preset: str | None, dtype: Precision | None, changes: list[str] | None
) -> tuple[Experiment, str, tuple[Any, ...]]:
    """The experiment, its preset's name and the cells; a file is run in the precision that is asked for."""
    jax.config.update("jax_enable_x64", dtype is not Precision.float32)
    if name.endswith(".py"):
        experiment = experiments.load(name)
    elif name in experiments.EXPERIMENTS:
        experiment = experiments.EXPERIMENTS[name]
    else:
        known = ", ".join(experiments.EXPERIMENTS)
        raise ValueError(f"NAME must be one of {known}, or a Python file as mine.py, got {name}.")
    jax.config.update("jax_enable_x64", (dtype or experiment.precision) == Precision.float64)
    preset = experiment.default if preset is None else preset
    return experiment, preset, experiment.choose(preset, experiment.parse(preset, changes or []))


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """What is asked for and cannot be is one line; what goes wrong in a user's own file is shown with its place."""
    try:
        yield
    except ValueError as error:
        frames = traceback.extract_tb(error.__traceback__)
        if name.endswith(".py") and any(frame.filename == os.path.realpath(name) for frame in frames):
            raise
        fail(error, REFUSED)


app.command()(refine)
app.command()(compare)
