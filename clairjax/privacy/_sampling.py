"""Samplers of users. Each draws a round's users and writes the event it has to be accounted for as."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .. import _validate
from .._typing import Key, ScalarLike
from ._events import GaussianRounds


COIN = 2**32  # sides of the coin: random bits of a draw


class Poisson(eqx.Module):
    """Each user is in a round with probability `rate`, independently; rate 1 is everyone.

    A round's number of users is itself private: divide by `normaliser`, never by the number drawn.

    The coin has 2³² sides, in every dtype: users are drawn with probability ⌊2³² · `rate`⌋/2³², never above the
    `rate` that is accounted for. (Floats would do worse: uniform ones in float32 are multiples of 2⁻²³.)

    **Raises:** `ValueError` for a rate that is not in (0, 1], or below one side of the coin.

    **Source:** CENTAUR, Algorithm 1, line 4 (p_g).

    >>> import jax
    >>> from clairjax.privacy import Poisson
    >>> sampler = Poisson(0.25)
    >>> sampler.draw(8, key=jax.random.key(0)).shape, sampler.normaliser(8)
    ((8,), 2.0)
    >>> sampler.rounds(4.0, 100, clients=8).sampling
    'poisson'
    """

    rate: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        if not 0 < self.rate <= 1:
            raise _validate.fail("rate", "in (0, 1]", self.rate)
        if self.sides < 1:
            raise _validate.fail("rate", f"at least 2^-32 = {1 / COIN:.3g}, one side of the coin", self.rate)

    @property
    def sides(self) -> int:
        """Of 2³², how many draw a user."""
        return int(float(self.rate) * COIN)  # exact but for the floor: a power of two

    def draw(self, clients: int, *, key: Key) -> Bool[Array, " clients"]:
        """Who is in this round."""
        if self.sides == COIN:
            return jnp.ones(clients, bool)
        return jax.random.bits(key, (clients,), jnp.uint32) < np.uint32(self.sides)

    def normaliser(self, clients: int) -> float:
        """The public number to divide a round's sum by: how many the coin draws, in the mean."""
        return clients * self.sides / COIN

    def rounds(
        self, noise_multiplier: ScalarLike, rounds: int, *, clients: int | None = None, label: str = "rounds"
    ) -> GaussianRounds:
        """The event of `rounds` Gaussian releases over users drawn this way."""
        return GaussianRounds(noise_multiplier, rounds, self.rate, "poisson", clients, label)


class FixedSize(eqx.Module):
    """A uniformly random set of exactly `size` users a round. It has no ε under add-or-remove-one.

    >>> import jax
    >>> from clairjax.privacy import FixedSize
    >>> sampler = FixedSize(3)
    >>> int(sampler.draw(8, key=jax.random.key(0)).sum()), sampler.normaliser(8)
    (3, 3.0)
    >>> sampler.rounds(4.0, 100, clients=8).sampling
    'without replacement'
    """

    size: int = eqx.field(static=True)

    def __check_init__(self):
        _validate.at_least(self.size, "size", 1)

    def draw(self, clients: int, *, key: Key) -> Bool[Array, " clients"]:
        """Who is in this round."""
        self._check(clients)
        return jax.random.permutation(key, clients) < self.size

    def normaliser(self, clients: int) -> float:
        """The number to divide a round's sum by."""
        self._check(clients)
        return float(self.size)

    def rounds(
        self, noise_multiplier: ScalarLike, rounds: int, *, clients: int, label: str = "rounds"
    ) -> GaussianRounds:
        """The event of `rounds` Gaussian releases over users drawn this way."""
        self._check(clients)
        return GaussianRounds(noise_multiplier, rounds, self.size / clients, "without replacement", clients, label)

    def _check(self, clients: int) -> None:
        if self.size > clients:
            raise _validate.fail("size", f"at most the number of clients, {clients}", self.size)
