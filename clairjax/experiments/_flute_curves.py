"""FLUTE, Figures 5 to 12: accuracy and neural collapse of the heads over rounds, a figure a partition of Table 1."""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from ..sweep import Estimate, Results
from ._experiment import Preset
from ._figure import band, legend_below, new_figure
from ._flute_image_report import LOOKS, METHODS_TABLE, WHERE, of_part, one_each
from ._flute_images import LARGE, PARTITIONS, SMALL, Cell, flute_images, runs, tiny
from ._image_experiment import ImageExperiment
from ._images import dataset_line, dataset_notes
from ._table import Column, Row, Tabulated, rows_of


if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST = 5  # the figure of the first partition
EVERY = 5  # rounds between evaluations
PANELS = {"curve": "accuracy before tuning (%)", "global_nc2": "Global NC2", "local_nc2": "Averaged Local NC2"}


def gap(rows: list[Row[Cell]], name: str) -> Estimate | None:
    """FedRep* above FLUTE* after the last round, paired."""
    last = {row.part: row[name][:, -1] for row in rows}
    if not {"FedRep*", "FLUTE*"} <= last.keys() or last["FedRep*"].shape != last["FLUTE*"].shape:
        return None
    return Estimate.of(last["FedRep*"] - last["FLUTE*"])


def plot(results: Results[Cell]) -> "Figure":
    """Accuracy, Global NC2 and Averaged Local NC2 over rounds."""
    figure, axes = new_figure(len(PANELS), shared=False)
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        for row in rows_of(results):
            values = row[name] * (100 if name == "curve" else 1)
            band(axis, row.cell.evaluated, values, row.cell.method, **LOOKS[row.cell.method])
        axis.set(xlabel="round", ylabel=title)
    cell = results.cells[0]
    figure.suptitle(f"{dataset_line(results)}, {cell.clients} clients with {cell.classes} classes", fontsize=9)
    return legend_below(figure, axes[0], columns=5)


GAPS = Tabulated[Cell](
    "Neural collapse of the heads: FedRep* above FLUTE* after the last round",
    (
        *WHERE,
        Column("Global NC2", partial(of_part, of=partial(gap, name="global_nc2"))),
        Column("Averaged Local NC2", partial(of_part, of=partial(gap, name="local_nc2"))),
    ),
    (
        "In Figures 5 and 7 the paper sees a much larger gap in the second, and concludes that FLUTE* is nearer the "
        "global optimum. It prints no numbers, and no sign.",
        dataset_notes,
    ),
    one_each,
)


def curves(number: int) -> ImageExperiment[Cell]:
    """The experiment of one of these figures."""
    where = PARTITIONS[number - FIRST]
    dataset, clients, classes = where
    title = f"FLUTE, Figure {number}: {dataset}, {clients} clients with {classes} classes"
    return flute_images(
        name=f"flute-fig{number}",
        summary=f"{title}: accuracy and neural collapse over rounds",
        presets={
            "smoke": tiny((dataset, 6, 2), "FedRep", "FLUTE"),  # one program for all of these figures
            "laptop": Preset([cell for size in (SMALL, LARGE) for cell in runs([where], every=EVERY, **size)], 3),
            "paper": Preset(runs([where], every=EVERY), 5),
        },
        tables=(dataclasses.replace(METHODS_TABLE, title=f"{title}: accuracy (%) of each client's own model"), GAPS),
        plot=plot,
    )
