"""CLAIR, Table 3: accuracy of fine-tuned copying Transformers."""

from ._copying_experiment import REGIMES, Cell, copying, printed, small
from ._experiment import Preset, grid


WHERE = {"regime": REGIMES, "contamination": ("shifted",)}  # of those that copy, what does most damage to FedAvg
EXPERIMENT = copying(
    name="clair-table3",
    summary="CLAIR, Table 3: accuracy of fine-tuned copying Transformers, aggregated five ways",
    presets={
        "smoke": Preset(grid(small, **WHERE), 2),
        "laptop": Preset(grid(Cell, **WHERE), 12),
        "paper": Preset(grid(printed, **WHERE), 100),
    },
)
