"""The worst cases of a Gaussian mechanism over users, as a release to audit."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from .. import _validate
from .._typing import Key, ScalarLike
from ..kernels import gaussian_mechanism
from ._compose import Adjacency
from ._patterns import Canary, one_entry
from ._sampling import FixedSize, Poisson


def fresh_noise(
    step: Callable[[PyTree, Key], PyTree], updates: PyTree[Float[Array, "rounds clients ..."]], key: Key
) -> PyTree[Float[Array, "rounds ..."]]:
    """All rounds of `step`, each with a key of its own."""
    return jax.vmap(step)(updates, jax.random.split(key, jax.tree.leaves(updates)[0].shape[0]))


class GaussianCanary(eqx.Module):
    """A canary user at its worst, and the best score against it: `audit(GaussianCanary(…), …)`.

    Called, it is one run with the plainest canary. That sends the same entry in every round, three clip norms long:
    the clip is audited, too. The other users send nothing, since an attacker may know what they send and take it away.
    Its neighbour sends the opposite under `"replace-one"`, and nothing under `"add-or-remove-one"`. The score is the
    sum over rounds of the release along what was sent. If the noise is what it should be, the likelihood ratio without
    sampling is a function of that sum, so no attack is better.

    `audit` tries more canaries. Each sees mistakes that the others do not:

    - all entries at once (a clip by entry, or by leaf of a tree); two entries, opposite (noise that entries share);
    - signs that alternate over rounds (noise that rounds share); an entry as large as a float (a clip that overflows);
    - a user who sends nothing in the other world (noise that depends on what is sent);
    - a user whom all others oppose (a divisor or a scale that one user changes);
    - the direction in which the mechanism's own noise is least, and a score by the shape of its density. Both are
      learned from runs in which nobody sends anything (noise that is missing somewhere, of low rank, or not Gaussian).

    Clip norms are 1, 4 and ¼: noise that is not in proportion to them shows. Noise by one of 4096 seeds shows, too, by
    one of 65,536 it did not.

    **Args:**

    - `noise_multiplier`: σ ≥ 0; may be traced. `rounds`: T ≥ 1.
    - `adjacency`: of the two worlds, as in `epsilon`.
    - `sampler`: `Poisson(rate)` or `FixedSize(size)`; default everyone in every round.
    - `clients`: ≥ 1, with the canary.
    - `features`: length of an update, ≥ 1; or the shapes of its arrays, such as `((3, 2), (4,))`, and then the
      mechanism is handed a tuple of them.
    - `mechanism`: what is audited, `gaussian_mechanism` or a function with its arguments, such as
      `grid_gaussian_mechanism`, which takes twenty times as long here.
    - `loop(step, updates, key)`: how an algorithm hands keys to its rounds, to audit that, too. It calls
      `step(updates[t], key_t)` for each round t and stacks the results. Default: a new key for each round.

    **Raises:** `ValueError` for values outside these ranges.

    **Source:** CENTAUR, section 2, GM and Algorithm 1.

    **Cost:** a run draws T · `features` normal numbers.

    >>> import jax
    >>> from clairjax.privacy import GaussianCanary
    >>> canary = GaussianCanary(0.0, 5)
    >>> print(*(float(canary(jax.random.key(0), world)) for world in (False, True)))
    -5.0 5.0
    """

    noise_multiplier: ScalarLike
    rounds: int = eqx.field(static=True)
    adjacency: Adjacency = eqx.field(static=True, default="replace-one")
    sampler: Poisson | FixedSize = eqx.field(static=True, default=Poisson())
    clients: int = eqx.field(static=True, default=4)
    features: int | tuple[tuple[int, ...], ...] = eqx.field(static=True, default=4)
    mechanism: Callable = eqx.field(static=True, default=gaussian_mechanism)
    loop: Callable = eqx.field(static=True, default=fresh_noise)

    def __check_init__(self):
        for name in ("rounds", "clients"):
            _validate.at_least(getattr(self, name), name, 1)
        _validate.at_least(min(self._sizes, default=0), "features", 1)
        _validate.not_negative(self.noise_multiplier, "noise_multiplier")
        _validate.choice(self.adjacency, "adjacency", get_args(Adjacency))

    def __call__(self, key: Key, world: Bool[Array, ""] | bool) -> Float[Array, ""]:
        canary = one_entry(self.rounds, self.size, self.absent)
        released = Program.of(self, [canary])(0, key, world)
        return jnp.sum(released * jnp.asarray(canary.weights, released.dtype))

    @property
    def size(self) -> int:
        """Numbers in an update."""
        return sum(self._sizes)

    @property
    def absent(self) -> float:
        """What the neighbour sends, in what the canary sends."""
        return -1.0 if self.adjacency == "replace-one" else 0.0

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.features] if isinstance(self.features, tuple) else [self.features]


class Program(eqx.Module):
    """Runs with any of several canaries."""

    settings: GaussianCanary
    sent: Float[Array, "canaries worlds rounds features"]
    others: Float[Array, "canaries rounds features"]
    clip_norms: Float[Array, " canaries"]

    @classmethod
    def of(cls, settings: GaussianCanary, canaries: Sequence[Canary]) -> "Program":
        dtype = jnp.result_type(float)
        stack = lambda name: jnp.asarray(np.stack([getattr(each, name) for each in canaries]), dtype)
        settings = dataclasses.replace(settings, adjacency="replace-one")  # the worlds are in the arrays: one program
        return cls(settings, stack("sent"), stack("others"), stack("clip_norm"))

    @eqx.filter_jit
    def __call__(self, which: Array | int, key: Key, world: Bool[Array, ""] | bool) -> Float[Array, "rounds features"]:
        """Noisy sums over users, in clip norms."""
        settings, clip_norm = self.settings, self.clip_norms[which]
        users_key, noise_key = jax.random.split(key)
        sigma = jnp.asarray(settings.noise_multiplier, clip_norm.dtype)
        one = settings.sampler.normaliser(settings.clients)
        sent = jnp.repeat(self.others[which][:, None], settings.clients, axis=1)
        sent = sent.at[:, 0].set(self.sent[which, jnp.asarray(world, int)]) * clip_norm
        draw = lambda key: settings.sampler.draw(settings.clients, key=key)
        present = jax.vmap(draw)(jax.random.split(users_key, settings.rounds))
        updates = self._as_updates(jnp.where(present[:, :, None], sent, 0))

        def step(values: PyTree, key: Key) -> PyTree:
            return settings.mechanism(values, clip_norm, sigma, normaliser=one, key=key)

        released = jax.tree.leaves(settings.loop(step, updates, noise_key))
        flat = jnp.concatenate([leaf.reshape(settings.rounds, -1) for leaf in released], axis=1)
        return flat / clip_norm * one

    def _as_updates(self, flat: Float[Array, "rounds clients features"]) -> PyTree[Float[Array, "rounds clients ..."]]:
        shapes = self.settings.features
        if not isinstance(shapes, tuple):
            return flat
        parts = jnp.split(flat, np.cumsum(self.settings._sizes)[:-1], axis=2)
        return tuple(part.reshape(*flat.shape[:2], *shape) for part, shape in zip(parts, shapes, strict=True))
