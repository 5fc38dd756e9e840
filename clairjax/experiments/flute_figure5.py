"""FLUTE, Figure 5: CIFAR-10, 50 clients, 2 classes each."""

from ._flute_curves import curves


EXPERIMENT = curves(5)
