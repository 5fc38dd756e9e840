"""FLUTE, Table 1 and Figures 5 to 12: the paper's numbers, tables and plots."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..sweep import Estimate, Results
from ._figure import dots, legend_below, looks, new_figure
from ._flute_images import PARTITIONS, Cell
from ._images import dataset_line, dataset_notes
from ._table import Column, Row, Tabulated, grouped, rows_of


if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[Row[Cell]]
OURS = ("FLUTE", "FLUTE*")
TUNED = "FedAvg-FT"  # what FedAvg's clients use after tuning; no training of its own
LOOKS = looks(("FLUTE", "FLUTE*", "FedRep", "FedRep*", "FedPer", "FedAvg", "Fed-LG", "FedRoD", "FedCP"))
FEW = 20  # test images of a client, below which its own accuracy says little


class Printed(NamedTuple):
    """Accuracies in per cent in the order of the partitions, and what the paper prints behind ±."""

    values: tuple[float, ...]
    spreads: tuple[float, ...]

    def at(self, cell: Cell) -> tuple[float, float] | tuple[None, None]:
        where = (cell.dataset, cell.clients, cell.classes)
        if where not in PARTITIONS:
            return None, None
        place = PARTITIONS.index(where)
        return self.values[place], self.spreads[place]


PAPER = {  # Table 1
    "FedAvg": Printed(
        (34.460, 47.217, 41.584, 51.876, 20.212, 31.533, 34.659, 32.902),
        (1.083, 0.395, 0.433, 0.675, 0.574, 0.519, 0.482, 0.195),
    ),
    "FedAvg-FT": Printed(
        (83.996, 71.465, 84.688, 70.884, 78.342, 66.660, 54.464, 44.858),
        (0.948, 0.701, 0.437, 0.697, 0.574, 0.370, 0.178, 0.119),
    ),
    "Fed-LG": Printed(
        (82.724, 61.820, 83.019, 62.957, 72.526, 53.526, 34.445, 22.702),
        (2.137, 0.409, 0.431, 0.895, 0.692, 0.151, 0.375, 0.315),
    ),
    "FedPer": Printed(
        (85.173, 74.015, 86.168, 73.666, 76.001, 67.100, 56.066, 44.689),
        (1.082, 0.724, 0.703, 0.281, 0.454, 0.229, 0.389, 0.411),
    ),
    "FedRep": Printed(
        (86.133, 71.737, 86.685, 73.808, 78.621, 68.530, 56.360, 43.061),
        (0.775, 0.296, 0.766, 0.561, 0.159, 0.255, 0.245, 0.476),
    ),
    "FedRep*": Printed(
        (87.320, 75.766, 87.177, 75.296, 78.892, 68.630, 56.654, 42.025),
        (1.485, 0.220, 0.489, 0.505, 0.410, 0.705, 0.609, 0.404),
    ),
    "FedRoD": Printed(
        (79.476, 68.728, 83.296, 72.116, 74.299, 66.462, 57.280, 48.120),
        (2.966, 1.750, 1.545, 0.788, 0.338, 0.284, 0.105, 0.186),
    ),
    "FedCP": Printed(
        (85.361, 71.603, 84.798, 71.344, 74.266, 66.426, 57.067, 43.638),
        (1.605, 0.885, 0.489, 0.587, 0.559, 0.372, 0.483, 0.415),
    ),
    "FLUTE": Printed(
        (87.012, 76.478, 86.128, 76.918, 77.750, 70.598, 59.243, 48.169),
        (0.453, 0.484, 1.007, 0.712, 0.615, 0.282, 0.334, 0.597),
    ),
    "FLUTE*": Printed(
        (87.713, 76.543, 88.567, 78.255, 79.560, 70.844, 59.714, 48.170),
        (1.365, 0.921, 0.457, 0.688, 0.627, 0.419, 0.448, 0.440),
    ),
}


def printed(cell: Cell, method: str) -> float | None:
    """The paper's accuracy, where it has this partition."""
    return PAPER[method].at(cell)[0]


def method_rows(results: Results[Cell]) -> Rows:
    """A row for each method, and for FedAvg another behind tuning; the method is the row's part."""
    rows: Rows = []
    for row in rows_of(results):
        rows.append(Row(row.cell, row.outputs, row.cell.method))
        if row.cell.method == "FedAvg":
            rows.append(Row(row.cell, row.outputs, TUNED))
    return rows


def accuracy(row: Row[Cell]) -> np.ndarray:
    """In per cent, one number a replicate: of what a client uses at the end."""
    return 100 * (row["tuned"] if row.part != "FedAvg" and "tuned" in row.outputs else row["accuracy"])


def mean_accuracy(row: Row[Cell]) -> Estimate:
    return Estimate.of(accuracy(row))


def before_tuning(row: Row[Cell]) -> Estimate | None:
    """After the last round, where something is tuned behind it."""
    return Estimate.of(100 * row["accuracy"]) if row.part != "FedAvg" and "tuned" in row.outputs else None


