"""CENTAUR, Figure 3: accuracy against the ε that is spent so far."""

from ._centaur_network_report import ACCURACIES, DURING, plot_training
from ._centaur_networks import CIFAR10, LARGE, SMALL, TINY, centaur_networks, runs
from ._experiment import Preset


EXPERIMENT = centaur_networks(
    name="centaur-fig3",
    summary="CENTAUR, Figure 3: accuracy of private networks on images as rounds spend ε",
    presets={
        "smoke": TINY,
        "laptop": Preset(
            [
                *runs([(CIFAR10, 100, 2), (CIFAR10, 100, 5)], **(SMALL | {"rounds": 100, "every": 5})),
                *runs([(CIFAR10, 100, 5)], **(LARGE | {"rounds": 20})),
            ],
            3,
        ),
        "paper": Preset(runs([(CIFAR10, 1000, 2), (CIFAR10, 1000, 5)], rounds=400), 3),
    },
    tables=(ACCURACIES, DURING),
    plot=plot_training,
)
