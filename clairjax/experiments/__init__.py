"""Experiments: the papers' tables and figures by name, and what an experiment of one's own is made of.

`clairjax reproduce NAME` runs one of `EXPERIMENTS`, and `clairjax reproduce path/to/mine.py` that of a file. From
Python, `EXPERIMENTS[name].run()` and `load(path).run()` do.
"""

from typing import TYPE_CHECKING

from ._experiment import Experiment as Experiment
from ._experiment import Preset as Preset
from ._experiment import grid as grid
from ._files import load as load
from ._table import Column as Column
from ._table import Row as Row
from ._table import Table as Table
from ._table import Tabulated as Tabulated
from ._table import rows_of as rows_of


if TYPE_CHECKING:
    EXPERIMENTS: dict[str, Experiment]
else:

    def __getattr__(name):
        """`EXPERIMENTS`, imported when it is asked for: who writes an experiment waits for no other."""
        if name != "EXPERIMENTS":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ._files import own

        return globals().setdefault(name, own())
