"""The commands: each parses, calls, prints."""

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import jax
import typer
from rich.console import Console
from rich.table import Table

from .. import __version__, adapters
from .._progress import Progress
from ..experiments import EXPERIMENTS, Experiment
from ..profiling import profile as measure
from ._ending import in_order, tell
from ._tables import advice, refine_tables


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


Preset = enum.StrEnum("Preset", ["smoke", "laptop", "paper"])
Precision = enum.StrEnum("Precision", ["float32", "float64"])
Shared = enum.StrEnum("Shared", ["rows", "columns"])
REFUSED = 2  # the exit status where what was asked for is at fault, as typer's own


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


def _folder(text: str) -> Path:
    if not text:  # `Path("")` is the current folder
        raise typer.BadParameter("a folder is needed, got ''.")
    try:
        if Path(text).is_file():
            raise typer.BadParameter(f"{text!r} is a file.")
    except OSError as error:  # as of a name that is too long
        raise typer.BadParameter(f"{text[:40]!r} cannot be a folder: {error.strerror}.") from None
    return Path(text)


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
        sizes = [
            f"{len(experiment.cells(experiment.presets[preset]))} × {experiment.presets[preset].replicates}"
            for preset in Preset
        ]
        table.add_row(name, experiment.summary, *sizes)
    _console().print(table, "\nSizes are cells × replicates.")


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
        typer.Option(parser=_folder, metavar="DIRECTORY", help="Folder for the results; results/NAME/… if left out."),
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
        _fail(error, REFUSED)
    _console().print(*tables)
    seconds = results.manifest["wall_seconds"]
    print(f"{results}, {seconds:.0f} s. In {out}: results.csv, results.nc, report.md, figure.png, manifest.json")


@app.command()
@in_order()
def profile(
    experiment: Name,
    trace: Annotated[
        Path | None,
        typer.Option(
            parser=_folder, metavar="DIRECTORY", help="Folder that receives a trace for TensorBoard or Perfetto."
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
        _fail(ValueError(f"--cell must be below {len(cells)}, the number of cells of {preset}, got {cell}."), REFUSED)
    chosen = cells[cell]

    def replicates(keys: jax.Array) -> dict[str, jax.Array]:
        return jax.vmap(lambda key: experiment.replicate(key, chosen))(keys)

    replicates.__name__ = experiment.name
    print(f"{chosen}, {lanes} replicates at once")
    try:
        print(measure(replicates, jax.random.split(jax.random.key(seed), lanes), trace=trace))
    except ValueError as error:
        _fail(error, REFUSED)


@app.command()
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
        typer.Option(parser=_folder, metavar="DIRECTORY", help="Folder for the refined adapters and the report."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Rank of the refined factors; the smallest within --tolerance if left out.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Relative error allowed by truncation.")] = 0.05,
    shrink: Annotated[bool, typer.Option("--shrink", help="Pool by as much as the data support.")] = False,
    shared: Annotated[Shared, typer.Option(help="Space in common; columns if all start from one A.")] = Shared.rows,
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
        _fail(ValueError("--out must be a folder, unless --dry-run is given."), REFUSED)
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
        _fail(error, REFUSED)
    except ImportError as error:
        _fail(error)
    _console().print(*refine_tables(content))
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


def _use(dtype: Precision) -> None:
    jax.config.update("jax_enable_x64", dtype is Precision.float64)


def _cells(experiment: Experiment, preset: str, changes: list[str] | None) -> tuple[Any, ...]:
    try:
        return experiment.choose(preset, experiment.parse(preset, changes or []))
    except ValueError as error:
        _fail(error, REFUSED)


def _fail(error: Exception, code: int = 1) -> NoReturn:
    raise typer.Exit(tell(error, code))


def _console() -> Console:
    """Outside a terminal there is no width to respect, and wrapped tables are hard to read."""
    console = Console()
    return console if console.is_terminal else Console(width=160)
