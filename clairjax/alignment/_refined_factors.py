"""Refined clients that reported factors: factors, too."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._precision import HIGHEST


class RefinedFactors(eqx.Module):
    """Refined clients: W̃_k = own_up_k own_down_k + common_share_k · common_up common_down.

    The first product is what the client keeps of its own, of its rank. The second is the members' mean outside the
    shared row space, the same for all, of rank up to the sum of the members' ranks. `dense` forms the matrices.
    `clairjax.alignment.compress` gives factors of a chosen rank.
    """

    own_up: Float[Array, "clients out rank"]
    own_down: Float[Array, "clients rank in"]
    common_up: Float[Array, "out all"]
    common_down: Float[Array, "all in"]
    common_share: Float[Array, " clients"]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(clients, out, in), of the matrices."""
        return self.own_up.shape[0], self.own_up.shape[1], self.own_down.shape[2]

    @property
    def mT(self) -> "RefinedFactors":  # as arrays have it
        """The transposed matrices."""
        return RefinedFactors(
            self.own_down.swapaxes(1, 2),
            self.own_up.swapaxes(1, 2),
            self.common_down.T,
            self.common_up.T,
            self.common_share,
        )

    def dense(self) -> Float[Array, "clients out in"]:
        """The matrices themselves."""
        common = jnp.matmul(self.common_up, self.common_down, precision=HIGHEST)
        own = jnp.matmul(self.own_up, self.own_down, precision=HIGHEST)
        return own + self.common_share[:, None, None] * common[None]
