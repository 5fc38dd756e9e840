"""The Gaussian mechanism over client updates: clip each, sum, add noise, divide by a public number."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._typing import Key, ScalarLike


@jax.named_scope("clairjax.clip_by_norm")
def clip_by_norm(value: PyTree[Float[Array, "..."]], bound: ScalarLike) -> PyTree[Float[Array, "..."]]:
    """Scale a whole tree of arrays down to l2 norm `bound` if it is longer.

    `v · min(1, bound/‖v‖)`, one norm over all leaves. A value with a NaN or infinite entry becomes zero, so
    that nothing passes whose norm is not known to be within the bound; so does everything if the bound is NaN
    or negative.

    **Args:** `value`, an array or any tree of arrays; `bound` ≥ 0.

    **Returns:** the same tree, of norm at most `bound` up to rounding in each leaf's dtype. Entries whose
    squares would overflow or underflow are clipped correctly. A zero value stays zero with derivative one.

    **Source:** CENTAUR, section 2.

    **Cost:** three passes over the data.

    >>> import jax.numpy as jnp
    >>> print(clip_by_norm(jnp.array([3.0, 4.0]), 1.0).round(4))
    [0.6 0.8]
    >>> print(clip_by_norm(jnp.array([1.0, jnp.nan]), 1.0))
    [0. 0.]
    """
    leaves, structure = jax.tree.flatten(value)
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
    leaves = [jnp.where(finite, leaf, 0) for leaf in leaves]
    norm = _global_norm(leaves)
    bound = jnp.asarray(bound, norm.dtype)
    bound = jnp.where(bound > 0, bound, 0)
    longer = norm > bound
    factor = jnp.where(longer, jnp.where(longer, bound, 1) / jnp.where(longer, norm, 1), 1)
    return jax.tree.unflatten(structure, [(leaf.astype(norm.dtype) * factor).astype(leaf.dtype) for leaf in leaves])


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
    client is added or removed, and by at most 2ζ when one is replaced: which of the two an ε speaks of is the
    accountant's argument.

    **Args:** `values`, an array or tree of arrays with clients as the first axis of each leaf; a client that
    was not sampled holds zeros. `clip_norm` ζ > 0, finite, and `noise_multiplier` σ ≥ 0, both public.
    `normaliser` > 0, a public constant such as sampling rate times number of clients, never the number of
    clients that happened to be sampled. `key`, used once.

    **Returns:** the tree of one client, noise independent in each entry. Clients with NaN or infinite entries
    count as zero (see `clip_by_norm`).

    **Source:** CENTAUR, section 2, GM and Algorithm 1. Departs from print: the text divides by the realised
    sample size, which is private itself under Poisson sampling.

    **Cost:** four passes over the values. The noise is drawn in floating point, without a defence against
    attacks on its low-order bits.

    >>> import jax, jax.numpy as jnp
    >>> values = jnp.array([[3.0, 4.0], [0.0, 0.5]])
    >>> print(gaussian_mechanism(values, 1.0, 0.0, normaliser=2.0, key=jax.random.key(0)).round(4))
    [0.3  0.65]
    """
    clipped = jax.vmap(clip_by_norm, in_axes=(0, None))(values, clip_norm)
    leaves, structure = jax.tree.flatten(clipped)
    keys = jax.random.split(key, len(leaves))

    def release(leaf: Float[Array, "clients ..."], leaf_key: Key) -> Float[Array, "..."]:
        deviation = jnp.asarray(noise_multiplier, leaf.dtype) * jnp.asarray(clip_norm, leaf.dtype)
        noise = deviation * jax.random.normal(leaf_key, leaf.shape[1:], leaf.dtype)
        return (jnp.sum(leaf, axis=0) + noise) / jnp.asarray(normaliser, leaf.dtype)

    return jax.tree.unflatten(structure, [release(leaf, k) for leaf, k in zip(leaves, keys, strict=True)])


def _global_norm(leaves: list[Array]) -> Float[Array, ""]:
    """l2 norm over all leaves in the widest dtype (at least float32), scaled before squaring."""
    dtype = max((leaf.dtype for leaf in leaves), key=lambda d: jnp.finfo(d).bits)
    dtype = dtype if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)
    leaves = [leaf.astype(dtype) for leaf in leaves]
    largest = jnp.max(jnp.array([jnp.max(jnp.abs(leaf), initial=0) for leaf in leaves]))
    largest = jax.lax.stop_gradient(jnp.where(largest > 0, largest, 1))
    squares = sum((jnp.sum((leaf / largest) ** 2) for leaf in leaves), start=jnp.zeros((), dtype))
    positive = squares > 0
    return largest * jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), squares)
