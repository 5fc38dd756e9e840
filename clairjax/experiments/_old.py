"""Interim."""

from ..sweep import Estimate
from ._experiment import Experiment, Preset
from ._figure import band as band
from ._figure import legend_below as legend_below
from ._figure import new_figure as new_figure
from ._replicates import fit as fit
from ._replicates import kept as kept
from ._replicates import status_number as status_number


mean, ratio = Estimate.of, Estimate.ratio


def experiment(*, presets, cells, report, **others):
    return Experiment(
        presets={name: Preset(cells(size), size.replicates) for name, size in presets.items()},
        tables=[report],
        **others,
    )
