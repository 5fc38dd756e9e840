"""CENTAUR, Table 3: the same as Table 1 with twice the rounds."""

from ._centaur_network_report import ACCURACIES, DIFFERENCES, plot_methods
from ._centaur_networks import CIFAR10, LARGE, SMALL, TINY, centaur_networks, runs
from ._experiment import Preset


WHERE = [(CIFAR10, 100, 2), (CIFAR10, 100, 5)]
EXPERIMENT = centaur_networks(
    name="centaur-table3",
    summary="CENTAUR, Table 3: private networks at ε = 1 with twice the rounds",
    presets={
        "smoke": TINY,
        "laptop": Preset([*runs(WHERE, **(SMALL | {"rounds": 100})), *runs(WHERE[1:], **(LARGE | {"rounds": 20}))], 3),
        "paper": Preset(runs([(CIFAR10, 1000, 2), (CIFAR10, 1000, 5)], rounds=400), 3),
    },
    tables=(ACCURACIES, DIFFERENCES),
    plot=plot_methods,
)
