"""Length and direction of any finite value: nothing overflows or vanishes on the way."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree


@jax.named_scope("clairjax.normalize")
def normalize(value: PyTree[Float[Array, "..."]]) -> tuple[PyTree[Float[Array, "..."]], Float[Array, ""]]:
    """Direction and length of a whole tree of arrays: `v/‖v‖` and `‖v‖`, one l2 norm over all leaves.

    Before they are squared the entries are multiplied by a power of two near the inverse of the largest, which
    rounds nothing.

    **Args:** `value`, an array or any tree of arrays, of any floating dtypes.

    **Returns:** the tree of norm one, and the norm, both in the widest dtype of the leaves and at least float32. They
    are right for every finite value, except that entries below the smallest normal number may count as zero, as many
    processors have it. Zero gives zeros and norm zero. A norm above the dtype's largest number is infinite. With NaN
    or infinite entries the norm is NaN or infinite, too, and the direction means nothing.

    **Cost:** three passes over the data.

    >>> import jax.numpy as jnp
    >>> unit, norm = normalize(jnp.array([3e38, -3e38], jnp.float32))
    >>> print(unit.round(4), norm)
    [ 0.7071 -0.7071] inf
    """
    leaves, structure = jax.tree.flatten(value)
    dtype = widest(*(leaf.dtype for leaf in leaves))
    leaves = [leaf.astype(dtype) for leaf in leaves]
    factor = inverse_power(jnp.max(jnp.array([jnp.max(jnp.abs(leaf), initial=0) for leaf in leaves])))
    leaves = [leaf * factor for leaf in leaves]
    squares = sum((jnp.sum(leaf**2) for leaf in leaves), start=jnp.zeros((), dtype))
    positive = squares > 0
    length = jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), squares)
    units = [leaf / jnp.where(positive, length, 1) for leaf in leaves]
    return jax.tree.unflatten(structure, units), length / factor


def widest(*dtypes: DTypeLike) -> DTypeLike:
    """At least float32."""
    return max((jnp.dtype(jnp.float32), *dtypes), key=lambda dtype: jnp.finfo(dtype).bits)


def inverse_power(largest: Float[Array, ""]) -> Float[Array, ""]:
    """The power of two that brings a positive number to [1, 2); 1 for zero.

    It and its inverse are normal numbers, even if it then falls short: a subnormal number would be flushed to zero.
    """
    info = jnp.finfo(largest.dtype)
    bias = info.maxexp - 1
    field = lax.bitcast_convert_type(largest, f"int{info.bits}") >> info.nmant
    power = jnp.clip(2 * bias - field, 1, 2 * bias - 1)
    return jnp.where(largest > 0, lax.bitcast_convert_type(power << info.nmant, largest.dtype), 1)
