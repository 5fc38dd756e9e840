"""The Gaussian mechanism in whole numbers: no low-order bit of a release tells more than its ε allows."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt

from .._typing import Key, ScalarLike
from ._mechanism import clip_by_norm, gaussian_mechanism
from ._norm import inverse_power, widest
from ._whole_normal import FRACTION, whole_normal


CLIP_BITS = 15  # the clip norm is at most 2^15 grid steps: the square of an entry fits into 31 bits
SUM_BITS = 30  # neither the clipped values nor the noise add up to more


@jax.named_scope("clairjax.grid_gaussian_mechanism")
def grid_gaussian_mechanism(
    values: PyTree[Float[Array, "clients ..."]],
    clip_norm: ScalarLike,
    noise_multiplier: ScalarLike,
    *,
    normaliser: ScalarLike,
    key: Key,
) -> PyTree[Float[Array, "..."]]:
    """Private mean of the clients' values, whose privacy is that of the numbers that are released.

    Floating-point noise has gaps, which differ with the sum it is added to: the low-order bits of one release of
    `gaussian_mechanism` give a client away. Here each client's value is clipped, rounded to a public grid of step
    h, and shown to be within the clip norm in whole numbers. Whole numbers are added exactly. The noise is ⌊S N⌋ + ½
    grid steps, N exactly standard normal, with S = σζ/h a power of two. For whole numbers z, z + ⌊S N⌋ = ⌊z + S N⌋, so
    the release is a function of the ideal Gaussian mechanism's and has its ε, for any adjacency and number of
    rounds.

    **Args:** as of `gaussian_mechanism`. 2^14 to 2^15 grid steps are the clip norm; fewer where there are more than
    2^15 clients (2^30/`clients`), or where σ > 2^11 (2^26/σ).

    **Returns:** as `gaussian_mechanism`, whose result it approaches. A value of d entries is shortened by √d/2 + 1
    grid steps at most, and an entry is rounded by half a step at most. Where σ is not above 0, nothing is to be
    protected, and the result is that of `gaussian_mechanism`.

    **Source:** CENTAUR, section 2, GM and Algorithm 1; Mironov, On significance of the least significant bits for
    differential privacy (2012), for the attack. The noise: `_whole_normal`.

    The ε leaves out three things:

    - An entry's noise is within 2^-59 of the ideal in total variation. So δ grows by less than (1 + e^ε) d T 2^-59
      over T rounds.
    - The random bits are those of JAX's generator, whose `key` must be secret.
    - The time that it takes depends on the noise.

    **Cost:** seven passes over the values, and 5 comparisons for each entry's noise, until the last entry has its.

    >>> import jax, jax.numpy as jnp
    >>> values = jnp.array([[3.0, 4.0], [0.0, 0.5]])
    >>> print(grid_gaussian_mechanism(values, 1.0, 1e-4, normaliser=2.0, key=jax.random.key(0)).round(2))
    [0.3  0.65]
    """
    on_grid = lambda: _release(values, clip_norm, noise_multiplier, normaliser, key)
    in_floats = lambda: gaussian_mechanism(values, clip_norm, noise_multiplier, normaliser=normaliser, key=key)
    return jax.lax.cond(jnp.asarray(noise_multiplier) > 0, on_grid, in_floats)


def _release(
    values: PyTree[Float[Array, "clients ..."]],
    clip_norm: ScalarLike,
    noise_multiplier: ScalarLike,
    normaliser: ScalarLike,
    key: Key,
) -> PyTree[Float[Array, "..."]]:
    leaves, structure = jax.tree.flatten(values)
    dtype = widest(*(leaf.dtype for leaf in leaves))
    clip_norm = jnp.asarray(clip_norm, dtype)
    exponent, steps = _grid(jax.lax.stop_gradient(jnp.asarray(noise_multiplier, dtype)), leaves[0].shape[0])
    numbers = jax.vmap(_whole_numbers, (0, None, None))(leaves, clip_norm, steps)

    def release(number: Int[Array, "clients ..."], leaf: Float[Array, "clients ..."], key: Key) -> Array:
        total = jnp.sum(number, 0, dtype=jnp.int32) + whole_normal(key, leaf.shape[1:], exponent)
        centred = total.astype(dtype) + 0.5
        return (centred * (clip_norm / steps) / jnp.asarray(normaliser, dtype)).astype(leaf.dtype)

    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [release(*each) for each in zip(numbers, leaves, keys, strict=True)])


def _grid(sigma: Float[Array, ""], clients: int) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """log₂ S, and the clip norm in grid steps, S/σ. Nothing here knows the data."""
    bits = min(CLIP_BITS, SUM_BITS - (clients - 1).bit_length())
    mantissa, power = jnp.frexp(sigma)  # 1/2 ≤ mantissa < 1
    steps = jnp.minimum(2.0 ** (bits - 1) / mantissa, 2.0**FRACTION / sigma)
    return jnp.minimum(power - 1 + bits, FRACTION).astype(jnp.int32), steps


def _whole_numbers(
    client: list[Float[Array, "..."]], clip_norm: Float[Array, ""], steps: Float[Array, ""]
) -> list[Int[Array, "..."]]:
    """One client's value in grid steps: of squared norm at most `steps`² for certain, or else zero."""
    slack = math.sqrt(sum(leaf.size for leaf in client)) / 2 + 1  # of rounding to the grid, and of clipping
    near = clip_by_norm(client, clip_norm * (jnp.maximum(steps - slack, 0) / steps))
    scale = inverse_power(clip_norm)
    numbers = [jnp.round(leaf.astype(steps.dtype) * scale / (clip_norm * scale) * steps) for leaf in near]
    numbers = [jnp.where(jnp.abs(number) <= 2**CLIP_BITS, number, 0).astype(jnp.int32) for number in numbers]
    limit = steps**2 * (1 - 8 * float(jnp.finfo(jnp.float32).eps))  # as this is not exact
    within = _square(numbers) <= limit.astype(jnp.uint32)
    return [jnp.where(within, number, 0) for number in numbers]


def _square(numbers: list[Int[Array, "..."]]) -> UInt[Array, ""]:
    """Σ z², exactly up to the largest that can pass, and one more above it."""
    most = np.uint32(2 ** (2 * CLIP_BITS) + 1)
    add = lambda a, b: jnp.minimum(a + b, most)  # of two up to `most`, which 32 bits hold
    squares = [(number**2).astype(jnp.uint32).reshape(-1) for number in numbers]
    return jax.lax.reduce(jnp.concatenate(squares), np.uint32(0), add, (0,))
