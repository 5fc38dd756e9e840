"""FLUTE, Figure 9: CIFAR-100, 100 clients, 5 classes each."""

from ._flute_curves import curves


EXPERIMENT = curves(9)
