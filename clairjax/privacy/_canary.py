"""The worst case of a Gaussian mechanism over users, as a release to audit."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _validate
from .._typing import Key, ScalarLike
from ..kernels import gaussian_mechanism
from ._compose import Adjacency, check_choice
from ._sampling import FixedSize, Poisson


class GaussianCanary(eqx.Module):
    """A canary user at its worst, and the best score against it: `audit(GaussianCanary(…), …)`.

    The canary sends the same direction in every round, three clip norms long, so that the clip is audited, too; the
    other users send nothing, since an attacker may know what they send and take it away. Its neighbour sends the
    opposite direction under `"replace-one"`, and nothing under `"add-or-remove-one"`. The score is the sum over
    rounds of the release along the direction: without sampling the likelihood ratio is a function of it, so that no
    attack is better.

    **Arguments:**

    - `noise_multiplier`: σ ≥ 0; may be traced. `rounds`: T ≥ 1.
    - `adjacency`: of the two worlds, as in `epsilon`.
    - `sampler`: `Poisson(rate)` or `FixedSize(size)`; default everyone in every round.
    - `clients`: ≥ 1, with the canary. `features`: length of an update, ≥ 1.
    - `mechanism`: what is audited, `gaussian_mechanism` or a function with its arguments.

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
    clients: int = eqx.field(static=True, default=2)
    features: int = eqx.field(static=True, default=4)
    mechanism: Callable = eqx.field(static=True, default=gaussian_mechanism)

    def __check_init__(self):
        for name in ("rounds", "clients", "features"):
            _validate.at_least(getattr(self, name), name, 1)
        _validate.not_negative(self.noise_multiplier, "noise_multiplier")
        check_choice(self.adjacency, "adjacency", Adjacency)

    def __call__(self, key: Key, world: Bool[Array, ""] | bool) -> Float[Array, ""]:
        sigma = jnp.asarray(self.noise_multiplier, jnp.result_type(float))
        direction = jnp.zeros_like(sigma, shape=self.features).at[0].set(1)
        absent = -1.0 if self.adjacency == "replace-one" else 0.0
        update = 3 * jnp.where(world, 1.0, absent).astype(sigma.dtype) * direction
        updates = jnp.zeros_like(sigma, shape=(self.clients, self.features)).at[0].set(update)
        one = self.sampler.normaliser(self.clients)

        def score(key: Key) -> Float[Array, ""]:
            users_key, noise_key = jax.random.split(key)
            present = self.sampler.draw(self.clients, key=users_key)
            sent = jnp.where(present[:, None], updates, 0)
            released = self.mechanism(sent, 1.0, sigma, normaliser=one, key=noise_key)
            return one * jnp.sum(released * direction)

        return jnp.sum(jax.vmap(score)(jax.random.split(key, self.rounds)))
