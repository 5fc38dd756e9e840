"""FLUTE, Figure 3: error against rounds beside FedRep's on C.1's model."""

from ._experiment import Preset
from ._flute_report import synthetic
from ._flute_tasks import tasks


EXPERIMENT = synthetic(
    name="flute-fig3",
    summary="FLUTE, Figure 3: the same on C.1's model, over k, M and N",
    presets={
        "smoke": Preset(tasks((15,), (12,), (2, 4), 200, "spectrum"), 3),
        "laptop": Preset(tasks((15, 30), (12, 20), (2, 4, 6, 8), 2000, "spectrum"), 40),
        "paper": Preset(tasks((15, 30), (12, 20), (2, 4, 6, 8), 2000, "spectrum"), 100),
    },
)
