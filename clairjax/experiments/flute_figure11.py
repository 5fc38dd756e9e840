"""FLUTE, Figure 11: CIFAR-100, 100 clients, 20 classes each."""

from ._flute_curves import curves


EXPERIMENT = curves(11)
