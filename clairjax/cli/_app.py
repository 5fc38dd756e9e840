"""The commands: each parses, calls, prints."""

import enum
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.table import Table

from .. import __version__
from ..experiments import EXPERIMENTS, Experiment
from ..profiling import profile as measure
from ._common import REFUSED, console, fail, folder
from ._ending import in_order
from ._refine import refine


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


Preset = enum.StrEnum("Preset", ["smoke", "laptop", "paper"])
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
) -> None:
    """Reproduce the papers' tables and figures, profile what computes them, and refine LoRA adapters."""


def _experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]


Name = Annotated[Any, typer.Argument(parser=_experiment, metavar="NAME", help="As `clairjax list` prints it.")]
Size = Annotated[
    Preset,
    typer.Option(
        help="smoke: a minute or two, nearly all compilation; laptop: minutes on two cores; paper: as printed."
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of all draws.")]
Dtype = Annotated[Precision, typer.Option(help="Precision of everything.")]
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
    table = Table("name", "what", *(f"{preset}" for preset in Preset), box=None, pad_edge=False)
    for name, experiment in EXPERIMENTS.items():
        sizes = [f"{len(size.cells)} × {size.replicates}" for size in map(experiment.preset, Preset)]
        table.add_row(name, experiment.summary, *sizes)
    console().print(table, "\nSizes are cells × replicates.")


@app.command()
@in_order("the same command goes on from here")
def reproduce(
    experiment: Name,
    preset: Size = Preset.laptop,
    replicates: Annotated[int | None, typer.Option(min=1, help="Replicates a cell; the preset's if left out.")] = None,
    seed: Seed = 0,
    dtype: Dtype = Precision.float64,
    out: Annotated[
        Path | None,
        typer.Option(parser=folder, metavar="DIRECTORY", help="Folder for the results; results/NAME/… if left out."),
    ] = None,
    changes: Changes = None,
) -> None:
    """Run an experiment and print our figures beside the paper's.

    The folder receives results.csv (one row a number), results.nc (labelled NetCDF), report.md, figure.png and
    manifest.json. The same command again goes on where it stopped.
    """
    _use(dtype)
    cells = _cells(experiment, preset, changes)
    if out is None:
        out = Path("results") / experiment.name / "-".join([preset, dtype, f"seed{seed}", *(changes or [])])
    try:
        results = experiment.run(preset=preset, replicates=replicates, seed=seed, cells=cells, out=out, progress=True)
        tables = experiment.write(results, out)
    except ValueError as error:
        fail(error, REFUSED)
    console().print(*tables)
    seconds = results.manifest["wall_seconds"]
    print(f"{results}, {seconds:.0f} s. In {out}: results.csv, results.nc, report.md, figure.png, manifest.json")


@app.command()
@in_order()
def profile(
    experiment: Name,
    trace: Annotated[
        Path | None,
        typer.Option(
            parser=folder, metavar="DIRECTORY", help="Folder that receives a trace for TensorBoard or Perfetto."
        ),
    ] = None,
    preset: Size = Preset.laptop,
    cell: Annotated[int, typer.Option(min=0, help="Which cell of the preset.")] = 0,
    lanes: Annotated[int, typer.Option(min=1, help="Replicates computed at once.")] = 8,
    seed: Seed = 0,
    dtype: Dtype = Precision.float64,
    changes: Changes = None,
) -> None:
    """Compile one cell's replicates as one program, run it, and print what it costs."""
    _use(dtype)
    cells = _cells(experiment, preset, changes)
    if cell >= len(cells):
        fail(ValueError(f"--cell must be below {len(cells)}, the number of cells of {preset}, got {cell}."), REFUSED)
    chosen = cells[cell]

    replicate = experiment.prepared([chosen])

    def replicates(keys: jax.Array) -> dict[str, jax.Array]:
        return jax.vmap(lambda key: replicate(key, chosen))(keys)

    replicates.__name__ = experiment.name
    print(f"{chosen}, {lanes} replicates at once")
    try:
        print(measure(replicates, jax.random.split(jax.random.key(seed), lanes), trace=trace))
    except ValueError as error:
        fail(error, REFUSED)


def _use(dtype: Precision) -> None:
    jax.config.update("jax_enable_x64", dtype is Precision.float64)


def _cells(experiment: Experiment, preset: str, changes: list[str] | None) -> tuple[Any, ...]:
    try:
        return experiment.choose(preset, experiment.parse(preset, changes or []))
    except ValueError as error:
        fail(error, REFUSED)


app.command()(refine)
