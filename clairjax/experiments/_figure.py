"""The plots' common look: panels, points with standard errors, bands, ticks and legends."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sweep import Estimate


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND_COLUMN = 2.0  # inches that an entry may take


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


def points(
    axis: "Axes", x: Sequence[float] | np.ndarray, estimates: Iterable[Estimate], label: str, **style: Any
) -> Any:
    """Means with their standard errors, the latter left out where there is none; returns the line."""
    values, errors = zip(*estimates, strict=True)
    style = {"fmt": "o-", "markersize": 4, "capsize": 2, **style}
    return axis.errorbar(x, values, np.nan_to_num(errors), label=label, **style)[0]


def band(axis: "Axes", x: np.ndarray, replicates: np.ndarray, label: str) -> None:
    """Mean over replicates [replicate, point], within a standard error on either side."""
    centre, error = np.array([Estimate.of(column) for column in replicates.T]).T
    (line,) = axis.plot(x, centre, label=label)
    axis.fill_between(x, centre - error, centre + error, color=line.get_color(), alpha=0.25)


def sizes_below(axis: "Axes", sizes: Sequence[float]) -> None:
    """On a logarithmic horizontal axis with a tick at each of these sizes, and at no other."""
    axis.set_xscale("log")
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axis.minorticks_off()


def legend_below(figure: "Figure", axis: "Axes", columns: int | None = None) -> "Figure":
    handles, labels = axis.get_legend_handles_labels()
    columns = columns or max(1, int(figure.get_figwidth() // LEGEND_COLUMN))
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False)
    return figure
