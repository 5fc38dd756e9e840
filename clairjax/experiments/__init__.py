"""The papers' tables and figures, by name. `clairjax reproduce NAME` runs one; `EXPERIMENTS[name].run()` does too."""

from . import (
    centaur_linear,
    centaur_settings,
    centaur_tradeoff,
    clair_constants,
    clair_copying,
    clair_figure1,
    clair_table1,
    clair_table2,
    flute_figure4,
    flute_synthetic,
    shared_or_local,
)
from ._experiment import Experiment as Experiment
from ._table import Table as Table


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        clair_table1.EXPERIMENT,
        clair_table2.EXPERIMENT,
        clair_figure1.EXPERIMENT,
        clair_constants.EXPERIMENT,
        clair_copying.TABLE_3,
        clair_copying.FIGURE_2,
        clair_copying.FIGURE_3,
        clair_copying.KINDS,
        flute_synthetic.FIGURE_1,
        flute_synthetic.FIGURE_3,
        flute_figure4.EXPERIMENT,
        shared_or_local.EXPERIMENT,
        centaur_linear.EXPERIMENT,
        centaur_settings.EXPERIMENT,
        centaur_tradeoff.EXPERIMENT,
    )
}
