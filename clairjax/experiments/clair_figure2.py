"""CLAIR, Figure 2: each client's accuracy where all benign clients share a task."""

from ._copying_experiment import REGIMES, Cell, copying, printed, small
from ._experiment import Preset, grid


WHERE = {"regime": REGIMES[:1], "contamination": ("shifted",)}
EXPERIMENT = copying(
    name="clair-fig2",
    summary="CLAIR, Figure 2: each client's accuracy where all benign clients share a task",
    presets={
        "smoke": Preset(grid(small, **WHERE), 2),
        "laptop": Preset(grid(Cell, **WHERE), 20),
        "paper": Preset(grid(printed, **WHERE), 100),
    },
)
