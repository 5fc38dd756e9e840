"""FLUTE, Figure 7: CIFAR-10, 100 clients, 2 classes each."""

from ._flute_curves import curves


EXPERIMENT = curves(7)
