"""FLUTE, Figure 10: CIFAR-100, 100 clients, 10 classes each."""

from ._flute_curves import curves


EXPERIMENT = curves(10)
