"""A status as an output of a replicate."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from .._status import Status


def status_number(status: Status) -> Int[Array, ""]:
    """A number to store; 0 is converged."""
    return jnp.asarray(status._value)
