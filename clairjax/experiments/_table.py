"""Figures with standard errors, tables that print to a terminal and to markdown, and the plots' common look."""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._files import replace_file


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType


class Estimate(NamedTuple):
    """A Monte Carlo mean and its standard error (NaN below two replicates)."""

    value: float
    error: float

    def __str__(self) -> str:
        return self.text(3 if abs(self.value) < 100 else 2)

    def text(self, digits: int) -> str:
        if math.isnan(self.value):
            return "–"
        error = "" if math.isnan(self.error) else f" ±{self.error:.{digits}f}"
        return f"{self.value:.{digits}f}{error}"


def standard_error(values: np.ndarray) -> np.ndarray:
    """Of the mean over the first axis: the sample deviation over √replicates."""
    if len(values) < 2:
        return np.full(values.shape[1:], math.nan)
    return np.asarray(values.std(axis=0, ddof=1) / math.sqrt(len(values)))


def mean(values: np.ndarray) -> Estimate:
    if not len(values):
        return Estimate(math.nan, math.nan)
    return Estimate(float(np.mean(values)), float(standard_error(values)))


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> Estimate:
    """Ratio of the means of paired replicates, its standard error by the delta method."""
    if len(numerator) == 0:
        return Estimate(math.nan, math.nan)
    value = float(np.mean(numerator) / np.mean(denominator))
    return Estimate(value, mean(numerator - value * denominator).error / float(np.mean(denominator)))


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of text. `rules` are the numbers of rows after which a line is drawn."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    rules: tuple[int, ...] = ()

    def to_markdown(self) -> str:
        lines = [f"**{self.title}**", "", self._line(self.columns), self._line(["---"] * len(self.columns))]
        lines += [self._line(row) for row in self.rows]
        return "\n".join([*lines, "", *(f"{note}  " for note in self.notes), ""])

    @staticmethod
    def _line(cells: Sequence[str]) -> str:
        escaped = (cell.replace("|", r"\|") for cell in cells)
        return f"| {' | '.join(escaped)} |"

    def __rich__(self) -> "RenderableType":
        from rich import box
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=self.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for column in self.columns:
            table.add_column(column, justify="right", vertical="bottom")
        for number, row in enumerate(self.rows, 1):
            table.add_row(*row, end_section=number in self.rules)
        return Group(table, *(Text(note, style="dim") for note in self.notes), Text())


def new_figure(
    panels: int, width: float = 3.6, height: float = 3.4, *, shared: bool = True
) -> tuple["Figure", list["Axes"]]:
    """A figure of panels side by side that share their vertical axis or not, outside pyplot's global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * panels + 0.6, height), layout="constrained", dpi=150)
    axes = figure.subplots(1, panels, sharey=shared, squeeze=False)[0]
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def band(axis: "Axes", x: np.ndarray, replicates: np.ndarray, label: str) -> None:
    """Mean over replicates [replicate, point], within a standard error on either side."""
    centre, error = replicates.mean(0), standard_error(replicates)
    (line,) = axis.plot(x, centre, label=label)
    axis.fill_between(x, centre - error, centre + error, color=line.get_color(), alpha=0.25)


LEGEND_COLUMN = 2.0  # inches that an entry may take


def legend_below(figure: "Figure", axis: "Axes", columns: int | None = None) -> None:
    handles, labels = axis.get_legend_handles_labels()
    columns = columns or max(1, int(figure.get_figwidth() // LEGEND_COLUMN))
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False)


def save(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """As a PNG, whatever the name."""
    replace_file(Path(path), lambda beside: figure.savefig(beside, format="png"))
