"""FLUTE, Figure 12: CIFAR-100, 100 clients, 40 classes each."""

from ._flute_curves import curves


EXPERIMENT = curves(12)
