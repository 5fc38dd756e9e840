"""CLAIR, Table 1: mean squared Frobenius error of each method, averaged over clients."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from .._typing import Key
from ..alignment import clair, elect, fedavg, label_oracle, local, oracle_fedavg, refine
from ..sweep import Results
from ._old import experiment, kept, legend_below, mean, new_figure, ratio, status_number
from ._presets import PRESETS
from ._section7 import (
    SIZE_TITLES,
    SOLVER,
    Cell,
    by_dimension,
    cells,
    failure_notes,
    law_note,
    mean_square_error,
    published_constants,
    rules,
    size_columns,
)
from ._table import Table


class Row(NamedTuple):
    """A row as printed."""

    local: float
    clair: float
    oracle_fedavg: float
    fedavg: float


PAPER = {  # by p, n, K
    (10, 100, 5): Row(1.121, 1.109, 6.102, 15.262),
    (10, 100, 10): Row(1.117, 0.722, 7.457, 17.094),
    (10, 100, 20): Row(1.126, 0.648, 8.156, 18.144),
    (20, 150, 5): Row(3.085, 2.055, 24.715, 35.575),
    (20, 150, 10): Row(3.093, 1.735, 29.977, 38.623),
    (20, 150, 20): Row(3.097, 1.581, 32.617, 41.660),
    (50, 300, 5): Row(10.052, 6.070, 148.871, 179.855),
    (50, 300, 10): Row(10.054, 5.146, 183.551, 201.606),
    (50, 300, 20): Row(10.041, 4.678, 200.977, 212.679),
}
OURS = ("clair", "shrink", "label oracle")
CURVES = {  # output, its label and its marker in the plot
    "published": ("CLAIR as published", "v"),
    "auto": ("clair", "o"),
    "shrink": ("clair, shrink", "D"),
}


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """The error of every method on one problem, the ranks found and the solvers' statuses (0: converged)."""
    penalty = published_constants(cell).penalty(cell.clients)
    problem = cell.generate(key)
    estimates, members = problem.estimates, problem.members
    auto = elect(estimates)
    published = clair(estimates, penalty=penalty, refit=False, solver=SOLVER)
    matrices = {
        "local": local(estimates),
        "published": published.refined,
        "auto": refine(estimates, auto.members, basis=auto.basis),
        "shrink": refine(estimates, auto.members, basis=auto.basis, shrink=True),
        "oracle_fedavg": oracle_fedavg(estimates, members),
        "fedavg": fedavg(estimates),
        "label_oracle": label_oracle(estimates, members, problem.basis),
    }
    errors = {name: mean_square_error(refined, problem) for name, refined in matrices.items()}
    return errors | {
        "auto_rank": auto.rank,
        "auto_status": status_number(auto.status),
        "published_rank": published.rank,
        "published_status": status_number(published.status),
    }


def report(results: Results) -> list[Table]:
    ordered = [cell for row in by_dimension(results).values() for cell in row]
    against, ours = [], []
    for cell in ordered:
        outputs = kept(results, cell)
        paper = PAPER.get((cell.dimension, cell.samples, cell.clients))
        pairs = [("local", "local"), ("published", "clair"), ("oracle_fedavg", "oracle_fedavg"), ("fedavg", "fedavg")]
        texts = [
            (str(mean(outputs[name])), f"{getattr(paper, column):.3f}" if paper else "") for name, column in pairs
        ]
        against.append((*size_columns(cell), *(text for pair in texts for text in pair)))
        ours.append(
            (
                *size_columns(cell),
                f"{paper.clair:.3f}" if paper else "",
                *(str(mean(outputs[name])) for name in ("published", "auto", "shrink", "label_oracle")),
                *(str(ratio(outputs[name], outputs["label_oracle"])) for name in ("auto", "shrink")),
            )
        )
    replicates = len(next(iter(results.failed.values())))
    methods = ("local", "CLAIR as published", "oracle FedAvg", "FedAvg")
    return [
        Table(
            f"CLAIR, Table 1: squared Frobenius error, mean over clients and {replicates} replicates ±standard error",
            (*SIZE_TITLES, *(title for method in methods for title in (method, "paper"))),
            tuple(against),
            (law_note(ordered), "As published: fixed penalties, the program's own row space, largest gap, α = 1/2."),
            rules(ordered),
        ),
        Table(
            "The same replicates with clairjax: tuned from the data alone",
            (*SIZE_TITLES, "paper's CLAIR", "as published", *OURS, "clair / oracle", "shrink / oracle"),
            tuple(ours),
            (
                "Label oracle: refinement with the true set and the true row space. Shrink may fall below it.",
                *_status_notes(results, ordered),
                *failure_notes(results),
            ),
            rules(ordered),
        ),
    ]


def _status_notes(results: Results, ordered: list[Cell]) -> tuple[str, ...]:
    notes = []
    for cell in ordered:
        outputs = kept(results, cell)
        counts = {name: int((outputs[f"{name}_status"] != 0).sum()) for name in ("auto", "published")}
        if any(counts.values()):
            notes.append(
                f"p = {cell.dimension}, K = {cell.clients}: {counts['auto']} replicates of clair and "
                f"{counts['published']} as published have a status other than converged."
            )
    return tuple(notes)


def plot(results: Results) -> Any:
    """Errors over the label oracle's. Local (1.5 to 2.2) and FedAvg (8 to 50) are in the table only."""
    groups = by_dimension(results)
    figure, axes = new_figure(len(groups))
    for axis, (dimension, row) in zip(axes, groups.items(), strict=True):
        places = np.arange(len(row))
        for number, (name, (label, marker)) in enumerate(CURVES.items()):
            points = [ratio(kept(results, cell)[name], kept(results, cell)["label_oracle"]) for cell in row]
            values, errors = zip(*points, strict=True)
            beside = places + 0.08 * (number - 1)  # where they coincide, all stay visible
            axis.errorbar(beside, values, errors, marker=marker, markersize=5, linewidth=1, capsize=2, label=label)
        printed = [_paper_ratio(results, cell) for cell in row]
        axis.plot(places, printed, "k_", markersize=16, markeredgewidth=1.6, label="CLAIR, paper")
        axis.axhline(1, color="0.4", linewidth=0.8)
        axis.set(title=f"p = q = {dimension}", xlabel="clients K", xticks=places)
        axis.set_xticklabels([str(cell.clients) for cell in row])
    axes[0].set_ylabel("error / label oracle")
    legend_below(figure, axes[0])
    return figure


def _paper_ratio(results: Results, cell: Cell) -> float:
    paper = PAPER.get((cell.dimension, cell.samples, cell.clients))
    return paper.clair / mean(kept(results, cell)["label_oracle"]).value if paper else float("nan")


EXPERIMENT = experiment(
    name="clair-table1",
    summary="CLAIR, Table 1: squared error of local, FedAvg, CLAIR as published and clair, beside the paper's",
    presets=PRESETS["clair-table1"],
    cells=cells,
    replicate=replicate,
    report=report,
    plot=plot,
)
