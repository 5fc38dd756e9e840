"""The papers' tables and figures, by name. `clairjax reproduce NAME` runs one; `EXPERIMENTS[name].run()` does too."""

from . import (
    centaur_linear,
    centaur_settings,
    centaur_tradeoff,
    clair_constants,
    clair_figure1,
    clair_table1,
    clair_table2,
)
from ._experiment import Experiment as Experiment
from ._table import Table as Table


EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        clair_table1,
        clair_table2,
        clair_figure1,
        clair_constants,
        centaur_linear,
        centaur_settings,
        centaur_tradeoff,
    )
}