def worst_tenth(row: Row[Cell]) -> Estimate | None:
    """Mean accuracy of the tenth of the clients with the lowest, where clients have test images enough."""
    if row.part == "FedAvg" or not row["tests"].size or row["tests"].mean() < FEW:
        return None
    each = 100 * row["right"] / np.maximum(row["tests"], 1)
    return Estimate.of(np.sort(each, axis=1)[:, : max(1, each.shape[1] // 10)].mean(1))


def last(row: Row[Cell], name: str) -> Estimate | None:
    return None if row.part == TUNED else Estimate.of(row[name][:, -1])


def partition_of(row: Row[Cell]) -> tuple[str, int, int]:
    return row.cell.dataset, row.cell.clients, row.cell.classes


def partitions(results: Results[Cell]) -> list[Rows]:
    return grouped(method_rows(results), partition_of)


def others(rows: Rows) -> Rows:
    return [row for row in rows if row.part not in OURS]


def best_other(rows: Rows) -> str | None:
    best = max(others(rows), key=lambda row: mean_accuracy(row).value, default=None)
    return None if best is None else best.part


def difference(rows: Rows, one: str) -> Estimate | None:
    """A method against the best of those that are not FLUTE, paired over replicates."""
    found = {row.part: accuracy(row) for row in rows}
    first, second = found.get(one), found.get(best_other(rows))
    if first is None or second is None or first.shape != second.shape:
        return None
    return Estimate.of(first - second)


def printed_difference(rows: Rows, one: str) -> float | None:
    """The same of the paper, among the methods of these rows."""
    cell = rows[0].cell
    first, paper = printed(cell, one), [printed(cell, row.part) for row in others(rows)]
    if first is None or one not in {row.part for row in rows} or not paper:
        return None
    return first - max(value for value in paper if value is not None)


def order(rows: Rows) -> str:
    """Methods from best to worst."""
    return " > ".join(row.part for row in sorted(rows, key=lambda row: -mean_accuracy(row).value))


def printed_order(rows: Rows) -> str | None:
    if printed(rows[0].cell, rows[0].part) is None:
        return None
    return " > ".join(row.part for row in sorted(rows, key=lambda row: -(printed(row.cell, row.part) or 0)))


def one_each(results: Results[Cell]) -> list[Row[Cell]]:
    """A row for each partition, whose part is its methods' rows."""
    return [Row(rows[0].cell, {}, rows) for rows in partitions(results)]


def of_part(row: Row[Cell], of: Callable[[Rows], object]) -> object:
    return of(row.part)


def settings(results: Results[Cell]) -> str:
    cells = results.cells
    told = lambda values: " or ".join(f"{value:g}" for value in dict.fromkeys(values))
    augmented = "crops and flips of colour images" if any(cell.augment for cell in cells) else "no augmentation"
    return (
        f"Ours: {told(cell.rounds for cell in cells)} rounds of {told(100 * cell.share for cell in cells)} % of the "
        f"clients, SGD of rate {told(cell.rate for cell in cells)}, {augmented}. The paper: 100 rounds of 10 %, rate "
        f"0.01, crops and flips. Mean of {results.replicates} seeds ±standard error; all methods of a partition have "
        "the clients and the first model of the seed."
    )


WHERE = (Column("paper's data", "dataset"), Column("clients"), Column("classes"))
PRINTED = (
    Column("paper", lambda row: printed(row.cell, row.part), 2),
    Column("paper ±", lambda row: PAPER[row.part].at(row.cell)[1], 2),
)
COLLAPSE = (
    Column("Global NC2", partial(last, name="global_nc2")),
    Column("Local NC2", partial(last, name="local_nc2")),
)
READ = (
    "Accuracy: on a client's test images of its own classes, weighted by their number. Heads are tuned for 10 epochs "
    "at the end, as in the authors' code; FedAvg, Fed-LG, FedRoD and FedCP are as the last round left them.",
)
METHODS_TABLE = Tabulated[Cell](
    "FLUTE, Table 1: accuracy (%) of each client's own model",
    (
        *WHERE,
        Column("method", lambda row: row.part),
        Column("accuracy", mean_accuracy, 2),
        *PRINTED,
        Column("before tuning", before_tuning, 2),
        Column("worst tenth", worst_tenth, 1),
        *COLLAPSE,
    ),
    (dataset_notes, settings, *READ, "The paper's columns are those of its own data sets. It does not say what ± is."),
    method_rows,
    partition_of,
)
DIFFERENCES = Tabulated[Cell](
    "FLUTE against the best other method of each partition: points",
    (
        *WHERE,
        Column("best other", partial(of_part, of=best_other)),
        *(Column(f"{one} − it", partial(of_part, of=partial(difference, one=one)), 2) for one in OURS),
        *(
            Column(f"{one} − best, paper", partial(of_part, of=partial(printed_difference, one=one)), 2)
            for one in OURS
        ),
    ),
    ("Paired over seeds. The best other is chosen on the same seeds, which favours it.", dataset_notes),
    one_each,
)
ORDERS = Tabulated[Cell](
    "From best to worst",
    (
        *WHERE,
        Column("ours", partial(of_part, of=order)),
        Column("the paper's", partial(of_part, of=printed_order)),
    ),
    (dataset_notes,),
    one_each,
)


def plot_accuracies(results: Results[Cell]) -> "Figure":
    """A panel a partition: each method's accuracy, and the paper's."""
    groups = partitions(results)
    figure, axes = new_figure(len(groups), 2.4, 3.2, across=4)
    for axis, rows in zip(axes, groups, strict=True):
        cell, names = rows[0].cell, [row.part for row in rows]
        dots(axis, names, {row.part: mean_accuracy(row) for row in rows}, "ours")
        if partition_of(rows[0]) in PARTITIONS:
            paper = {name: Estimate(printed(cell, name) or np.nan, np.nan) for name in names}
            dots(axis, names, paper, "the paper's, on its own data", fmt="kx", markersize=6)
        axis.set_title(f"for {cell.dataset},\n{cell.clients} clients, {cell.classes} classes", fontsize=9)
        axis.set_xlabel("accuracy (%)")
    figure.suptitle(dataset_line(results), fontsize=9)
    return legend_below(figure, axes[0])
