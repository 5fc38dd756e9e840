"""FLUTE, Figure 6: CIFAR-10, 50 clients, 5 classes each."""

from ._flute_curves import curves


EXPERIMENT = curves(6)
