"""CLAIR, Table 2: who is found to be contaminated, and where each method errs."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from .._typing import Key
from ..alignment import Election, elect
from ..data import Problem
from ..sweep import Estimate, Results
from ._old import experiment, kept, legend_below, mean, new_figure, status_number
from ._presets import PRESETS
from ._section7 import (
    RANK,
    SIZE_TITLES,
    SOLVER,
    Cell,
    by_dimension,
    cells,
    failure_notes,
    law_note,
    published_constants,
    rules,
    size_columns,
)
from ._table import Table


class Row(NamedTuple):
    """A row as printed."""

    accuracy: float
    recall: float


PAPER = {  # by p, n, K
    (10, 100, 5): Row(0.980, 0.990),
    (10, 100, 10): Row(1.000, 1.000),
    (10, 100, 20): Row(1.000, 1.000),
    (20, 150, 5): Row(1.000, 1.000),
    (20, 150, 10): Row(1.000, 1.000),
    (20, 150, 20): Row(1.000, 1.000),
    (50, 300, 5): Row(0.916, 0.790),
    (50, 300, 10): Row(0.920, 0.800),
    (50, 300, 20): Row(0.900, 0.750),
}
METHODS = {"auto": "clair", "published": "as published"}
SIGNALS = (3, 4, 5, 6)
KINDS = ("excluded", "missed")
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


def report(results: Results) -> list[Table]:
    ordered = [cell for row in by_dimension(results).values() for cell in row]
    return [_recovery(results, ordered), _by_signal(results, ordered), _errors(results, ordered)]


def _recovery(results: Results, ordered: list[Cell]) -> Table:
    rows = []
    for cell in ordered:
        outputs = kept(results, cell)
        paper = PAPER.get((cell.dimension, cell.samples, cell.clients))
        texts = []
        for name in Row._fields:
            texts += [str(mean(outputs[f"{method}_{name}"])) for method in METHODS]
            texts.append(f"{getattr(paper, name):.3f}" if paper else "")
        rows.append((*size_columns(cell), *texts))
    replicates = len(next(iter(results.failed.values())))
    return Table(
        f"CLAIR, Table 2: recovery of the collaborative set, mean over {replicates} replicates ±standard error",
        (*SIZE_TITLES, *(f"{name}, {who}" for name in Row._fields for who in (*METHODS.values(), "paper"))),
        tuple(rows),
        ("Recall: share of the contaminated clients excluded.", law_note(ordered), *failure_notes(results)),
        rules(ordered),
    )


def _by_signal(results: Results, ordered: list[Cell]) -> Table:
    rows = [
        (*size_columns(cell), label, *map(str, accuracy_by_signal(results, cell, method)))
        for cell in ordered
        for method, label in METHODS.items()
    ]
    return Table(
        "Accuracy by the strength c of the contamination",
        (*SIZE_TITLES, "method", *(f"c = {signal}" for signal in SIGNALS)),
        tuple(rows),
        ("c is drawn once a replicate; –: not drawn.",),
        tuple(len(METHODS) * rule for rule in rules(ordered)),
    )


def accuracy_by_signal(results: Results, cell: Cell, method: str) -> list[Estimate]:
    outputs = kept(results, cell)
    drawn = np.round(outputs["signal"])
    return [mean(outputs[f"{method}_accuracy"][drawn == signal]) for signal in SIGNALS]


def _errors(results: Results, ordered: list[Cell]) -> Table:
    listed = [row for cell in ordered for row in _erring_replicates(results, cell)]
    notes = [f"{len(listed) - LISTED} more, in results.csv."] if len(listed) > LISTED else []
    for method, label in METHODS.items():
        totals = [sum(int(kept(results, cell)[f"{method}_{kind}"].sum()) for cell in ordered) for kind in KINDS]
        wrong = sum(int((kept(results, cell)[f"{method}_rank"] != RANK).sum()) for cell in ordered)
        notes.append(
            f"{label}: {totals[0]} benign clients excluded, {totals[1]} contaminated clients kept, "
            f"rank other than {RANK} in {wrong} replicates."
        )
    columns = (*SIZE_TITLES, "replicate", "c", "method", "benign excluded", "contaminated kept", "rank found")
    none = ("none", *[""] * (len(columns) - 1))
    return Table(
        "Where each method errs: replicates with a wrong set", columns, tuple(listed[:LISTED]) or (none,), tuple(notes)
    )


def _erring_replicates(results: Results, cell: Cell) -> Iterator[tuple[str, ...]]:
    outputs = results[cell]
    for method, label in METHODS.items():
        excluded, missed, rank = (outputs[f"{method}_{name}"] for name in (*KINDS, "rank"))
        for i in np.flatnonzero((excluded + missed > 0) & ~results.failed[cell]):
            signal = f"{outputs['signal'][i]:.0f}"
            yield (*size_columns(cell), str(i), signal, label, str(excluded[i]), str(missed[i]), str(rank[i]))


def plot(results: Results) -> Any:
    """Accuracy beside the paper's, and at the weakest contamination alone, where a method errs first."""
    groups = by_dimension(results)
    figure, axes = new_figure(len(groups))
    for axis, (dimension, row) in zip(axes, groups.items(), strict=True):
        places = np.arange(len(row))
        for number, (method, label) in enumerate(METHODS.items()):
            beside = places + 0.2 * (0.5 - number)
            overall = [mean(kept(results, cell)[f"{method}_accuracy"]) for cell in row]
            weakest = [accuracy_by_signal(results, cell, method)[0] for cell in row]
            series = ((overall, "", f"C{number}"), (weakest, f", c = {SIGNALS[0]} only", "white"))
            for (points, which, fill), shift in zip(series, (-0.04, 0.04), strict=True):
                values, errors = zip(*points, strict=True)
                axis.errorbar(
                    beside + shift,
                    values,
                    errors,
                    fmt="ov"[number],
                    color=f"C{number}",
                    markerfacecolor=fill,
                    markersize=6,
                    capsize=2,
                    label=label + which,
                )
        printed = [PAPER.get((cell.dimension, cell.samples, cell.clients)) for cell in row]
        accuracies = [paper.accuracy if paper else np.nan for paper in printed]
        axis.plot(places, accuracies, "k_", markersize=16, markeredgewidth=1.6, label="paper")
        axis.set(title=f"p = q = {dimension}", xlabel="clients K", xticks=places, xlim=(-0.5, len(row) - 0.5))
        axis.set_xticklabels([str(cell.clients) for cell in row])
    axes[0].set_ylabel("accuracy of the recovered set")
    legend_below(figure, axes[0])
    return figure


EXPERIMENT = experiment(
    name="clair-table2",
    summary="CLAIR, Table 2: accuracy of the set found and recall of the contaminated clients; where each method errs",
    presets=PRESETS["clair-table2"],
    cells=cells,
    replicate=replicate,
    report=report,
    plot=plot,
)
