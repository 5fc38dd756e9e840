"""What every experiment is: cells, a replicate function, tables and a plot; and one way to run any of them."""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import jax
from jaxtyping import Array

from .. import _validate, sweep
from .._files import replace_file
from .._typing import Key
from ..sweep import Results
from ._changes import change, parse
from ._table import Table


if TYPE_CHECKING:
    from matplotlib.figure import Figure

C = TypeVar("C", bound=Hashable)
Replicate = Callable[..., dict[str, Array]]
Folder: TypeAlias = str | os.PathLike[str]


class Preset(NamedTuple):
    """What a sweep runs: each of the cells, `replicates` times."""

    cells: Sequence[Any]
    replicates: int


def grid(make: Callable[..., C], **values: Iterable[Any]) -> tuple[C, ...]:
    """A cell for every combination of these values of its fields, the last of them varying first.

    **Args:**

    - `make`: the class of the cells, or any function of these fields.
    - `values`: for each field the values that it takes.

    **Returns:** the cells.

    **Cost:** none.

    >>> from typing import NamedTuple
    >>> from clairjax.experiments import grid
    >>> class Cell(NamedTuple):
    ...     clients: int
    ...     samples: int
    >>> grid(Cell, clients=(5, 10), samples=(20,))
    (Cell(clients=5, samples=20), Cell(clients=10, samples=20))
    """
    return tuple(make(**dict(zip(values, each, strict=True))) for each in itertools.product(*values.values()))


