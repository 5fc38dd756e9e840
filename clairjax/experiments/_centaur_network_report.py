"""CENTAUR, Tables 1 and 3, Figures 1 and 3: the paper's numbers, tables and plots."""

import math
from functools import partial
from typing import TYPE_CHECKING

from ..sweep import Estimate, Results
from ._centaur_networks import ADJACENCIES, ALONE, CIFAR10, CIFAR100, DELTA, EMNIST, METHODS, Cell
from ._figure import curve, dots, looks, means, panels, points, sizes_below
from ._images import dataset_line, dataset_notes
from ._table import Column, Row, Tabulated, grouped, rows_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = list[Row[Cell]]
PAPER = {  # data set, clients, classes, rounds: accuracy in per cent and what is printed behind it, by method
    (CIFAR10, 500, 5, 200): ((50.03, 1.59), (46.17, 0.12), (49.35, 0.44), (48.69, 1.44), (53.23, 0.92)),
    (CIFAR10, 1000, 2, 200): ((74.06, 0.45), (57.02, 1.36), (67.79, 1.77), (71.52, 2.30), (76.23, 0.48)),
    (CIFAR10, 1000, 5, 200): ((44.60, 1.30), (37.15, 1.22), (35.99, 1.79), (44.61, 2.68), (49.92, 0.71)),
    (CIFAR100, 1000, 5, 100): ((39.20, 1.12), (22.17, 2.12), (24.17, 1.43), (32.97, 1.48), (44.54, 1.05)),
    (EMNIST, 1000, 5, 40): ((93.47, 0.14), (91.32, 0.22), (92.32, 0.22), (93.44, 0.20), (94.17, 0.19)),
    (EMNIST, 2000, 5, 40): ((90.67, 0.46), (86.85, 1.11), (88.81, 2.08), (88.96, 1.93), (92.79, 0.25)),
    (CIFAR10, 1000, 2, 400): ((74.06, 0.45), (63.97, 0.98), (67.71, 0.78), (74.63, 0.76), (77.80, 0.52)),
    (CIFAR10, 1000, 5, 400): ((44.60, 1.30), (41.12, 0.40), (45.75, 0.81), (48.29, 1.79), (51.05, 0.35)),
}


def printed(row: Row[Cell]) -> str | None:
    """The paper's accuracy at ε = 1, where it has these clients and rounds."""
    cell = row.cell
    found = PAPER.get((cell.dataset, cell.clients, cell.classes, cell.rounds))
    if found is None or (cell.method != ALONE and cell.epsilon != 1):
        return None
    value, spread = found[(ALONE, *METHODS).index(cell.method)]
    return f"{value:.2f} ({spread:.2f})"


def epsilon_text(row: Row[Cell], adjacency: str) -> str:
    """Of all rounds."""
    if row.cell.method == ALONE:
        return "nothing sent"
    return f"{row[adjacency][0, -1]:.2f}" if row.cell.private else "not private"


def percent(row: Row[Cell], output: str) -> Estimate:
    return Estimate.of(100 * row[output])


def last_round(row: Row[Cell]) -> Estimate:
    return percent(row, "accuracy")


def partition_of(row: Row[Cell]) -> tuple[str, int, int, int]:
    return row.cell.dataset, row.cell.clients, row.cell.classes, row.cell.rounds


WHERE = (
    Column("for", "dataset"),
    Column("n", "clients"),
    Column("S", "classes"),
    Column("T", "rounds"),
    Column("method"),
)
BEST = (
    Column("best round by validation: not covered", lambda row: percent(row, "best"), 2),
    Column("that round", lambda row: Estimate.of(row["best_round"]), 0),
)
EPSILONS = tuple(Column(f"ε, {name}", partial(epsilon_text, adjacency=name)) for name in ADJACENCIES)
NOTES = (
    dataset_notes,
    f"ε of all rounds for one user at δ = {DELTA:g}, under both adjacencies of the same run. The paper's experiments "
    "report add-or-remove-one, its definition is replace-one.",
    "The best round is chosen by the clients' validation images, at which no ε looks. The paper reports that one.",
    "n clients of S shards, one class each, which may repeat; T rounds of everybody. Tested on all test images of a "
    "client's classes.",
)
ACCURACIES = Tabulated[Cell](
    "Accuracy (%), mean over {replicates} replicates ± standard error",
    (*WHERE, *EPSILONS, Column("last round", last_round, 2), *BEST, Column("paper", printed)),
    NOTES,
    group=partition_of,
)


def against(row: Row[Cell], other: str) -> Estimate | None:
    """The last round, against another method of the same ε; paired over replicates."""
    rows = {(each.cell.method, each.cell.epsilon): each for each in row.part}
    found = rows.get((other, math.inf if other == ALONE else row.cell.epsilon))
    same = found is not None and found.cell != row.cell and found["accuracy"].shape == row["accuracy"].shape
    return Estimate.of(100 * (row["accuracy"] - found["accuracy"])) if found is not None and same else None


