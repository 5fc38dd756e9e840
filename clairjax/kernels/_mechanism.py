"""The Gaussian mechanism over client updates: clip each, sum, add noise, divide by a public number."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from .._typing import Key, ScalarLike
from ._norm import normalize, widest


@jax.named_scope("clairjax.clip_by_norm")
def clip_by_norm(value: PyTree[Float[Array, "..."]], bound: ScalarLike) -> PyTree[Float[Array, "..."]]:
    """Scale a whole tree of arrays down to l2 norm `bound` if it is longer.

    `v · min(1, bound/‖v‖)`, one norm over all leaves. A value with a NaN or infinite entry becomes zero, so
    that nothing passes whose norm is not known to be within the bound. So does everything if the bound is NaN,
    negative, or smaller than every normal number of the dtype.

    **Args:**

    - `value`, an array or any tree of arrays of any floating dtypes.
    - `bound` > 0, may be infinite. A finite bound above the dtype's largest number counts as that number.

    **Returns:** the same tree, in the direction of `value`. Its norm is at most `bound`, up to a few units of rounding
    in each leaf's dtype, whatever the size of the entries. A value within the bound comes back bit for bit. Entries
    of a shortened value that are smaller than every normal number may be zero. Where the bound is so small that
    subnormal entries matter to it, they count as zero and become zero. A zero value stays zero with derivative one.

    **Source:** CENTAUR, section 2.

    **Cost:** six passes over the data.

    >>> import jax.numpy as jnp
    >>> print(clip_by_norm(jnp.array([3.0, 4.0]), 1.0).round(4))
    [0.6 0.8]
    >>> print(clip_by_norm(jnp.array([1.0, jnp.nan]), 1.0))
    [0. 0.]
    """
    leaves, structure = jax.tree.flatten(value)
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
    leaves = [jnp.where(finite, leaf, 0) for leaf in leaves]
    units, norm = normalize(leaves)[0], _global_norm(leaves)
    bound = _comparable(bound, norm.dtype)
    leaves = [_without_unmeasured(leaf, bound, size=sum(each.size for each in leaves)) for leaf in leaves]
    fits, longer = norm <= bound, norm > bound
    radius = jnp.where(longer, bound, 0)
    clipped = [
        jnp.where(fits, leaf, jnp.where(longer, _toward_zero(unit * radius, leaf.dtype), 0))
        for leaf, unit in zip(leaves, units, strict=True)
    ]
    return jax.tree.unflatten(structure, clipped)


@jax.named_scope("clairjax.gaussian_mechanism")
def gaussian_mechanism(
    values: PyTree[Float[Array, "clients ..."]],
    clip_norm: ScalarLike,
    noise_multiplier: ScalarLike,
    *,
    normaliser: ScalarLike,
    key: Key,
) -> PyTree[Float[Array, "..."]]:
    """Private mean of the clients' values.

    `(Σ_k clip(v_k; ζ) + N(0, (σζ)² I)) / normaliser`. The clipped sum changes by at most ζ in norm when a
    client is added or removed, and by at most 2ζ when a client is replaced. The accountant's argument says which
    of the two an ε speaks of.

    **Args:**

    - `values`, an array or tree of arrays with clients as the first axis of each leaf; a client that was not
      sampled holds zeros.
    - `clip_norm` ζ > 0, finite, and `noise_multiplier` σ ≥ 0, both public.
    - `normaliser` > 0, a public constant such as sampling rate times number of clients, never the number of
      clients that happened to be sampled.
    - `key`, used once.

    **Returns:** the tree of one client, noise independent in each entry. Clients with NaN or infinite entries
    count as zero (see `clip_by_norm`).

    **Source:** CENTAUR, section 2, GM and Algorithm 1. Departs from print: the text divides by the realised
    sample size, which is private itself under Poisson sampling.

    The ε of this mechanism is that of real numbers. Sum and noise as computed are floating-point
    numbers. The low-order bits of one release in float32 can tell a client's presence for certain (Mironov, 2012).
    Where what is released leaves your hands, take `grid_gaussian_mechanism`; this one is for simulation.

    **Cost:** eight passes over the values.

    >>> import jax, jax.numpy as jnp
    >>> values = jnp.array([[3.0, 4.0], [0.0, 0.5]])
    >>> print(gaussian_mechanism(values, 1.0, 0.0, normaliser=2.0, key=jax.random.key(0)).round(4))
    [0.3  0.65]
    """
    clipped = jax.vmap(clip_by_norm, in_axes=(0, None))(values, clip_norm)
    leaves, structure = jax.tree.flatten(clipped)
    keys = jax.random.split(key, len(leaves))

    def release(leaf: Float[Array, "clients ..."], leaf_key: Key) -> Float[Array, "..."]:
        dtype = widest(leaf.dtype)  # half precision would round small deviations to zero
        deviation = jnp.asarray(noise_multiplier, dtype) * jnp.asarray(clip_norm, dtype)
        noise = deviation * jax.random.normal(leaf_key, leaf.shape[1:], dtype)
        mean = (jnp.sum(leaf.astype(dtype), axis=0) + noise) / jnp.asarray(normaliser, dtype)
        return mean.astype(leaf.dtype)

    return jax.tree.unflatten(structure, [release(leaf, k) for leaf, k in zip(leaves, keys, strict=True)])


def _global_norm(leaves: list[Array]) -> Float[Array, ""]:
    """l2 norm over all leaves, in the widest dtype and at least float32."""
    return normalize(leaves)[1]


def _comparable(bound: ScalarLike, dtype: DTypeLike) -> Float[Array, ""]:
    """In the norm's dtype, where a finite bound stays finite. What is not a positive normal number becomes NaN, which
    no norm is known to be within."""
    info = jnp.finfo(dtype)
    if isinstance(bound, jax.Array):
        bound = bound.astype(widest(bound.dtype, dtype))
        bound = jnp.where(jnp.isinf(bound), bound, jnp.minimum(bound, float(info.max))).astype(dtype)
    else:
        bound = jnp.asarray(bound if np.isinf(bound) else np.minimum(bound, float(info.max)), dtype)
    return jnp.where(bound >= float(info.tiny), bound, jnp.nan)


def _without_unmeasured(leaf: Float[Array, "*shape"], bound: Float[Array, ""], *, size: int) -> Float[Array, "*shape"]:
    """Zero for subnormal entries, which the norm may not have counted, unless `size` of them are below the bound's
    rounding."""
    tiny, eps = float(jnp.finfo(widest(leaf.dtype)).tiny), float(jnp.finfo(bound.dtype).eps)
    matter = bound < tiny / eps * size**0.5
    return jnp.where(matter & (jnp.abs(leaf.astype(widest(leaf.dtype))) < tiny), 0, leaf)


def _toward_zero(value: Float[Array, "*shape"], dtype: DTypeLike) -> Float[Array, "*shape"]:
    """Rounded to a narrower dtype without becoming longer: a subnormal half would be, by up to twice."""
    if value.dtype == dtype:
        return value
    nearest = value.astype(dtype)
    longer = jnp.abs(nearest.astype(value.dtype)) > jnp.abs(value)
    shorter = jnp.where(longer, jnp.nextafter(nearest, jnp.zeros_like(nearest)), nearest)
    return nearest + jax.lax.stop_gradient(shorter - nearest)
