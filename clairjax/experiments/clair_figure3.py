"""CLAIR, Figure 3: each client's accuracy where benign clients differ."""

from ._copying_experiment import REGIMES, Cell, copying, printed, small
from ._experiment import Preset, grid


WHERE = {"regime": REGIMES[1:], "contamination": ("shifted",)}
EXPERIMENT = copying(
    name="clair-fig3",
    summary="CLAIR, Figure 3: each client's accuracy where benign clients differ",
    presets={
        "smoke": Preset(grid(small, **WHERE), 2),
        "laptop": Preset(grid(Cell, **WHERE), 20),
        "paper": Preset(grid(printed, **WHERE), 100),
    },
)
