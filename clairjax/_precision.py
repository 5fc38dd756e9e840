"""What arithmetic costs: how products are taken, and what of a spectrum is rounding."""

import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Float


# The fast products of accelerators lose more digits than a Gram product has to spare.
HIGHEST = Precision.HIGHEST


def rounding_floor(eigenvalues: Float[Array, " n"]) -> Float[Array, ""]:
    """Eigenvalues of a scatter matrix that are not above this are rounding."""
    return 4 * eigenvalues.shape[0] * jnp.finfo(eigenvalues.dtype).eps * jnp.max(eigenvalues, initial=0)
