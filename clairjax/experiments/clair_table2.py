"""CLAIR, Table 2: who is found to be contaminated, and where each method errs."""

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

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
from ._figure import curve, panels
from ._status_number import status_number
from ._table import Row, Tabulated, rows_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


def erring(results: Results[Cell]) -> list[Row[Cell]]:
    """A row for each replicate and method with a wrong set."""
    found = []
    for cell, method in itertools.product(results.cells, METHODS):
        outputs = {name: results[cell][f"{method}_{name}"] for name in ("excluded", "missed", "rank")}
        wrong = (outputs["excluded"] + outputs["missed"] > 0) & ~results.failed[cell]
        for i in np.flatnonzero(wrong):
            where = {"method": METHODS[method], "replicate": i, "c": f"{results[cell]['signal'][i]:.0f}"}
            found.append(Row(cell, {}, {**where, **{name: values[i] for name, values in outputs.items()}}))
    return found


def total(results: Results[Cell], method: str) -> str:
    kept = [row.outputs for row in rows_of(results)]
    excluded, missed, rank = (
        np.concatenate([outputs[f"{method}_{name}"] for outputs in kept]) for name in ("excluded", "missed", "rank")
    )
    return (
        f"{METHODS[method]}: {excluded.sum()} benign clients excluded, {missed.sum()} contaminated clients kept, "
        f"rank other than {RANK} in {(rank != RANK).sum()} replicates."
    )


def unlisted(results: Results[Cell]) -> str:
    more = len(erring(results)) - LISTED
    return f"{more} more, in results.csv." if more > 0 else ""


def beside_paper(name: str) -> tuple[Any, ...]:
    ours = ((f"{name}, {label}", f"{method}_{name}") for method, label in METHODS.items())
    return (*ours, printed(PAPER, name, f"{name}, paper"))


TABLES = (
    Tabulated[Cell](
        "CLAIR, Table 2: recovery of the collaborative set, mean over {replicates} replicates ±standard error",
        (*SIZES, *beside_paper("accuracy"), *beside_paper("recall")),
        ("Recall: share of the contaminated clients excluded.", law_note),
        group="dimension",
    ),
    Tabulated[Cell](
        "Accuracy by the strength c of the contamination",
        (
            *(*SIZES, ("method", lambda row: METHODS[row.part])),
            *((f"c = {signal}", partial(accuracy, signal=signal)) for signal in SIGNALS),
        ),
        ("c is drawn once a replicate; –: not drawn.",),
        by_method,
        group="dimension",
    ),
    Tabulated[Cell](
        "Where each method errs: replicates with a wrong set",
        (
            *(*SIZES, "replicate", "c", "method", ("benign excluded", "excluded")),
            *(("contaminated kept", "missed"), ("rank found", "rank")),
        ),
        (unlisted, *(partial(total, method=method) for method in METHODS)),
        lambda results: erring(results)[:LISTED],
    ),
)


@panels("accuracy of the recovered set", by_dimension)
def plot(axis: "Axes", rows: list[Row[Cell]]) -> None:
    """Accuracy beside the paper's, and at the weakest contamination alone, where a method errs first."""
    places = clients_below(axis, rows, partial(in_paper, PAPER, "accuracy"), "paper")
    for (method, label), beside, fmt, color in zip(METHODS.items(), (0.1, -0.1), "ov", ("C0", "C1"), strict=True):
        style = {"fmt": fmt, "color": color, "markersize": 6}
        curve(axis, rows, places + beside - 0.04, f"{method}_accuracy", label, **style)
        weakest, label = partial(accuracy, signal=SIGNALS[0], method=method), f"{label}, c = {SIGNALS[0]} only"
        curve(axis, rows, places + beside + 0.04, weakest, label, markerfacecolor="white", **style)


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
