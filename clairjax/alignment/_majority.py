"""What a majority of the clients agree in: what no minority can move far."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._typing import ScalarLike
from ._contrasts import low_quantile


# Of a near copy, over the usual distance of a majority: its own noise would have a hundredth of the others' variance.
NEAR_COPY = 0.1


def votes_needed(count: int, vote_share: ScalarLike) -> Int[Array, ""]:
    """Votes that make a member: ⌈α(K − 1)⌉, rounding error aside."""
    share = jnp.asarray(vote_share)
    return jnp.ceil(share * (count - 1) - 1e-4).astype(jnp.int32)


def majority_reach(table: Float[Array, "*batch clients clients"], needed: Int[Array, ""]) -> Float[Array, "*batch"]:
    """The (h + 1)-th smallest m_k, the entry from client k to its h-th nearest: no minority can move it far."""
    reach = jnp.take(jnp.sort(table, axis=-1), needed, axis=-1)  # the own zero is first
    return jnp.take(jnp.sort(reach, axis=-1), needed, axis=-1)


def medoid(table: Float[Array, "clients clients"]) -> Int[Array, ""]:
    """The client of the smallest median distance to the others, from distances or their squares."""
    return jnp.argmin(jnp.sort(table, axis=1)[:, len(table) // 2])


def copies(separations: Float[Array, "clients clients"]) -> Bool[Array, "clients clients"]:
    """Pairs of clients that reported the same matrix."""
    eps = jnp.finfo(separations.dtype).eps
    return (separations <= eps * low_quantile(separations)) & ~jnp.eye(separations.shape[0], dtype=bool)


def identical_majority(separations: Float[Array, "clients clients"]) -> Bool[Array, ""]:
    """Whether more than half of the clients reported the same matrix."""
    count = separations.shape[0]
    return (2 * (copies(separations).sum(1, dtype=jnp.int32) + 1) > count).any()
