"""What every experiment is: cells, a replicate function, a report and a plot; and one way to run any of them."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Array

from .. import sweep
from .._typing import Key
from ..sweep import Results
from ._table import Table


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    - `name`, `summary`: as `clairjax list` prints them;
    - `presets`: sizes by name, each with its number of `replicates`;
    - `cells(preset)`: what the sweep runs, frozen dataclasses;
    - `replicate(key, cell)`: one replicate, a dict of arrays;
    - `report(results)`: our figures beside the paper's, as tables;
    - `plot(results, path)`: writes a PNG;
    - `prepare(cells, out, progress)`: computes what all replicates share, before the sweep; may keep it in `out`.
    """

    name: str
    summary: str
    presets: Mapping[str, Any]
    cells: Callable[[Any], tuple[Any, ...]]
    replicate: Callable[[Key, Any], dict[str, Array]]
    report: Callable[[Results], list[Table]]
    plot: Callable[[Results, str | os.PathLike[str]], None]
    prepare: Callable[[Sequence[Any], str | os.PathLike[str] | None, bool | None], None] | None = None

    def choose(self, preset: str, changes: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """The cells of a preset, with some of their fields replaced in each."""
        return tuple(dataclasses.replace(cell, **(changes or {})) for cell in self.cells(self.presets[preset]))

    def run(
        self,
        *,
        preset: str = "laptop",
        replicates: int | None = None,
        seed: int = 0,
        cells: Sequence[Any] | None = None,
        out: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> Results:
        """Run it as a sweep: the cells and replicates of the preset unless given; see `clairjax.sweep.run`."""
        size = self.presets[preset]
        cells = self.cells(size) if cells is None else cells
        if self.prepare is not None:
            self.prepare(cells, out, progress)
        return sweep.run(
            self.replicate,
            cells,
            key=jax.random.key(seed),
            replicates=size.replicates if replicates is None else replicates,
            out=out,
            arguments={"experiment": self.name, "seed": seed},
            progress=progress,
        )

    def write(self, results: Results, out: str | os.PathLike[str]) -> list[Table]:
        """Write `results.csv`, `results.nc`, `report.md` and `figure.png` to the folder `out`; returns the report."""
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        tables = self.report(results)
        results.to_csv(folder / "results.csv")
        results.to_netcdf(folder / "results.nc")
        (folder / "report.md").write_text("\n".join(table.to_markdown() for table in tables))
        self.plot(results, folder / "figure.png")
        return tables