@dataclasses.dataclass(frozen=True)
class Experiment(Generic[C]):
    """A sweep with sizes by name, tables and a plot: what `clairjax reproduce` runs.

    - `name`, `summary`: as `clairjax list` prints them; results go to a folder of that name;
    - `presets`: sizes by name; where none is asked for, `laptop` is run, or the first if there is none of that name;
    - `replicate(key, cell)`: one replicate, a dict of arrays;
    - `tables`: what is reported, each a `Tabulated` or any other function of the results that gives a `Table`;
    - `plot(results)`: a figure of matplotlib;
    - `prepare(cells, out, progress)`: gives what all replicates share, and `replicate` receives that as its third
      argument. It may keep files in the folder `out`.

    >>> from typing import NamedTuple
    >>> import jax
    >>> from clairjax.experiments import Column, Experiment, Preset, Tabulated, grid
    >>> class Cell(NamedTuple):
    ...     size: int
    >>> coins = Experiment(
    ...     name="coins",
    ...     summary="Share of heads",
    ...     presets={"laptop": Preset(grid(Cell, size=(10, 1000)), replicates=50)},
    ...     replicate=lambda key, cell: {"heads": jax.random.bernoulli(key, shape=(cell.size,)).mean()},
    ...     tables=[Tabulated("Share of heads", [Column("size"), Column("heads", digits=2)])],
    ... )
    >>> print(coins.report(coins.run())[0].to_markdown().strip())
    **Share of heads**
    <BLANKLINE>
    | size | heads |
    | --- | --- |
    | 10 | 0.51 ±0.02 |
    | 1000 | 0.50 ±0.00 |
    """

    precision: ClassVar[str] = "float64"  # where none is asked for
    _sweeps: ClassVar[tuple[Callable[..., Any], Callable[..., int]]] = sweep.run, sweep.run_part

    name: str
    summary: str
    presets: Mapping[str, Preset]
    replicate: Replicate
    tables: Sequence[Callable[[Results[C]], Table]]
    plot: Callable[[Results[C]], "Figure"] | None = None
    prepare: Callable[[Sequence[C], str | os.PathLike[str] | None, bool | None], Any] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name must be letters, digits, '.', '_' and '-', as a folder's, got {self.name!r}.")
        if not self.presets or not self.tables:
            raise ValueError("presets and tables must be one or more each, got none.")

    @property
    def default(self) -> str:
        """The name of the preset that is run where none is asked for."""
        return "laptop" if "laptop" in self.presets else next(iter(self.presets))

    def preset(self, name: str) -> Preset:
        if name not in self.presets:
            raise ValueError(f"preset must be one of {', '.join(self.presets)}, got {name}.")
        return self.presets[name]

    def choose(self, preset: str, changes: Mapping[str, Any] | None = None) -> tuple[C, ...]:
        """The cells of a preset, with some fields replaced in those that have them."""
        return change(self.preset(preset).cells, changes or {})

    def parse(self, preset: str, changes: Sequence[str]) -> dict[str, Any]:
        """What `--set FIELD=VALUE` asks `choose` for: each value of the type that the cells' class declares."""
        return parse(self.preset(preset).cells, changes)

    def prepared(
        self, cells: Sequence[C], out: str | os.PathLike[str] | None = None, progress: bool | None = None
    ) -> Replicate:
        """`replicate` as a function of key and cell alone, with what `prepare` gives for these cells."""
        if self.prepare is None:
            return self.replicate
        shared = self.prepare(cells, out, progress)

        @functools.wraps(self.replicate)
        def replicate(key: Key, cell: C) -> dict[str, Array]:
            return self.replicate(key, cell, shared)

        return replicate

    def run(
        self,
        *,
        preset: str | None = None,
        replicates: int | None = None,
        seed: int = 0,
        cells: Sequence[C] | None = None,
        out: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        data: str | os.PathLike[str] | None = None,
    ) -> Results[C]:
        """Run it as a sweep: the cells and replicates of the preset unless given; see `clairjax.sweep.run`.

        `data` is for experiments on images alone, and refused by others.
        """
        whole, _ = self._sweeps
        return whole(**self._sized(preset, replicates, seed, cells, out, progress, data))

    def run_part(
        self,
        part: tuple[int, int] | None,
        *,
        preset: str | None = None,
        replicates: int | None = None,
        seed: int = 0,
        cells: Sequence[C] | None = None,
        out: str | os.PathLike[str],
        progress: bool | None = None,
        data: str | os.PathLike[str] | None = None,
    ) -> int:
        """Compute and store part (i, n) of `run` with these arguments; see `clairjax.sweep.run_part`.

        Without a part, only `prepare` is called, which may keep in `out` what all parts share.
        """
        _, stretch = self._sweeps
        asked = self._sized(preset, replicates, seed, cells, out, progress, data)
        return 0 if part is None else stretch(part=part, **asked)

    def _sized(
        self,
        preset: str | None,
        replicates: int | None,
        seed: int,
        cells: Sequence[C] | None,
        out: Folder | None,
        progress: bool | None,
        data: Folder | None,
    ) -> dict[str, Any]:
        """What the sweep is called with."""
        size = self.preset(self.default if preset is None else preset)
        asked = self._asked(size.cells if cells is None else cells, seed, out, progress, data)
        replicates = size.replicates if replicates is None else replicates
        return {"replicates": replicates, "out": out, "progress": progress, **asked}

    def _asked(
        self, cells: Sequence[C], seed: int, out: Folder | None, progress: bool | None, data: Folder | None
    ) -> dict[str, Any]:
        """What of it is the kind of experiment's own."""
        if data is not None:
            raise _validate.fail("--data", f"left out, since {self.name} draws its data", os.fspath(data))
        arguments = {"experiment": self.name, "seed": seed}
        sweep.check_folder(out, {"arguments": arguments})  # before `prepare`, as far as it is known
        replicate = self.prepared(cells, out, progress)
        return {"replicate": replicate, "cells": cells, "key": jax.random.key(seed), "arguments": arguments}

    def report(self, results: Results[C]) -> list[Table]:
        """The tables; below the first of them, which replicates failed and are left out."""
        first, *others = (table(results) for table in self.tables)
        failed = (
            f"{results.labels[cell] or 'All'}: replicates {', '.join(map(str, numbers))} failed, left out."
            for cell, numbers in results.failures.items()
        )
        return [dataclasses.replace(first, notes=(*first.notes, *failed)), *others]

    def write(self, results: Results[C], out: str | os.PathLike[str]) -> list[Table]:
        """Write `results.csv`, `results.nc`, `report.md` and the plot, `figure.png`, to `out`; returns the report.

        Each is UTF-8 or binary, and replaced at once. A folder with the manifest of another sweep is refused.
        """
        sweep.check_folder(out, results.manifest.get("arguments", {}), results.manifest.get("cells", {}))
        folder = Path(out)
        tables = self.report(results)
        results.to_csv(folder / "results.csv")
        results.to_netcdf(folder / "results.nc")
        report = "\n".join(table.to_markdown() for table in tables)
        replace_file(folder / "report.md", lambda beside: beside.write_text(report, encoding="utf-8"))
        if self.plot is not None:
            figure = self.plot(results)
            replace_file(folder / "figure.png", lambda beside: figure.savefig(beside, format="png"))
        return tables
