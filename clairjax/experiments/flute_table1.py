"""FLUTE, Table 1: accuracy of personalised models on CIFAR-10 and CIFAR-100, or on digits."""

from ._experiment import Preset
from ._flute_image_report import DIFFERENCES, METHODS_TABLE, ORDERS, plot_accuracies
from ._flute_images import CIFAR10, LARGE, PARTITIONS, SMALL, flute_images, runs, tiny


EXPERIMENT = flute_images(
    name="flute-table1",
    summary="FLUTE, Table 1: accuracy of ten personalised methods on images, over clients and their classes",
    presets={
        "smoke": tiny((CIFAR10, 6, 2), "FedAvg", "FedRep", "FLUTE"),
        "laptop": Preset([*runs(PARTITIONS, **SMALL), *runs((PARTITIONS[0], PARTITIONS[4]), **LARGE)], 3),
        "paper": Preset(runs(PARTITIONS), 5),
    },
    tables=(METHODS_TABLE, DIFFERENCES, ORDERS),
    plot=plot_accuracies,
)
