"""FLUTE, Figure 1: error against rounds beside FedRep's on 7.1's model."""

from ._experiment import Preset
from ._flute_report import synthetic
from ._flute_tasks import tasks


EXPERIMENT = synthetic(
    name="flute-fig1",
    summary="FLUTE, Figure 1: FLUTE, FedRep and FedRep(RI) on 7.1's model, beside references no paper compares with",
    presets={
        "smoke": Preset(tasks((15,), (12,), (2, 4), 200, "normal"), 3),
        "laptop": Preset(tasks((30,), (20,), (2, 4, 6, 8), 2000, "normal"), 40),
        "paper": Preset(tasks((15, 30), (12, 20), (2, 4, 6, 8), 2000, "normal"), 100),
    },
)
