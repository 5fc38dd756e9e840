"""FLUTE, Figure 8: CIFAR-10, 100 clients, 5 classes each. Departs from print: the caption says 50, as Figure 6's."""

from ._flute_curves import curves


EXPERIMENT = curves(8)
