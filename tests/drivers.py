"""Every public driver in one call, with options that are numbers as numbers: what test_protocol.py runs.

A driver is a public function whose result has a status. Those of samples take `counts`; so do the estimators that
return arrays alone. All problems of a family have one shape, so that each driver compiles once for all tests. What
stands behind a comma is a second program of the same function.
"""

import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import clairjax
from clairjax import Factored, Penalty, PrivatePowerMethod, ProximalGradient, clair, decompose
from clairjax import representation as models
from clairjax.alignment import Multipliers, elect


CLIENTS, OUT, IN = 8, 7, 6
SAMPLES, FEATURES, RANK = 12, 5, 2
COUNTS = [12, 5, 7, 6, 9, 12, 8]  # of seven clients


class Weights(NamedTuple):
    """What clients report."""

    weights: Any
    number: Any = 1.0  # near 1: multiplies the options that are numbers


class Samples(NamedTuple):
    inputs: Any
    targets: Any
    counts: Any
    key: Any
    number: Any = 1.0

    @property
    def data(self):
        return self.inputs, self.targets, RANK

    @property
    def own(self):
        return {"counts": self.counts}

    @property
    def drawn(self):
        return {"counts": self.counts, "key": self.key}

    @property
    def truth(self):
        return jnp.ones(self.inputs.shape[::2], self.inputs.dtype)


def weights(seed, dtype="float64", noise=0.1):
    """Two of eight clients contaminated."""
    rng = np.random.default_rng(seed)
    change = rng.normal(size=(CLIENTS, OUT, 2)) @ rng.normal(size=(2, IN))
    change[:2] += rng.normal(size=(2, OUT, IN))
    return Weights(np.asarray(change + noise * rng.normal(size=change.shape), dtype), 1 + 0.01 * seed)


def samples(seed, dtype="float64", counts=COUNTS):
    """Seven clients with as many samples as `counts` says, in an order of the seed's, and zeros beyond them."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(len(COUNTS), SAMPLES, FEATURES))
    shared = rng.normal(size=(len(COUNTS), RANK)) @ rng.normal(size=(RANK, FEATURES))
    targets = np.einsum("mnd,md->mn", inputs, shared) + 0.3 * rng.normal(size=inputs.shape[:2])
    counts = np.roll(counts, seed).astype(np.int32)
    there = np.arange(SAMPLES) < counts[:, None]
    inputs, targets = np.where(there[..., None], inputs, 0), np.where(there, targets, 0)
    return Samples(inputs.astype(dtype), targets.astype(dtype), counts, jax.random.key(seed), 1 + 0.01 * seed)


def _centaur(of: Samples):
    options = {"noise_multiplier": of.number, "clip_norm": of.number, "step_size": 0.1 * of.number}
    start = jnp.eye(FEATURES, RANK, dtype=of.inputs.dtype)
    return models.centaur(*of.data, **of.drawn, **options, rounds=3, init=start, true_basis=start)


def _centaur_of_subsets(of: Samples):
    start = PrivatePowerMethod(2, 0.1 * of.number, 3.0 * of.number, trials=3, batch_size=4)
    options = {"noise_multiplier": 0.1 * of.number, "init": start, "batch_size": 2, "sampling_rate": 0.5}
    return models.centaur(*of.data, **of.drawn, **options, rounds=2)


def _perturbed(of: Samples):
    options = {"noise_multiplier": 0.1 * of.number, "clip_norms": (9.0 * of.number, 6.0), "rounds": 2}
    start = models.PerturbedMoments(0.1 * of.number, 30.0 * of.number)
    return models.perturbed_least_squares(*of.data, **of.drawn, **options, init=start)


def _perturbed_of_subsets(of: Samples):
    options = {"noise_multiplier": 0.1 * of.number, "clip_norms": (9.0 * of.number, 6.0), "rounds": 2}
    start = jnp.eye(FEATURES, RANK, dtype=of.inputs.dtype)
    return models.perturbed_least_squares(*of.data, **of.drawn, **options, init=start, batch_size=2)


def _power_method(of: Samples):
    options = {"noise_multiplier": 0.1 * of.number, "clip_norm": 3.0 * of.number, "steps": 3}
    return models.private_power_method(*of.data, **of.drawn, **options)


def _flute(of: Samples):
    options = {"step_size": 0.02 * of.number, "gammas": (0.25, 0.125 * of.number), "init_scale": 0.1 * of.number}
    return models.flute(*of.data, **of.drawn, **options, rounds=20, true_coefficients=of.truth)


OF_WEIGHTS = {
    "decompose, Factored": lambda of: decompose(
        of.weights, Penalty(0.6 * of.number, 0.25 * of.number), solver=Factored(max_rank=4)
    ),
    "decompose, ProximalGradient": lambda of: decompose(
        of.weights, Penalty(0.6 * of.number, 0.25), solver=ProximalGradient(accelerate=True)
    ),
    "decompose, Multipliers": lambda of: decompose(
        of.weights, Penalty(of.number, 0.4 * of.number), solver=Multipliers()
    ),
    "elect": lambda of: elect(of.weights, penalty=Penalty(0.6 * of.number, 0.25), threshold=2.0 * of.number),
    "clair": lambda of: clair(of.weights, vote_share=0.5 * of.number, shrink=True),
}
OF_SAMPLES = {
    "flute": _flute,
    "fedrep": lambda of: models.fedrep(
        *of.data, **of.drawn, rounds=20, step_size=0.02 * of.number, true_coefficients=of.truth
    ),
    "truncated_ridge": lambda of: models.truncated_ridge(*of.data, **of.own),
    "truncated_ridge, a penalty": lambda of: models.truncated_ridge(*of.data, **of.own, penalty=0.1 * of.number),
    "alternating_least_squares": lambda of: models.alternating_least_squares(
        *of.data, **of.own, rounds=5, true_coefficients=of.truth
    ),
    "centaur": _centaur,
    "centaur, subsets": _centaur_of_subsets,
    "private_power_method": _power_method,
    "perturbed_least_squares": _perturbed,
    "perturbed_least_squares, subsets": _perturbed_of_subsets,
    "local_least_squares": lambda of: models.local_least_squares(*of.data[:2], **of.own),
    "local_ridge": lambda of: models.local_ridge(*of.data[:2], **of.own),
    "local_ridge, a penalty": lambda of: models.local_ridge(*of.data[:2], **of.own, penalty=0.1 * of.number),
    "moment_basis": lambda of: models.moment_basis(jnp.asarray(of.inputs), jnp.asarray(of.targets), RANK, **of.own),
}
OF_TRUTH = {"best_of_rank": lambda of: models.best_of_rank(jnp.asarray(of.weights[:, 0]), RANK)}
DRIVERS = OF_WEIGHTS | OF_SAMPLES | OF_TRUTH
WITHOUT_STATUS = {"local_least_squares", "local_ridge", "moment_basis"}


def function_of(name):
    return name.split(",")[0]


def problem(name, seed, dtype="float64"):
    return samples(seed, dtype) if name in OF_SAMPLES else weights(seed, dtype, noise={1: 0.01, 2: 0.4}.get(seed, 0.1))


def public_functions():
    public = [getattr(clairjax, name) for name in clairjax.__all__]
    for room in (clairjax, *filter(inspect.ismodule, public)):
        for name, value in vars(room).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                yield name, inspect.signature(value)