def with_rivals(results: Results[Cell]) -> Rows:
    """Each row with all of its partition as its part."""
    groups = grouped(rows_of(results), partition_of)
    return [Row(row.cell, row.outputs, group) for group in groups for row in group if row.cell.method != ALONE]


DIFFERENCES = Tabulated[Cell](
    "Differences of the last round, in points, paired over replicates",
    (
        *WHERE,
        EPSILONS[0],
        Column("against stand-alone", lambda row: against(row, ALONE), 2),
        Column("against CENTAUR", lambda row: against(row, "CENTAUR"), 2),
    ),
    (dataset_notes,),
    with_rivals,
    group=partition_of,
)


QUARTERS = (1, 2, 3, 4)


def during(row: Row[Cell], quarter: int) -> str:
    """Accuracy after a part of the rounds, and what they have spent."""
    place = round(quarter / 4 * (len(row.cell.evaluated) - 1))
    text = Estimate.of(100 * row["curve"][:, place]).text(2)
    return f"{text} at {row[row.cell.adjacency][0, place]:.2f}" if row.cell.private else text


DURING = Tabulated[Cell](
    "Accuracy (%) after each quarter of the rounds, at the ε spent so far",
    (*WHERE, EPSILONS[0], *(Column(f"{quarter}/4", partial(during, quarter=quarter)) for quarter in QUARTERS)),
    (dataset_notes, f"ε under the adjacency of the noise, {ADJACENCIES[0]} unless set, at δ = {DELTA:g}."),
    group=partition_of,
)


def by_partition(results: Results[Cell]) -> list[Rows]:
    return grouped(rows_of(results), partition_of)


def named(axis: "Axes", cell: Cell) -> None:
    size = f"{cell.clients} clients of {cell.classes} shards, {cell.rounds} rounds"
    axis.set_title(f"for {cell.dataset},\n{size}", fontsize=9)


image_panels = partial(panels, of=by_partition, shared=False, across=2, above=dataset_line)
LOOKS = looks(("CENTAUR", "PPSGD", "PMTL-ft", "DP-FedAvg-fb"))


@image_panels("", columns=2)
def plot_methods(axis: "Axes", rows: Rows) -> None:
    """The methods of a partition; hollow where nothing is private."""
    names = list(dict.fromkeys(row.cell.method for row in rows))
    for private, text in ((True, "private"), (False, "not private, or alone")):
        mine = [row for row in rows if row.cell.private == private]
        style = {"fmt": "o"} if private else {"fmt": "s", "fillstyle": "none"}
        if mine:
            dots(axis, names, {row.cell.method: last_round(row) for row in mine}, text, color="black", **style)
    axis.set_xlabel("accuracy of the last round (%)")
    named(axis, rows[0].cell)


@image_panels("accuracy of the last round (%)")
def plot_epsilons(axis: "Axes", rows: Rows) -> None:
    """Figure 1: against ε."""
    epsilons = sorted({row.cell.epsilon for row in rows if row.cell.private})
    for group in grouped([row for row in rows if row.cell.private], lambda row: row.cell.method):
        method, by_epsilon = group[0].cell.method, sorted(group, key=lambda row: row.cell.epsilon)
        curve(axis, by_epsilon, "epsilon", last_round, method, color=LOOKS[method]["color"])
    for row in rows:
        if row.cell.method == ALONE:
            means(axis, [row] * len(epsilons), epsilons, last_round, ALONE, "k--")
        elif row.cell.method == "CENTAUR" and not row.cell.private:
            means(axis, [row] * len(epsilons), epsilons, last_round, "CENTAUR, not private", ":", color="C0")
    axis.set_xlabel(f"ε ({rows[0].cell.adjacency}, δ = {DELTA:g})")
    sizes_below(axis, epsilons)
    named(axis, rows[0].cell)


@image_panels("accuracy (%)")
def plot_training(axis: "Axes", rows: Rows) -> None:
    """Figure 3: against ε as rounds go by."""
    for row in rows:
        if row.cell.private:
            estimates = map(Estimate.of, 100 * row["curve"].T)
            spent, colour = row[row.cell.adjacency][0], LOOKS[row.cell.method]["color"]
            points(axis, spent, estimates, row.cell.method, markersize=2, capsize=0, color=colour)
        elif row.cell.method == ALONE:
            axis.axhline(
                last_round(row).value, color="black", linestyle="--", linewidth=1, label=f"{ALONE}, at the end"
            )
    axis.set_xlabel(f"ε so far ({rows[0].cell.adjacency}, δ = {DELTA:g})")
    named(axis, rows[0].cell)
