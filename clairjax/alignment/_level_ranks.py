"""Clients of several ranks, made comparable."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ._low_rank import LowRankMatrices, client_factors
from ._refit import PLAIN_GAP


def level_ranks(weights: LowRankMatrices) -> LowRankMatrices:
    """Clients as the vote should see them where ranks differ; of equal ranks `weights` itself.

    A client of larger rank carries noise in more directions. So it is further from everyone, whatever it learned, and
    contaminated clients of small rank look near. Vote on what this gives, and refine `weights` as they are.

    The level is the largest rank R that more than half of the clients reach. At a smaller level most clients would
    lose what they share. A gap is a factor of 4 between squares of singular values. A client's directions before the
    last gap in its spectrum are plain; without a gap all are. The middle client of those that reach R has s plain
    directions, at most R. The first s directions of everyone stay. The others are noise, and everyone is given R − s:

    - A client above the level keeps its R leading directions. The noise among them is its largest. It is scaled to a
      mean square that is the mean over all of the client's noise, less what more noise adds to the first s.
    - A client below it gets further directions. They are drawn, always from one seed, with the mean square that the
      noise of the middle client has. So whoever has less noise is no group apart.

    No minority sets R, s or the size of noise. Where spectra fall off without a gap, as trained adapters' do, s is R:
    larger clients are cut, and smaller ones stay as they are.

    **Limits:** a client of a rank below s lacks a part of what others share, and can be voted out for it. Where R is s
    because most clients have no noise at all, none is drawn, and those who have some can look apart.

    **Args:** `weights`, outside a trace: the ranks decide on shapes. A rank is that of the product; columns of
    zeros do not count.

    **Returns:** `LowRankMatrices` of the same type, of ranks up to R.

    **Raises:** `ValueError` as `clair`, for `weights`.

    **Source:** not in CLAIR, whose clients are of one rank; Eckart and Young for the cut.

    **Cost:** of mixed ranks a QR of both factors and an SVD of rank × rank a client, in float64, by NumPy.

    >>> import jax
    >>> import clairjax as cj
    >>> keys, ranks = jax.random.split(jax.random.key(0), 10), (2, 3, 2, 3, 2)
    >>> ups = [jax.random.normal(key, (9, rank)) for key, rank in zip(keys[:5], ranks)]
    >>> downs = [jax.random.normal(key, (rank, 8)) for key, rank in zip(keys[5:], ranks)]
    >>> weights = cj.LowRankMatrices(ups, downs)
    >>> levelled = cj.alignment.level_ranks(weights)
    >>> levelled.ranks.tolist()
    [2, 2, 2, 2, 2]
    >>> cj.alignment.refine(weights, cj.alignment.elect(levelled).members).shape
    (5, 9, 8)
    """
    weights = client_factors(weights)
    given = np.asarray(weights.ranks)
    if (given == given[0]).all():
        return weights
    left, values, right = _singular_values(weights)
    squares = np.square(values)
    rounding = 16 * float(jnp.finfo(weights.dtype).eps)
    held = np.maximum(np.sum(values > rounding * values[:, :1], axis=1), 1)
    level = int(_middle(held))
    plain = _plain(squares, held, level)
    place = np.arange(level)
    kept = squares[:, :level] * (place < held[:, None])
    noise, largest = _noise(squares, held, plain), _noise(kept, np.minimum(held, level), plain)
    # A share s/out of all noise lies in the columns of the first s directions, and stays there.
    less = np.maximum(held - level, 0) * plain / (left.shape[1] * max(level - plain, 1))
    fair = noise * np.maximum(1 - less, 0)
    kept[:, plain:] *= np.divide(fair, largest, out=np.ones_like(noise), where=largest > 0)[:, None]
    lengths = np.sqrt(kept)
    up, down = left[:, :, :level] * np.sqrt(lengths)[:, None], np.sqrt(lengths)[:, :, None] * right[:, :level]
    missing = place >= np.maximum(held, plain)[:, None]
    length = np.sqrt(_middle(noise[held >= level]))
    draw = np.random.default_rng(0)
    up += missing[:, None] * draw.normal(scale=np.sqrt(length / up.shape[1]), size=up.shape)
    down += missing[:, :, None] * draw.normal(scale=np.sqrt(length / down.shape[2]), size=down.shape)
    levelled = LowRankMatrices(up.astype(weights.dtype), down.astype(weights.dtype))
    ranks = np.minimum(held, level) + missing.sum(1)
    return eqx.tree_at(lambda each: each.ranks, levelled, jnp.asarray(ranks, jnp.int32))


def _singular_values(weights: LowRankMatrices) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each client's U [out, n], values [n] and Vᵀ [n, in]; by the small core between orthonormal factors."""
    left, upper = np.linalg.qr(np.asarray(weights.up, np.float64))
    right, lower = np.linalg.qr(np.asarray(weights.scaled_down(), np.float64).swapaxes(1, 2))
    turn, values, back = np.linalg.svd(upper @ lower.swapaxes(1, 2), full_matrices=False)
    return left @ turn, values, back @ right.swapaxes(1, 2)


def _plain(squares: np.ndarray, ranks: np.ndarray, level: int) -> int:
    numbers = [_last_gap(mine[:rank], level) for mine, rank in zip(squares, ranks, strict=True) if rank >= level]
    return min(int(_middle(np.array(numbers))), level)


def _last_gap(squares: np.ndarray, otherwise: int) -> int:
    gaps = np.flatnonzero(squares[:-1] > PLAIN_GAP * squares[1:])
    return int(gaps[-1]) + 1 if gaps.size else otherwise


def _noise(squares: np.ndarray, ranks: np.ndarray, plain: int) -> np.ndarray:
    """Each client's mean square after the first `plain`; 0 where there is nothing."""
    place = np.arange(squares.shape[1])
    after = (place >= plain) & (place < ranks[:, None])
    return (squares * after).sum(1) / np.maximum(after.sum(1), 1)


def _middle(values: np.ndarray) -> float:
    """The largest that more than half of them reach."""
    return float(np.sort(values)[(len(values) - 1) // 2])
