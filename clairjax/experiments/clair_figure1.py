"""CLAIR, Figure 1: distance of the estimated row space from the true one as the number of clients grows."""

import math
from functools import partial
from typing import TYPE_CHECKING

from jaxtyping import Array

from .._typing import Key
from ..alignment import Decomposition, Election, decompose, elect
from ..subspaces import subspace_distance
from ..sweep import Estimate
from ._clair_simulations import RANK, SIZES, SOLVER, Cell, by_dimension, published_constants, sizes
from ._experiment import Experiment, Preset
from ._figure import corner, curve, panels, sizes_below
from ._slopes import Line, fit
from ._status_number import status_number
from ._table import Row, Tabulated


if TYPE_CHECKING:
    from matplotlib.axes import Axes

THEORY = -0.5
# The second goes around the first where they coincide.
MARKERS = {"fmt": "o", "markersize": 4}, {"fmt": "s", "markersize": 8, "markerfacecolor": "none"}
SERIES = {"auto": "clair", "published": "as published"}


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """‖P_Â − P_A‖ and the rank found, of `clair` and of the convex program at the published constants."""
    penalty = published_constants(cell).penalty(cell.clients)
    problem = cell.generate(key)
    found: dict[str, Election | Decomposition] = {
        "auto": elect(problem.estimates),
        "published": decompose(problem.estimates, penalty, solver=SOLVER),
    }
    outputs = {name: subspace_distance(result.basis, problem.basis) for name, result in found.items()}
    outputs |= {f"{name}_rank": result.rank for name, result in found.items()}
    return outputs | {f"{name}_status": status_number(result.status) for name, result in found.items()}


def distance(row: Row[Cell], series: str) -> Estimate:
    """Mean distance where the rank found is the true one; elsewhere the distance is 1 and is counted apart."""
    return Estimate.of(row[series][row[f"{series}_rank"] == RANK])


def scaled(row: Row[Cell]) -> Estimate:
    return Estimate(*(math.sqrt(row.cell.clients) * part for part in distance(row, "auto")))


def missed(row: Row[Cell], series: str) -> int:
    return int((row[f"{series}_rank"] != RANK).sum())


def line(rows: list[Row[Cell]], series: str, less: int = 0) -> Line:
    """Of the distance on K, or on |C| `less` some."""
    sizes = [row.cell.benign - less if less else row.cell.clients for row in rows]
    return fit(sizes, [distance(row, series) for row in rows])


def slope(row: Row[Cell], series: str, less: int) -> Estimate:
    return line(row.part, series, less).slope


TABLES = (
    Tabulated[Cell](
        "CLAIR, Figure 1: ‖P_Â − P_A‖, mean over {replicates} replicates ±standard error",
        (
            *(*SIZES, *((label, partial(distance, series=name), 4) for name, label in SERIES.items())),
            ("clair × √K", scaled),
            *((f"rank missed, {label}", partial(missed, series=name)) for name, label in SERIES.items()),
        ),
        ("Replicates with a rank other than 2 are left out of the means.",),
        group="dimension",
    ),
    Tabulated[Cell](
        "Slope of log distance on log K, and on log (|C| − 1)",
        (
            *(*SIZES[:2], *((f"{label} on K", partial(slope, series=name, less=0)) for name, label in SERIES.items())),
            *((f"{label} on |C| − 1", partial(slope, series=name, less=1)) for name, label in SERIES.items()),
            ("theory", lambda row: THEORY),
        ),
        ("About the mean of |C| members there are |C| − 1 differences to go by: that bends the line at small K.",),
        lambda results: (Row(rows[0].cell, {}, rows) for rows in by_dimension(results)),
    ),
)


@panels("‖P_Â − P_A‖", by_dimension)
def plot(axis: "Axes", rows: list[Row[Cell]]) -> None:
    cell, sizes = rows[0].cell, [row.cell.benign - 1 for row in rows]
    for (name, label), height, style in zip(SERIES.items(), (0.95, 0.87), MARKERS, strict=True):
        drawn = curve(axis, rows, sizes, partial(distance, series=name), label, **style)
        fitted, color = line(rows, name, 1), drawn.get_color()
        axis.plot(sizes, list(map(fitted.at, sizes)), linewidth=0.9, color=color)
        corner(axis, f"slope on |C| − 1: {fitted.slope.text(2)}", (0.96, height), color=color)
    guide = [distance(rows[0], "auto").value * (x / sizes[0]) ** THEORY for x in sizes]
    axis.plot(sizes, guide, "k--", linewidth=0.8, label="theory, slope −1/2")
    axis.set(title=f"p = q = {cell.dimension}, n = {cell.samples}", xlabel="members but one, |C| − 1")
    sizes_below(axis, sizes)
    if any(distance(row, name).value > 0 for row in rows for name in SERIES):
        axis.set_yscale("log")  # of all panels, which share it


EXPERIMENT = Experiment[Cell](
    name="clair-fig1",
    summary="CLAIR, Figure 1: error of the shared row space against the number of clients, slope beside the theory's",
    presets={
        "smoke": Preset(sizes((10,), (5, 10, 20)), 4),
        "laptop": Preset(sizes((10, 20, 50), (10, 20, 40, 80, 160)), 20),
        "paper": Preset(sizes((10, 20, 50), (5, 10, 20, 40, 80, 160)), 100),
    },
    replicate=replicate,
    tables=TABLES,
    plot=plot,
)
