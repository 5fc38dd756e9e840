"""FLUTE, 7.2: what Table 1 and Figures 5 to 12 share: cells, methods, and one training with all that is measured."""

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._status import Status
from .._typing import Key
from ..data import Shards
from ..federated import (
    FedAvg,
    FedAvgFT,
    FedCP,
    FedPer,
    FedRep,
    FedRoD,
    Flute,
    LGFedAvg,
    Local,
    Strategy,
    collapse_metrics,
    crop_and_flip,
    evaluate,
    sgd,
    train,
)
from ..models import flute_cnn
from ._experiment import Preset
from ._image_experiment import ImageExperiment
from ._images import Images, device


CIFAR10, CIFAR100 = "CIFAR-10", "CIFAR-100"
PARTITIONS = (  # Table 1: clients, and classes of each
    *((CIFAR10, clients, classes) for clients in (50, 100) for classes in (2, 5)),
    *((CIFAR100, 100, classes) for classes in (5, 10, 20, 40)),
)
MOST = 500  # training samples of a client, as in the authors' code
TUNE = 10  # epochs of the head at the end, there too


class Cell(NamedTuple):
    """A method on clients with `classes` shards each. `large`: whether for images of the papers' size; None: any."""

    dataset: str
    clients: int
    classes: int
    method: str
    rounds: int = 100
    share: float = 0.1  # of the clients in a round
    rate: float = 0.01
    augment: bool = True  # colour images alone
    every: int = 10  # rounds between evaluations
    large: bool | None = None

    @property
    def cohort(self) -> int:
        return max(1, round(self.share * self.clients))

    @property
    def evaluated(self) -> np.ndarray:
        """After which rounds."""
        return np.unique([*range(0, self.rounds, self.every), self.rounds])


class Trained(NamedTuple):
    """What trains, and what then goes on from it for a client's own use, if anything does."""

    strategy: Strategy
    tuned: Strategy | None = None


def _averaged(local: Local, joint: int) -> Trained:
    return Trained(FedAvg(local, joint), FedAvgFT(local, joint, tune=TUNE))


def _plain(strategy: Callable[..., Strategy], local: Local, joint: int) -> Trained:
    return Trained(strategy(local, joint))


def _headed(strategy: Callable[..., Strategy], head: int | None, local: Local, joint: int) -> Trained:
    epochs = {} if head is None else {"head_epochs": head or joint}
    found: Any = strategy(local=local, epochs=joint, **epochs)
    return Trained(found, dataclasses.replace(found, tune=TUNE))


# A head that is tuned at the end has `tuned`. 0 head epochs: as many as of the body.
METHODS: dict[str, Callable[[Local, int], Trained]] = {
    "FedAvg": _averaged,
    "Fed-LG": partial(_plain, LGFedAvg),
    "FedPer": partial(_headed, FedPer, None),
    "FedRep": partial(_headed, FedRep, 0),
    "FedRep*": partial(_headed, FedRep, 10),
    "FedRoD": partial(_plain, FedRoD),
    "FedCP": partial(_plain, FedCP),
    "FLUTE": partial(_headed, Flute, None),
    "FLUTE*": partial(_headed, Flute, 10),
}


# What a laptop can hold. Small images have few samples a client, hence a larger rate; both leave out augmentation.
SMALL: dict[str, Any] = {"rate": 0.1, "augment": False, "large": False}
LARGE: dict[str, Any] = {"rounds": 20, "augment": False, "large": True}


def runs(partitions: Iterable[tuple[str, int, int]], methods: Iterable[str] = METHODS, **fields: Any) -> list[Cell]:
    """Cells of each partition with each method."""
    methods = tuple(methods)
    return [Cell(*where, method, **fields) for where in partitions for method in methods]


def tiny(where: tuple[str, int, int], *methods: str) -> Preset:
    """What shows that an experiment runs: compiling is most of it."""
    return Preset(runs([where], methods, rounds=4, every=2, rate=0.1), 1)


def trained(cell: Cell, images: Images) -> Trained:
    """Epochs of body and head together: 1 a round for CIFAR-10, 5 for CIFAR-100."""
    augment = crop_and_flip if cell.augment and images.shape[2] > 1 else None
    local = Local(sgd(cell.rate, momentum=0.5, decay=1e-4), batch=10, augment=augment)
    return METHODS[cell.method](local, 5 if cell.dataset == CIFAR100 else 1)


def heads(method: str, clients: int, server: PyTree, states: PyTree) -> Array:
    """The weights [clients, classes, features] of each client's last layer."""
    if method.startswith("FLUTE"):
        return server.heads.head.weight
    if method == "FedCP":
        return states.weight
    if method in ("FedAvg", "Fed-LG"):
        return jnp.broadcast_to(server.head.weight, (clients, *server.head.weight.shape))
    return server.head.weight + states.weight if method == "FedRoD" else states.head.weight


_collapse = jax.jit(collapse_metrics)


def replicate(key: Key, cell: Cell, images: Images, folder: Path | None) -> dict[str, Any]:
    """Accuracies over rounds, those of tuned heads at the end, each client's, and neural collapse of the heads."""
    deal_key, model_key, train_key = jax.random.split(key, 3)
    clients = images.deal(Shards(cell.classes), cell.clients, key=deal_key, most=MOST)
    held = jnp.asarray(clients.table > 0)
    strategy, tuned = trained(cell, images)

    def measure(server: PyTree, states: PyTree) -> dict[str, Array]:
        at_large, alone = _collapse(heads(cell.method, cell.clients, server, states), held)
        return {"global_nc2": at_large, "local_nc2": alone}

    run = train(
        images.model(flute_cnn, key=model_key),
        strategy,
        clients,
        rounds=cell.rounds,
        key=train_key,
        sampler=cell.cohort,
        evaluate_every=cell.every,
        out=folder,
        devices=(device(),),
        measure=measure,
        progress=False,
    )
    tests = np.asarray(clients.test.counts)
    last = run.client_accuracies[-1]
    outputs = {"curve": run.accuracies, "accuracy": run.accuracies[-1], **run.measures}
    if tuned is not None:
        last = evaluate(run, tuned)
        outputs["tuned"] = np.nansum(last * tests) / tests.sum()
    # Counts, since a client without test samples has no accuracy.
    right = np.rint(np.nan_to_num(last * tests)).astype(np.int32)
    return outputs | {"right": right, "tests": tests, "failed": run.status is not Status.converged}


flute_images = partial(
    ImageExperiment[Cell],
    replicate=replicate,
    alike=lambda cell: cell._replace(method="", every=10),  # Figures 5 to 12 are of Table 1's runs
)
