"""Rounds whose release is private for each user: one update clipped as a whole, noise on the sum, a public divisor."""

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from .. import _validate
from .._typing import Key, ScalarLike
from ..kernels import clip_by_norm
from ..privacy import FixedSize, GaussianRounds, Ledger, Poisson, epsilon, noise_multiplier
from ._strategy import Cohort, Strategy, Sum


MOST_NOISE = 1e6  # clip norms; with more of it nothing is learned, and floats hold little else
Kind = TypeVar("Kind", bound=Strategy)


class Privacy(eqx.Module):
    """How a round's release is made private, and for which ε.

    The server releases (Σ_k clip(u_k; ζ) + N(0, (σζ)² I)) / expected cohort, u_k being a client's whole update as one
    vector. σ is `noise_multiplier`, or, if that is None, the least for which all rounds of the run together have
    `epsilon` at `delta` under `adjacency`.

    - `clip_norm` ζ > 0. `noise_multiplier` σ ≥ 0, or None. `epsilon` > 0, `delta`, `adjacency`: see
      `privacy.epsilon`.

    **Raises:** `ValueError` where neither or both of `noise_multiplier` and `epsilon` are given.

    **Source:** CENTAUR, section 2 and Algorithm 1. Departs from print: divides by the expected number of clients,
    which is public, and not by the number sampled. The noise is floating-point: a simulation. A release that leaves
    your hands needs `kernels.grid_gaussian_mechanism`. That takes all clients' updates at once; here they are added
    as clients are done, so that no round keeps them all. Whole-number noise itself costs little: 0.7 s for 640,000
    entries on a busy CPU.

    >>> from clairjax.federated import Privacy
    >>> at_one = Privacy(clip_norm=0.01, epsilon=1.0, delta=1e-5, adjacency="add-or-remove-one")
    """

    clip_norm: ScalarLike
    noise_multiplier: ScalarLike | None = None
    epsilon: float | None = eqx.field(static=True, default=None)
    delta: float = eqx.field(static=True, default=1e-5)
    adjacency: str = eqx.field(static=True, default="replace-one")

    def __check_init__(self):
        if isinstance(self.clip_norm, int | float):  # else it may be a tree of something else, inside JAX
            self._check()

    def _check(self) -> None:
        _validate.positive(self.clip_norm, "clip_norm")
        if (self.noise_multiplier is None) == (self.epsilon is None):
            got = "neither" if self.epsilon is None else "both"
            raise _validate.fail("privacy", "given by one of noise_multiplier and epsilon", got)
        if self.noise_multiplier is not None:
            _validate.not_negative(self.noise_multiplier, "noise_multiplier")

    def resolved(self, sampler: Poisson | FixedSize, rounds: int) -> "Privacy":
        """With numbers that a program can trace, so that another σ is the same program."""
        self._check()
        sigma = self._sigma(sampler, rounds) if self.noise_multiplier is None else self.noise_multiplier
        return Privacy(jnp.asarray(self.clip_norm), jnp.asarray(sigma, float))

    def _sigma(self, sampler: Poisson | FixedSize, rounds: int) -> float:
        if isinstance(sampler, FixedSize):
            raise _validate.fail("sampler", "a privacy.Poisson or None where privacy.epsilon is given", "a FixedSize")
        assert self.epsilon is not None
        question: dict[str, Any] = {
            "delta": self.delta,
            "sampling_rate": sampler.rate,
            "adjacency": self.adjacency,
        }
        _validate.positive(self.epsilon, "epsilon")
        smallest = epsilon(MOST_NOISE, rounds, **question)
        if self.epsilon < smallest:
            must_be = (
                f"at least {smallest:.3g} for {rounds} rounds at delta = {self.delta:g} under {self.adjacency} "
                f"(the noise is {MOST_NOISE:.0e} clip norms then)"
            )
            raise _validate.fail("epsilon", must_be, self.epsilon)
        return noise_multiplier(self.epsilon, rounds, **question)


class PrivateStrategy(Strategy):
    """A strategy whose clients send what `clipped` makes of an update, and whose server sees what `release` gives."""

    privacy: Privacy

    def clipped(self, update: PyTree) -> Sum:
        """A client's whole update as one vector, at most as long as the clip norm: a part of a sum."""
        return Sum(clip_by_norm(ravel_pytree(_floats(update))[0], self.privacy.clip_norm))

    def release(self, uploads: Sum, cohort: Cohort, like: PyTree, *, key: Key) -> PyTree:
        """The noisy mean of the updates, as a tree like the given one."""
        total, settings = uploads.value, self.privacy
        dtype = total.dtype
        # One draw for all leaves: each draw of its own compiles a generator.
        noise = jax.random.normal(key, total.shape, dtype)
        deviation = jnp.asarray(settings.noise_multiplier, dtype) * jnp.asarray(settings.clip_norm, dtype)
        mean = (total + deviation * noise) / jnp.asarray(cohort.expected, dtype)
        return ravel_pytree(_floats(like))[1](mean)


def prepared(strategy: Kind, sampler: Poisson | FixedSize, rounds: int) -> Kind:
    """A private strategy with its σ; any other as it is."""
    if not isinstance(strategy, PrivateStrategy):
        return strategy
    if not isinstance(strategy.privacy, Privacy):
        raise _validate.fail("privacy", "a Privacy", repr(strategy.privacy))
    return eqx.tree_at(lambda s: s.privacy, strategy, strategy.privacy.resolved(sampler, rounds))


def spent(strategy: Strategy, sampler: Poisson | FixedSize, rounds: int, clients: int) -> Ledger | None:
    """What the rounds released, as the sampler has it; None where a strategy is not private."""
    if not isinstance(strategy, PrivateStrategy) or strategy.privacy.noise_multiplier is None:
        return None
    sigma = float(strategy.privacy.noise_multiplier)
    event: GaussianRounds = sampler.rounds(sigma, rounds, clients=clients)
    return Ledger((event,))


def moved(old: PyTree, step: PyTree, rate: float = 1.0) -> PyTree:
    """old + rate · step, on the floating arrays."""
    return eqx.combine(jax.tree.map(lambda a, b: a + jnp.asarray(rate, a.dtype) * b, _floats(old), step), old)


def difference(new: PyTree, old: PyTree) -> PyTree:
    """new − old, of the floating arrays."""
    return jax.tree.map(jnp.subtract, _floats(new), _floats(old))


def _floats(tree: PyTree) -> PyTree:
    return eqx.filter(tree, eqx.is_inexact_array)
