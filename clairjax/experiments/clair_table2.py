"""CLAIR, Table 2: who is found to be contaminated, and where each method errs."""

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from .._typing import Key
from ..alignment import ClairResult, clair
from ..data import Problem
from ..sweep import Results
from ._experiment import Experiment
from ._presets import PRESETS
from ._section7 import (
    RANK,
    SIZE_TITLES,
    SOLVER,
    Cell,
    by_dimension,
    cells,
    failure_notes,
    kept,
    law_note,
    published_constants,
    rules,
    size_columns,
)
from ._table import Table, legend_below, mean, new_figure, save


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
LISTED = 20


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """Accuracy, recall and the number of either error, for `clair` and for the published procedure."""
    problem = cell.generate(key)
    penalty = published_constants(cell).penalty(cell.clients)
    found = {
        "auto": clair(problem.estimates),
        "published": clair(problem.estimates, penalty=penalty, refit=False, solver=SOLVER),
    }
    outputs = {"signal": problem.signal}
    for method, result in found.items():
        outputs |= {f"{method}_{name}": value for name, value in _score(result, problem).items()}
    return outputs


def _score(found: ClairResult, problem: Problem) -> dict[str, Array]:
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
        "status": found.status._value,
    }


def report(results: Results) -> list[Table]:
    ordered = [cell for row in by_dimension(results.cells).values() for cell in row]
    return [_recovery(results, ordered), _by_signal(results, ordered), _errors(results, ordered)]


def _recovery(results: Results, ordered: list[Cell]) -> Table:
    rows = []
    for cell in ordered:
        outputs = kept(results, cell)
        paper = PAPER.get((cell.dimension, cell.samples, cell.clients))
        texts = []
        for name in ("accuracy", "recall"):
            texts += [str(mean(outputs[f"{method}_{name}"])) for method in METHODS]
            texts.append(f"{getattr(paper, name):.3f}" if paper else "")
        rows.append((*size_columns(cell), *texts))
    replicates = len(next(iter(results.failed.values())))
    return Table(
        f"CLAIR, Table 2: recovery of the collaborative set, mean over {replicates} replicates ±standard error",
        (*SIZE_TITLES, *(title for name in ("accuracy", "recall") for title in (f"{name}, clair", "as published"))
        if False else (*SIZE_TITLES, "accuracy: clair", "as published", "paper", "recall: clair", "as published", "paper")),
        tuple(rows),
        (law_note(ordered), *failure_notes(results)),
        rules(ordered),
    )
