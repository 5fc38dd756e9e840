"""CLAIR, Figure 1: distance of the estimated row space from the true one as the number of clients grows."""

import math
from typing import Any

from jaxtyping import Array

from .._typing import Key
from ..alignment import Decomposition, Election, decompose, elect
from ..subspaces import subspace_distance
from ..sweep import Estimate, Results
from ._old import experiment, fit, kept, legend_below, mean, new_figure, status_number
from ._presets import PRESETS
from ._section7 import (
    RANK,
    SIZE_TITLES,
    SOLVER,
    Cell,
    by_dimension,
    cells,
    failure_notes,
    published_constants,
    rules,
    size_columns,
)
from ._table import Table


THEORY = -0.5
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


def distances(results: Results, cell: Cell, series: str) -> Estimate:
    """Mean distance where the rank found is the true one; elsewhere the distance is 1 and is counted apart."""
    outputs = kept(results, cell)
    return mean(outputs[series][outputs[f"{series}_rank"] == RANK])


def report(results: Results) -> list[Table]:
    groups = by_dimension(results)
    ordered = [cell for row in groups.values() for cell in row]
    rows = []
    for cell in ordered:
        outputs = kept(results, cell)
        missed = (str(int((outputs[f"{name}_rank"] != RANK).sum())) for name in SERIES)
        means = (distances(results, cell, name).text(4) for name in SERIES)
        root = math.sqrt(cell.clients)
        scaled = Estimate(*(root * part for part in distances(results, cell, "auto")))
        rows.append((*size_columns(cell), *means, str(scaled), *missed))
    slopes = []
    for row in groups.values():
        sizes = [cell.clients for cell in row], [cell.benign - 1 for cell in row]
        lines = (
            fit(size, [distances(results, cell, name) for cell in row]).slope for size in sizes for name in SERIES
        )
        slopes.append((*size_columns(row[0])[:2], *map(str, lines), f"{THEORY}"))
    replicates = len(next(iter(results.failed.values())))
    return [
        Table(
            f"CLAIR, Figure 1: ‖P_Â − P_A‖, mean over {replicates} replicates ±standard error",
            (*SIZE_TITLES, *SERIES.values(), "clair × √K", *(f"rank missed, {label}" for label in SERIES.values())),
            tuple(rows),
            ("Replicates with a rank other than 2 are left out of the means.", *failure_notes(results)),
            rules(ordered),
        ),
        Table(
            "Slope of log distance on log K, and on log (|C| − 1)",
            (
                *SIZE_TITLES[:2],
                *(f"{label} on {x}" for x in ("K", "|C| − 1") for label in SERIES.values()),
                "theory",
            ),
            tuple(slopes),
            ("About the mean of |C| members there are |C| − 1 differences to go by: that bends the line at small K.",),
        ),
    ]


def plot(results: Results) -> Any:
    groups = by_dimension(results)
    figure, axes = new_figure(len(groups))
    for axis, (dimension, row) in zip(axes, groups.items(), strict=True):
        sizes = [cell.benign - 1 for cell in row]
        for (name, label), (marker, fill) in zip(SERIES.items(), (("o", None), ("s", "none")), strict=True):
            points = [distances(results, cell, name) for cell in row]
            line = fit(sizes, points)
            values, errors = zip(*points, strict=True)
            size = 8 if fill else 4  # the one around the other where they coincide
            (drawn, *_) = axis.errorbar(
                sizes, values, errors, fmt=marker, markersize=size, markerfacecolor=fill, capsize=2, label=label
            )
            axis.plot(sizes, [line.at(x) for x in sizes], color=drawn.get_color(), linewidth=0.9)
            place = (0.96, 0.95) if name == "auto" else (0.96, 0.87)
            text = f"slope on |C| − 1: {line.slope.text(2)}"
            axis.text(
                *place, text, color=drawn.get_color(), transform=axis.transAxes, ha="right", va="top", fontsize=9
            )
        start = distances(results, row[0], "auto").value
        guide = [start * (x / sizes[0]) ** THEORY for x in sizes]
        axis.plot(sizes, guide, "k--", linewidth=0.8, label="theory, slope −1/2")
        axis.set(title=f"p = q = {dimension}, n = {row[0].samples}", xlabel="members but one, |C| − 1", xscale="log")
        axis.set_xticks(sizes, list(map(str, sizes)))
        axis.minorticks_off()
    axes[0].set_ylabel("‖P_Â − P_A‖")
    if any(distances(results, cell, name).value > 0 for row in groups.values() for cell in row for name in SERIES):
        axes[0].set_yscale("log")  # of the panels that share it
    legend_below(figure, axes[0])
    return figure


EXPERIMENT = experiment(
    name="clair-fig1",
    summary="CLAIR, Figure 1: error of the shared row space against the number of clients, slope beside the theory's",
    presets=PRESETS["clair-fig1"],
    cells=cells,
    replicate=replicate,
    report=report,
    plot=plot,
)
