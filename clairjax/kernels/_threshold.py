"""Soft thresholds and Huber weights of blocks, defined at zero with finite derivatives."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._typing import ScalarLike


@jax.named_scope("clairjax.block_norms")
def block_norms(blocks: Float[Array, "pairs out in"]) -> Float[Array, " pairs"]:
    """Frobenius norm of each block; the derivative at a zero block is zero.

    **Args:** `blocks`, any real blocks. Squares must neither overflow nor underflow.

    **Returns:** norms ≥ 0, one a block. At zero the subgradient of least norm, 0, stands for the derivative.

    **Cost:** one pass over the data.

    >>> import jax, jax.numpy as jnp
    >>> print(block_norms(jnp.array([[[3.0, 4.0]], [[0.0, 0.0]]])))
    [5. 0.]
    >>> print(jax.grad(lambda b: block_norms(b).sum())(jnp.zeros((1, 1, 2))))
    [[[0. 0.]]]
    """
    squares = jnp.sum(blocks**2, axis=(1, 2))
    positive = squares > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), squares)


@jax.named_scope("clairjax.block_soft_threshold")
def block_soft_threshold(
    blocks: Float[Array, "pairs out in"], threshold: ScalarLike | Float[Array, " pairs"]
) -> Float[Array, "pairs out in"]:
    """Shorten each block by the threshold in Frobenius norm: the proximal map of `Σ_g τ_g ‖S_g‖_F`.

    `S_g = (1 − τ_g/‖X_g‖_F)₊ X_g`. Blocks of norm at most the threshold become exactly zero, and with
    threshold 0 the map is the identity.

    **Args:**

    - `blocks`.
    - `threshold` τ ≥ 0, one for all or one a block.

    **Returns:** blocks of the same shape and dtype. At the threshold, where no derivative exists, that of the
    zero side is given.

    **Source:** CLAIR, Algorithm 1, the update of S.

    **Cost:** two passes over the data.

    >>> import jax.numpy as jnp
    >>> print(block_soft_threshold(jnp.array([[[3.0, 4.0]], [[0.3, 0.4]]]), 1.0).round(4))
    [[[2.4 3.2]]
    <BLANKLINE>
     [[0.  0. ]]]
    """
    threshold = jnp.broadcast_to(jnp.asarray(threshold, blocks.dtype), blocks.shape[:1])
    norms = block_norms(blocks)
    kept = norms > threshold
    factor = jnp.where(kept | (threshold == 0), 1 - threshold / jnp.where(kept, norms, 1), 0)
    return factor[:, None, None] * blocks
