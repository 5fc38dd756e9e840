"""The plots' common look: panels, points with standard errors, bands, ticks and legends."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..sweep import Estimate, Results
from ._table import Row, Value, rows_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Plot: TypeAlias = Callable[[Results[Any]], "Figure"]
Places: TypeAlias = str | Sequence[float] | np.ndarray

LEGEND_COLUMN = 2.0  # inches that an entry may take


def new_figure(
    panels: int, width: float = 3.6, height: float = 3.4, *, shared: bool = True, across: int | None = None
) -> tuple["Figure", list["Axes"]]:
    """A figure of panels, `across` of them side by side or all, that share their vertical axis or not.

    Outside pyplot's global state.
    """
    from matplotlib.figure import Figure

    across = min(across or panels, panels)
    rows = -(-panels // across)
    figure = Figure(figsize=(width * across + 0.6, height * rows), layout="constrained", dpi=150)
    axes = figure.subplots(rows, across, sharey=shared, squeeze=False).ravel().tolist()
    for axis in axes[:panels]:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[panels:]:
        axis.remove()
    return figure, axes[:panels]


def panels(
    ylabel: str,
    of: Callable[[Results[Any]], Iterable[Any]] = rows_of,
    *,
    columns: int | None = None,
    shared: bool = True,
    across: int | None = None,
    above: Callable[[Results[Any]], str] | None = None,
) -> Callable[[Callable[["Axes", Any], None]], Plot]:
    """Makes a plot of `draw(axis, rows)`: a panel for each of what `of` gives, one legend of `columns` below all.

    `across`: panels side by side, all if left out. `above`: a line over all of them.
    """

    def decorate(draw: Callable[["Axes", Any], None]) -> Plot:
        def plot(results: Results[Any]) -> "Figure":
            groups = list(of(results))
            figure, axes = new_figure(len(groups), shared=shared, across=across)
            for axis, rows in zip(axes, groups, strict=True):
                draw(axis, rows)
            for axis in axes[:: across or len(axes)]:
                axis.set_ylabel(ylabel)
            if above is not None:
                figure.suptitle(above(results), fontsize=9)
            return legend_below(figure, axes[0], columns)

        return plot

    return decorate


def curve(axis: "Axes", rows: Sequence[Row[Any]], x: Places, y: Value, label: str, **style: Any) -> Any:
    """A column's values over a field of the rows, or over numbers given: points, with their standard errors."""
    return points(axis, _places(rows, x), (row.value(y) for row in rows), label, **style)


def means(axis: "Axes", rows: Sequence[Row[Any]], x: Places, y: Value, label: str, *fmt: str, **style: Any) -> None:
    """As `curve`, without the errors."""
    axis.plot(_places(rows, x), [row.value(y)[0] for row in rows], *fmt, label=label, **style)


def _places(rows: Sequence[Row[Any]], x: Places) -> Sequence[float] | np.ndarray:
    return [row.get(x) for row in rows] if isinstance(x, str) else x


def points(
    axis: "Axes", x: Sequence[float] | np.ndarray, estimates: Iterable[Estimate], label: str, **style: Any
) -> Any:
    """Means with their standard errors, the latter left out where there is none; returns the line."""
    values, errors = zip(*estimates, strict=True)
    style = {"fmt": "o-", "markersize": 4, "capsize": 2, **style}
    return axis.errorbar(x, values, np.nan_to_num(errors), label=label, **style)[0]


def dots(axis: "Axes", names: Sequence[str], estimates: Mapping[str, Estimate], label: str, **style: Any) -> None:
    """Means with their standard errors along the horizontal axis, a line for each name from the top."""
    values, errors = zip(*estimates.values(), strict=True)
    style = {"fmt": "o", "markersize": 4, **style}
    axis.errorbar(values, [names.index(name) for name in estimates], xerr=np.nan_to_num(errors), label=label, **style)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)


def looks(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """A style for each name, by its place: a colour of its own, or that of NAME in dashes for NAME*."""
    plain = list(dict.fromkeys(name.rstrip("*") for name in names))
    return {
        name: {"color": f"C{plain.index(name.rstrip('*'))}", "linestyle": "--" if name.endswith("*") else "-"}
        for name in names
    }


def band(axis: "Axes", x: np.ndarray, replicates: np.ndarray, label: str, **style: Any) -> None:
    """Mean over replicates [replicate, point], within a standard error on either side."""
    centre, error = np.array([Estimate.of(column) for column in replicates.T]).T
    (line,) = axis.plot(x, centre, label=label, **style)
    axis.fill_between(x, centre - error, centre + error, color=line.get_color(), alpha=0.25)


def sizes_below(axis: "Axes", sizes: Sequence[float]) -> None:
    """On a logarithmic horizontal axis with a tick at each of these sizes, and at no other."""
    axis.set_xscale("log")
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axis.minorticks_off()


def corner(axis: "Axes", text: str, place: tuple[float, float], **style: Any) -> None:
    """Text below a place in units of the panel, to the left of it in the right half."""
    side = "left" if place[0] < 0.5 else "right"
    axis.text(*place, text, transform=axis.transAxes, ha=side, va="top", fontsize=9, **style)


def legend_below(figure: "Figure", axis: "Axes", columns: int | None = None) -> "Figure":
    handles, labels = axis.get_legend_handles_labels()
    columns = columns or max(1, int(figure.get_figwidth() // LEGEND_COLUMN))
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False)
    return figure
