"""What the contaminated client of CLAIR's section 8 may have been trained on: the paper does not say."""

from ._copying_experiment import REGIMES, Cell, copying, printed, small
from ._experiment import Preset, grid


KINDS = ("shifted", "random", "clean", "reversed")
EXPERIMENT = copying(
    name="clair-contaminations",
    summary="What the contaminated client of CLAIR's section 8 may have been trained on",
    presets={
        "smoke": Preset(grid(small, regime=REGIMES[:1], contamination=KINDS[:2]), 2),
        "laptop": Preset(grid(Cell, regime=REGIMES, contamination=KINDS), 3),
        "paper": Preset(grid(printed, regime=REGIMES, contamination=KINDS), 20),
    },
)
