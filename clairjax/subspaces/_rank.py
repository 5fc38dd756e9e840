"""How many eigenvalues of a scatter matrix are signal. Ranks are traced integers."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._precision import rounding_floor
from .._typing import ScalarLike


def rank_from_gap(eigenvalues: Float[Array, " n"], max_rank: int) -> Int[Array, ""]:
    """Rank with the largest ratio between successive eigenvalues, `argmax_r λ_r / λ_{r+1}`.

    **Args:**

    - `eigenvalues` ≥ 0 in descending order.
    - `max_rank`, static, cut to n − 1.

    **Returns:** int32 between 1 and `max_rank`, the smallest among equals; 0 if the largest eigenvalue is
    zero or not finite. Eigenvalues below `4 n eps` times the largest count as rounding.

    **Cost:** elementwise. It needs no noise model, but it always answers: with no signal, or with signals of
    unequal strength, prefer `noise_edge_rank`.

    >>> import jax.numpy as jnp
    >>> rank_from_gap(jnp.array([9.0, 7.0, 0.5, 0.4]), 3).item()
    2
    """
    size = eigenvalues.shape[0]
    max_rank = min(max_rank, size - 1)
    if max_rank < 1:
        return jnp.zeros((), jnp.int32)
    floored = jnp.maximum(eigenvalues, rounding_floor(eigenvalues))
    below = floored[1 : max_rank + 1]
    ratios = floored[:max_rank] / jnp.where(below > 0, below, 1)
    found = jnp.argmax(ratios).astype(jnp.int32) + 1
    return jnp.where((eigenvalues[0] > 0) & jnp.all(jnp.isfinite(eigenvalues)), found, 0)


def noise_edge_rank(
    eigenvalues: Float[Array, " n"],
    samples: ScalarLike | Int[Array, ""],
    max_rank: int,
    *,
    margin: ScalarLike = 1.2,
) -> Int[Array, ""]:
    """Number of eigenvalues of a scatter matrix that stand above its own noise.

    The eigenvalues are those of `Σ xxᵀ` over N rows in n dimensions, signal plus white noise of unknown
    variance σ². If r eigenvalues are signal, the others behave like those of N − r rows in n − r dimensions.
    Let l ≥ s be the larger and the smaller of these two numbers, and m(β) the median of the Marchenko–Pastur law
    for β = s/l. The median of the s nonzero eigenvalues is close to `σ² l m(β)`, and the largest is below

    `margin · σ² · (c² + 2.02 · c · (1/√l + 1/√s)^⅓)`,  `c = √l + √s`,

    in 99 % of cases at margin 1: the edge of the law and the Tracy–Widom fluctuation above it. The rank is
    the smallest r whose next eigenvalue is under this edge. This holds for N < n too, with N eigenvalues that
    are not zero.

    **Args:**

    - `eigenvalues` ≥ 0 in descending order, all n of them.
    - `samples` N ≥ 0, an integer or an effective number; may be traced.
    - `max_rank`, static, cut to n.
    - `margin`, for the error of the median and for noise that is not quite white.

    **Returns:** int32 between 0 and `max_rank`; 0 for a zero or non-finite scatter. Eigenvalues below `4 n
    eps` times the largest count as rounding, so that without noise the rank is the algebraic one.

    A signal must leave more than half of the `min(N, n)` nonzero eigenvalues to the noise, or the median is
    signal itself. At the default margin white noise has a positive rank in about 1 % of cases or fewer, 2–4 %
    where n or N is below 10. Rows with AR(1) correlation 0.25 have one in up to 2 % for N ≥ 2n, up to 8 % for
    N below n. Coordinates of very different variance are signal to it: raise the margin if they may not be.

    **Source:** Kritchman and Nadler (2008) for the sequence of tests; Gavish and Donoho (2014) for the
    median.

    **Cost:** `max_rank` scalar tests.

    >>> import jax.numpy as jnp
    >>> spectrum = jnp.array([900.0, 400.0, 140.0, 120.0, 105.0, 95.0, 80.0, 70.0])
    >>> noise_edge_rank(spectrum, 100, 4).item()
    2
    """
    size = eigenvalues.shape[0]
    max_rank = min(max_rank, size)
    dtype = eigenvalues.dtype
    rank = jnp.arange(max_rank)
    rows = jnp.maximum(jnp.asarray(samples, dtype) - rank.astype(dtype), 0)
    dimensions = (size - rank).astype(dtype)
    larger, smaller = jnp.maximum(rows, dimensions), jnp.minimum(rows, dimensions)
    variance = _median_after(eigenvalues, rank, smaller) / (larger * _marchenko_pastur_median(smaller / larger))
    edge = jnp.asarray(margin, dtype) * variance * _largest_of_noise(larger, smaller)
    signal = (smaller > 0) & (eigenvalues[:max_rank] > jnp.maximum(edge, rounding_floor(eigenvalues)))
    found = jnp.sum(jnp.cumprod(signal.astype(jnp.int32)), dtype=jnp.int32)
    return jnp.where(jnp.all(jnp.isfinite(eigenvalues)), found, 0)


def _median_after(
    eigenvalues: Float[Array, " n"], rank: Int[Array, " r"], count: Float[Array, " r"]
) -> Float[Array, " r"]:
    """Median of the `count` eigenvalues that follow the first `rank`; zero if none follows."""
    count = jnp.ceil(count).astype(rank.dtype)
    last = eigenvalues.shape[0] - 1
    upper = eigenvalues[jnp.clip(rank + (count - 1) // 2, 0, last)]
    lower = eigenvalues[jnp.clip(rank + count // 2, 0, last)]
    return jnp.where(count > 0, jnp.maximum((upper + lower) / 2, 0), 0)


def _marchenko_pastur_median(ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Median of the Marchenko–Pastur law of unit variance for aspect ratios in [0, 1]: a fit to 6e-6."""
    return 1 - ratio * (0.33325883 + ratio * (0.01051967 + ratio * (0.00095581 + ratio * 0.00248439)))


def _largest_of_noise(larger: Float[Array, "*shape"], smaller: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Quantile 0.99 of the largest eigenvalue of unit white noise (2.02: that of the Tracy–Widom law)."""
    smaller = jnp.maximum(smaller, 1)
    centre = jnp.sqrt(larger) + jnp.sqrt(smaller)
    return centre * (centre + 2.02 * jnp.cbrt(1 / jnp.sqrt(larger) + 1 / jnp.sqrt(smaller)))
