"""CLAIR, Table 2: who is found to be contaminated, and where each method errs."""

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Array

from .._typing import Key
from ..alignment import Election, elect
from ..data import Problem
from ..sweep import Estimate, Results
from ._clair_simulations import (
    RANK,
    SIZES,
    SOLVER,
    Cell,
    by_dimension,
    clients_below,
    in_paper,
    law_note,
    printed,
    published_constants,
    sizes,
)
from ._experiment import Experiment, Preset
from ._figure import legend_below, new_figure, points
from ._status_number import status_number
from ._table import Column, Row, Tabulated, rows_of


if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Printed(NamedTuple):
    """A row as printed."""

    accuracy: float
    recall: float


PAPER = {  # by p, n, K
    (10, 100, 5): Printed(0.980, 0.990),
    (10, 100, 10): Printed(1.000, 1.000),
    (10, 100, 20): Printed(1.000, 1.000),
    (20, 150, 5): Printed(1.000, 1.000),
    (20, 150, 10): Printed(1.000, 1.000),
    (20, 150, 20): Printed(1.000, 1.000),
    (50, 300, 5): Printed(0.916, 0.790),
    (50, 300, 10): Printed(0.920, 0.800),
    (50, 300, 20): Printed(0.900, 0.750),
}
METHODS = {"auto": "clair", "published": "as published"}
SIGNALS = (3, 4, 5, 6)
LISTED = 20


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """Accuracy, recall and the number of either error, for `clair` and for the published procedure."""
    penalty = published_constants(cell).penalty(cell.clients)
    problem = cell.generate(key)
    found = {
        "auto": elect(problem.estimates),
        "published": elect(problem.estimates, penalty=penalty, refit=False, solver=SOLVER),
    }
    outputs = {"signal": problem.signal}
    for method, result in found.items():
        outputs |= {f"{method}_{name}": value for name, value in _score(result, problem).items()}
    return outputs


def _score(found: Election, problem: Problem) -> dict[str, Array]:
    excluded = problem.members & ~found.members
    missed = ~problem.members & found.members
    contaminated = (~problem.members).sum()
    dtype = problem.signal.dtype
    return {
        "accuracy": 1 - (excluded | missed).mean(dtype=dtype),
        "recall": 1 - missed.sum().astype(dtype) / contaminated.astype(dtype),
        "excluded": excluded.sum(),
        "missed": missed.sum(),
        "rank": found.rank,
        "status": status_number(found.status),
    }


def accuracy(row: Row[Cell], signal: int, method: str | None = None) -> Estimate:
    """Of the replicates in which this strength of the contamination was drawn."""
    drawn = np.round(row["signal"]) == signal
    return Estimate.of(row[f"{method or row.part}_accuracy"][drawn])


def by_method(results: Results[Cell]) -> list[Row[Cell]]:
    return [Row(row.cell, row.outputs, method) for row in rows_of(results) for method in METHODS]


class Erring(NamedTuple):
    """A replicate in which a method errs."""

    replicate: int
    signal: str
    method: str
    excluded: int
    missed: int
    rank: int


def erring(results: Results[Cell]) -> list[Row[Cell]]:
    found = []
    for cell in results.cells:
        outputs = results[cell]
        for method, label in METHODS.items():
            excluded, missed, rank = (outputs[f"{method}_{name}"] for name in ("excluded", "missed", "rank"))
            for i in np.flatnonzero((excluded + missed > 0) & ~results.failed[cell]):
                part = Erring(int(i), f"{outputs['signal'][i]:.0f}", label, excluded[i], missed[i], rank[i])
                found.append(Row(cell, {}, part))
    return found


def total(results: Results[Cell], method: str) -> str:
    rows = rows_of(results)
    excluded, missed = (sum(int(row[f"{method}_{kind}"].sum()) for row in rows) for kind in ("excluded", "missed"))
    wrong = sum(int((row[f"{method}_rank"] != RANK).sum()) for row in rows)
    return (
        f"{METHODS[method]}: {excluded} benign clients excluded, {missed} contaminated clients kept, "
        f"rank other than {RANK} in {wrong} replicates."
    )


def unlisted(results: Results[Cell]) -> str:
    more = len(erring(results)) - LISTED
    return f"{more} more, in results.csv." if more > 0 else ""


TABLES = (
    Tabulated[Cell](
        lambda results: (
            "CLAIR, Table 2: recovery of the collaborative set, mean over "
            f"{results.replicates} replicates ±standard error"
        ),
        (
            *SIZES,
            *(Column(f"accuracy, {label}", f"{method}_accuracy") for method, label in METHODS.items()),
            printed(PAPER, "accuracy", "accuracy, paper"),
            *(Column(f"recall, {label}", f"{method}_recall") for method, label in METHODS.items()),
            printed(PAPER, "recall", "recall, paper"),
        ),
        ("Recall: share of the contaminated clients excluded.", law_note),
        group="dimension",
    ),
    Tabulated[Cell](
        "Accuracy by the strength c of the contamination",
        (
            *(*SIZES, Column("method", lambda row: METHODS[row.part])),
            *(Column(f"c = {signal}", partial(accuracy, signal=signal)) for signal in SIGNALS),
        ),
        ("c is drawn once a replicate; –: not drawn.",),
        by_method,
        group="dimension",
    ),
    Tabulated[Cell](
        "Where each method errs: replicates with a wrong set",
        (
            *(*SIZES, Column("replicate", lambda row: row.part.replicate), Column("c", lambda row: row.part.signal)),
            Column("method", lambda row: row.part.method),
            Column("benign excluded", lambda row: row.part.excluded),
            Column("contaminated kept", lambda row: row.part.missed),
            Column("rank found", lambda row: row.part.rank),
        ),
        (unlisted, *(partial(total, method=method) for method in METHODS)),
        lambda results: erring(results)[:LISTED],
    ),
)


def plot(results: Results[Cell]) -> "Figure":
    """Accuracy beside the paper's, and at the weakest contamination alone, where a method errs first."""
    groups = by_dimension(results)
    figure, axes = new_figure(len(groups))
    for axis, rows in zip(axes, groups, strict=True):
        places = clients_below(axis, rows, [in_paper(PAPER, "accuracy", row) or np.nan for row in rows], "paper")
        for (method, label), beside, fmt, color in zip(
            METHODS.items(), (0.1, -0.1), ("o", "v"), ("C0", "C1"), strict=True
        ):
            style = {"fmt": fmt, "color": color, "markersize": 6}
            points(axis, places + beside - 0.04, (row.mean(f"{method}_accuracy") for row in rows), label, **style)
            weakest = (accuracy(row, SIGNALS[0], method) for row in rows)
            label += f", c = {SIGNALS[0]} only"
            points(axis, places + beside + 0.04, weakest, label, markerfacecolor="white", **style)
    axes[0].set_ylabel("accuracy of the recovered set")
    return legend_below(figure, axes[0])


EXPERIMENT = Experiment[Cell](
    name="clair-table2",
    summary="CLAIR, Table 2: accuracy of the set found and recall of the contaminated clients; where each method errs",
    presets={
        "smoke": Preset(sizes((10,), (5, 10)), 4),
        "laptop": Preset(sizes((10, 20, 50), (5, 10, 20)), 100),
        "paper": Preset(sizes((10, 20, 50), (5, 10, 20)), 100),
    },
    replicate=replicate,
    tables=TABLES,
    plot=plot,
)
