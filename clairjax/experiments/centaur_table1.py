"""CENTAUR, Table 1: accuracy of private networks on images at ε = 1."""

from ._centaur_network_report import ACCURACIES, DIFFERENCES, plot_methods
from ._centaur_networks import CIFAR10, CIFAR100, EMNIST, LARGE, SMALL, TINY, centaur_networks, runs
from ._experiment import Preset


CIFAR = [(CIFAR10, 500, 5), (CIFAR10, 1000, 2), (CIFAR10, 1000, 5)]
EXPERIMENT = centaur_networks(
    name="centaur-table1",
    summary="CENTAUR, Table 1: accuracy of private networks on images at ε = 1, beside the same without privacy",
    presets={
        "smoke": TINY,
        "laptop": Preset(
            [
                *runs([(CIFAR10, 50, 5), (CIFAR10, 100, 2), (CIFAR10, 100, 5)], **SMALL),
                *runs([(CIFAR100, 200, 5)], **SMALL),
                *runs([(CIFAR10, 100, 5), (EMNIST, 100, 5)], **LARGE),
            ],
            3,
        ),
        "paper": Preset(
            [
                *runs(CIFAR),
                *runs([(CIFAR100, 1000, 5)], rounds=100),
                *runs([(EMNIST, 1000, 5), (EMNIST, 2000, 5)], rounds=40),
            ],
            3,
        ),
    },
    tables=(ACCURACIES, DIFFERENCES),
    plot=plot_methods,
)
