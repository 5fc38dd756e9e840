"""CENTAUR, Figure 1: accuracy against ε."""

import math

from ._centaur_network_report import ACCURACIES, DIFFERENCES, plot_epsilons
from ._centaur_networks import CIFAR10, LARGE, SMALL, TINY_EPSILONS, centaur_networks, runs
from ._experiment import Preset


EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, math.inf)
CLIPS = {  # Table 2, by method
    "CENTAUR": (0.01, 0.01, 0.01, 0.04, 0.04),
    "DP-FedAvg-fb": (0.01, 0.01, 0.04, 0.06, 0.06),
    "PPSGD": (0.01, 0.01, 0.01, 0.04, 0.04),
    "PMTL-ft": (0.01, 0.04, 0.04, 0.04, 0.06),
}


def table_2(dataset: str, method: str, epsilon: float) -> float:
    return CLIPS[method][EPSILONS.index(epsilon)]


EXPERIMENT = centaur_networks(
    name="centaur-fig1",
    summary="CENTAUR, Figure 1: accuracy of private networks on images against ε",
    presets={
        "smoke": TINY_EPSILONS,
        "laptop": Preset(
            [
                *runs([(CIFAR10, 100, 5)], EPSILONS, **SMALL),
                *runs([(CIFAR10, 100, 5)], (0.5, 1.0, 4.0, math.inf), **LARGE),
            ],
            3,
        ),
        "paper": Preset(runs([(CIFAR10, 500, 5)], EPSILONS, table_2), 3),
    },
    tables=(ACCURACIES, DIFFERENCES),
    plot=plot_epsilons,
)
