"""CENTAUR, 6 and B: what Tables 1 and 3 and Figures 1 and 3 share: cells, methods, and one private training."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from .. import privacy
from .._status import Status
from .._typing import Key
from ..data import Shards
from ..federated import PMTL, PPSGD, Centaur, DPFedAvg, Local, Privacy, StandAlone, Strategy, crop_and_flip, sgd, train
from ..models import lenet, mlp
from ._experiment import Preset
from ._image_experiment import ImageExperiment
from ._images import Images, device


CIFAR10, CIFAR100, EMNIST = "CIFAR-10", "CIFAR-100", "EMNIST"
Adjacency = Literal["add-or-remove-one", "replace-one"]
DELTA = 1e-5
VALIDATION = 0.1
ADJACENCIES: tuple[Adjacency, ...] = ("add-or-remove-one", "replace-one")
OPEN = 1e6  # a clip norm that nothing reaches


class Cell(NamedTuple):
    """A method on clients with `classes` shards each, whose rounds together have `epsilon`; infinite: no privacy.

    `clip` is of a client's whole update. `most`: training samples of a client. `large`: whether for images of the
    paper's size; None: any.
    """

    dataset: str
    clients: int
    classes: int
    method: str
    rounds: int = 200
    epsilon: float = 1.0
    clip: float = 0.01
    adjacency: Adjacency = "add-or-remove-one"
    rate: float = 0.01
    most: int | None = None
    every: int = 10  # rounds between evaluations
    large: bool | None = None

    @property
    def evaluated(self) -> np.ndarray:
        """After which rounds."""
        return np.unique([*range(0, self.rounds, self.every), self.rounds])

    @property
    def private(self) -> bool:
        return self.method != ALONE and math.isfinite(self.epsilon)


class Setting(NamedTuple):
    """What the methods are made of: the release, steps on all of a model, and on heads, the epochs and λ of PMTL."""

    privacy: Privacy
    local: Local
    head: Local
    epochs: int
    pull: float


ALONE = "Stand-alone"
METHODS: dict[str, Callable[[Setting], Strategy]] = {
    "DP-FedAvg-fb": lambda s: DPFedAvg(s.privacy, s.local, s.epochs),
    "PMTL-ft": lambda s: PMTL(s.privacy, s.local, pull=s.pull),
    "PPSGD": lambda s: PPSGD(s.privacy, s.local, s.epochs, Local(sgd(0.1), batch=s.local.batch)),
    "CENTAUR": lambda s: Centaur(s.privacy, s.local, s.epochs, head_local=s.head),
}


Clips = Callable[[str, str, float], float]  # of data set, method and ε


def table_1(dataset: str, method: str, epsilon: float) -> float:
    """The paper's, where it says so."""
    return {CIFAR10: 0.01, CIFAR100: 0.02, EMNIST: 0.25}[dataset]


def of_digits(dataset: str, method: str, epsilon: float) -> float:
    """The best of 0.003, 0.01, 0.03, 0.1, 0.3 and 1 for 100 clients of 5 shards at ε = 1, on draws no table has."""
    return 0.03 if method in ("CENTAUR", "PMTL-ft") else 0.1


def runs(
    partitions: Iterable[tuple[str, int, int]],
    epsilons: Iterable[float] = (1.0, math.inf),
    clips: Clips = table_1,
    methods: Iterable[str] = tuple(METHODS),
    **fields: Any,
) -> list[Cell]:
    """Cells of each partition: training alone, and each method at each ε."""
    epsilons, methods, found = tuple(epsilons), tuple(methods), []
    for where in partitions:
        found.append(Cell(*where, ALONE, epsilon=math.inf, **fields))
        for method in methods:
            for epsilon in epsilons:
                clip = OPEN if math.isinf(epsilon) else clips(where[0], method, epsilon)
                found.append(Cell(*where, method, epsilon=epsilon, clip=clip, **fields))
    return found


# What a laptop can hold. Digits have few images a client, hence a larger rate.
SMALL: dict[str, Any] = {"rounds": 50, "rate": 0.1, "large": False, "clips": of_digits}
LARGE: dict[str, Any] = {"rounds": 10, "most": 90, "every": 5, "large": True}
_tiny: dict[str, Any] = {"rounds": 4, "rate": 0.1, "every": 2, "clips": of_digits}
TINY = Preset(runs([(CIFAR10, 10, 2)], (1.0,), methods=("DP-FedAvg-fb", "CENTAUR"), **_tiny), 1)
TINY_EPSILONS = Preset(runs([(CIFAR10, 10, 2)], (0.5, 4.0), methods=("CENTAUR",), **_tiny), 1)


def strategy_of(cell: Cell, images: Images) -> Strategy:
    """As in the authors' code: momentum 0.9, all samples in a step, or 100 where clients have more."""
    steps = sgd(cell.rate, momentum=0.9, decay=1e-4)
    if cell.method == ALONE:
        return StandAlone(Local(sgd(cell.rate), batch=10))
    many = cell.dataset == EMNIST and not images.small
    local = Local(steps, batch=100 if many else None)
    head = Local(steps, batch=local.batch, augment=crop_and_flip) if images.shape[2] > 1 else local
    release = (
        Privacy(cell.clip, epsilon=cell.epsilon, delta=DELTA, adjacency=cell.adjacency)
        if cell.private
        else Privacy(OPEN, noise_multiplier=0.0)
    )
    return METHODS[cell.method](Setting(release, local, head, 2 if many else 1, 0.1 if many else 1.0))


def replicate(key: Key, cell: Cell, images: Images, folder: Path | None) -> dict[str, Any]:
    """Accuracies over rounds, of the last round, and of the one with the best validation accuracy; and ε."""
    deal_key, model_key, train_key = jax.random.split(key, 3)
    clients = images.deal(
        Shards(cell.classes), cell.clients, key=deal_key, validation=VALIDATION, most=cell.most, whole_classes=True
    )
    run = train(
        images.model(mlp if cell.dataset == EMNIST else lenet, key=model_key),
        strategy_of(cell, images),
        clients,
        rounds=cell.rounds,
        key=train_key,
        evaluate_every=cell.every,
        out=folder,
        devices=(device(),),
        progress=False,
    )
    return {
        "curve": run.accuracies,
        "accuracy": run.accuracies[-1],
        "best": run.accuracies[run.best],
        "best_round": run.rounds[run.best],
        "failed": run.status is not Status.converged,
        **spent(cell),
    }


def spent(cell: Cell) -> Mapping[str, np.ndarray]:
    """ε after each evaluated round, under both adjacencies; of private cells alone."""
    if not cell.private:
        return {}
    rounds = tuple(cell.evaluated.tolist())
    return {name: np.array(_spent(cell.epsilon, rounds, cell.adjacency, name)) for name in ADJACENCIES}


@functools.cache
def _spent(epsilon: float, rounds: tuple[int, ...], asked: Adjacency, told: Adjacency) -> list[float]:
    sigma = privacy.noise_multiplier(epsilon, rounds[-1], delta=DELTA, adjacency=asked)
    return [privacy.epsilon(sigma, each, delta=DELTA, adjacency=told) if each else 0.0 for each in rounds]


centaur_networks = functools.partial(
    ImageExperiment[Cell],
    replicate=replicate,
    alike=lambda cell: Cell(cell.dataset, cell.clients, cell.classes, method="", most=cell.most),
)
