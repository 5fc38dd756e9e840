"""Members of unequal noise: what each counts in the mean, and who is better off without it."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._reports import total


# A member declines if its noise is below this many times the mean's, and this many standard deviations below the
# members'. With few members, chance makes a client look quiet. A client with more of the weight than `MOST_WEIGHT` is
# not judged: what the mean does to it hardly shows.
BELOW_MEAN, DEVIATIONS = 1.5, 3
MOST_WEIGHT = 0.45


def member_weights(
    members: Bool[Array, " clients"], influence: Float[Array, " clients"], variances: Float[Array, " clients"]
) -> Float[Array, " clients"]:
    """In the mean and the scatter: those of least noise, bounded; 0 of others."""
    return jnp.where(members, influence / variances, 0)


def squares_to_mean(
    squares: Float[Array, "clients clients"], weights: Float[Array, " clients"]
) -> tuple[Float[Array, " clients"], Float[Array, " clients"]]:
    """‖W_k − W̄‖² from ‖W_j − W_k‖², and each client's share of W̄."""
    share = weights / total(weights)
    to_members = jnp.where(share[None] > 0, squares * share[None], 0).sum(1)
    among = jnp.sum(jnp.where(share > 0, share * to_members, 0)) / 2
    return jnp.maximum(to_members - among, 0), share


def declining(
    squares: Float[Array, "clients clients"], weights: Float[Array, " clients"], freedom: Int[Array, ""]
) -> Bool[Array, " clients"]:
    """Members whose own noise outside the row space is not above that of the mean.

    Let e_k be the squared noise of member k, π_k its share of the mean and H = Σ π_j² e_j the mean's. Then
    E‖(W_k − W̄)P⊥‖² = (1 − 2π_k) e_k + H, which gives all of them.

    **Args:** `squares`, ‖D_jk P⊥‖² of pairs; `weights`, 0 of who is no member; `freedom`, q(p − r).
    """
    members, dtype = weights > 0, squares.dtype
    to_mean, share = squares_to_mean(squares, weights)
    judged = members & (share < MOST_WEIGHT)
    slope = jnp.where(judged, 1 - 2 * share, 1)
    counted = jnp.where(judged, share**2 / slope, 0)
    of_mean = jnp.sum(counted * to_mean) / (1 + counted.sum())
    own = (to_mean - of_mean) / slope
    number = jnp.maximum(members.sum(), 3).astype(dtype)
    usual = jnp.where(members, own, 0).sum() / number
    deviation = jnp.sqrt(2 / jnp.maximum(freedom.astype(dtype), 1))  # of a square, relative
    below_mean = own < BELOW_MEAN * of_mean
    quiet = usual - own > DEVIATIONS * deviation * usual * (number - 1) / (number - 2)
    return judged & below_mean & quiet & (members.sum() > 2)
