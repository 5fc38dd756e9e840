"""One verdict on each client from many layers: distances pooled over them, and the layers' votes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


# Of reaches: the middle of the gap between honest clients and strangers in 36 fleets trained as those of
# `clair-table3`, which no table is made of.
FAR = 1.67
LARGEST = 1e15  # ratio of distances, whose square float32 holds
NEGLIGIBLE = 0.01  # of the usual whole distance: who is that near outside the row space is as near as anyone


@jax.jit
def pooled_verdict(
    whole: Float[Array, "layers clients clients"],
    outside: Float[Array, "layers clients clients"],
    members: Bool[Array, "layers clients"],
    present: Bool[Array, "layers clients"],
) -> tuple[Float[Array, " clients"], Bool[Array, " clients"]]:
    """How far each client is from the others by all layers together, and whether it belongs.

    A client is out if most of its layers voted it out, or if its reach is over `FAR`. A pair's distance is its root
    mean square over the layers both are in, each in units of the layer's median pair; a client's reach is its
    distance to the middle one of the others over what is usual in the layers that it is in, of the two kinds of
    distance the geometric mean, the middle client's being 1. Votes of single layers, each a yes or no, are the weaker
    evidence where layers were trained: in some of them honest clients differ more than a stranger does. The paper
    does not combine layers.

    **Args:** `whole`, ‖D_jk‖_F, NaN of a pair that is not to be compared in that layer; `outside`, ‖D_jk P⊥‖_F; each
    layer's `members`, of those that are `present`.

    **Returns:** reaches, NaN of a client that no layer compares with another; who belongs, nobody who is in no layer.
    """
    pairs = present[:, :, None] & present[:, None, :] & ~jnp.eye(present.shape[1], dtype=bool)[None]
    pairs &= ~jnp.isnan(whole)
    outside = jnp.maximum(outside, NEGLIGIBLE * _unit(whole, pairs))
    reach = (_log_reach(whole, pairs) + _log_reach(outside, pairs)) / 2
    reach = jnp.exp(reach - jnp.nanmedian(reach))
    voted_out = (present & ~members).sum(0, dtype=jnp.int32)
    mostly_out = 2 * voted_out > present.sum(0, dtype=jnp.int32)
    return reach, present.any(0) & ~mostly_out & ~(reach > FAR)


def _unit(distances: Float[Array, "layers clients clients"], pairs: Bool[Array, "layers clients clients"]) -> Array:
    """The median pair's distance of each layer; 1 where that is zero or there is none."""
    median = jnp.nanmedian(jnp.where(pairs, distances, jnp.nan), axis=(1, 2))[:, None, None]
    return jnp.where(median > 0, median, 1)


def _log_reach(
    distances: Float[Array, "layers clients clients"], pairs: Bool[Array, "layers clients clients"]
) -> Float[Array, " clients"]:
    """Log of a client's reach by one kind of distance, over what is usual in its layers; NaN without a pair."""
    squares = jnp.where(pairs, jnp.minimum(distances / _unit(distances, pairs), LARGEST) ** 2, 0)
    # What is usual in a layer is its middle client's reach, which a minority of strangers does not set.
    usual = jnp.nan_to_num(jnp.nanmedian(_middle(squares, pairs), axis=1))
    taken = pairs.any(2)
    expected = jnp.where(taken, usual[:, None], 0).sum(0) / taken.sum(0, dtype=usual.dtype)
    reach = _middle(squares.sum(0) / pairs.sum(0, dtype=squares.dtype), pairs.any(0))
    tiny = jnp.finfo(reach.dtype).tiny
    return (jnp.log(jnp.maximum(reach, tiny)) - jnp.log(jnp.maximum(expected, tiny))) / 2


def _middle(
    distances: Float[Array, "*layers clients clients"], pairs: Bool[Array, "*layers clients clients"]
) -> Array:
    """Each client's distance to the middle one of those that it is compared with; NaN without any."""
    others = pairs.sum(-1)
    place = jnp.maximum((others - 1) // 2, 0)[..., None]
    middle = jnp.take_along_axis(jnp.sort(jnp.where(pairs, distances, jnp.inf), axis=-1), place, axis=-1)[..., 0]
    return jnp.where(others > 0, middle, jnp.nan)
