"""The papers' tables and figures, by name. `clairjax reproduce NAME` runs one; `EXPERIMENTS[name].run()` does too."""

from . import (
    centaur_linear,
    centaur_settings,
    centaur_tradeoff,
    clair_constants,
    clair_contaminations,
    clair_figure1,
    clair_figure2,
    clair_figure3,
    clair_table1,
    clair_table2,
    clair_table3,
    flute_figure4,
    flute_synthetic,
    shared_or_local,
)
from ._experiment import Experiment as Experiment
from ._experiment import Preset as Preset
from ._experiment import grid as grid
from ._table import Column as Column
from ._table import Row as Row
from ._table import Table as Table
from ._table import Tabulated as Tabulated


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        clair_table1.EXPERIMENT,
        clair_table2.EXPERIMENT,
        clair_figure1.EXPERIMENT,
        clair_constants.EXPERIMENT,
        clair_table3.EXPERIMENT,
        clair_figure2.EXPERIMENT,
        clair_figure3.EXPERIMENT,
        clair_contaminations.EXPERIMENT,
        flute_synthetic.FIGURE_1,
        flute_synthetic.FIGURE_3,
        flute_figure4.EXPERIMENT,
        shared_or_local.EXPERIMENT,
        centaur_linear.EXPERIMENT,
        centaur_settings.EXPERIMENT,
        centaur_tradeoff.EXPERIMENT,
    )
}
