"""What one layer tells of each pair of its clients. NumPy in, NumPy out: then nothing is compiled."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from ._low_rank import LowRankMatrices
from ._majority import NEAR_COPY


USUAL = 5  # of so many pairs the nearest is what is usual: within a majority, whatever the others are
ROUNDING = 1e-12  # of squared distances of directions: a file's float32
COMMON, STEPS = 4, 3  # directions of the clients' mean, and steps of the power method that finds them

Numbers = Array | np.ndarray
Either = Any  # an array of NumPy's or JAX's, or a scalar of theirs


class Evidence(NamedTuple):
    """Tables over pairs of clients, zero where one is absent; or of many layers, with an axis before.

    - `cosine` of W_j and W_k, ⟨W_j, W_k⟩ / ‖W_j‖‖W_k‖;
    - `overlap` of their row spaces, tr(P_j P_k) / √(r_j r_k), in [0, 1];
    - `chance`: the cosine's variance were the columns of W_j and W_k unrelated;
    - `rows`: the cosine of W_jᵀW_j and W_kᵀW_k; `apart`: the same of what is a client's own, W_k/‖W_k‖ less the mean;
    - `near`: whether both sent one direction, or nearly;
    - `size`, ‖W_k‖; `present`, who is in the layer and sent more than zeros.
    """

    cosine: Float[Numbers, "*layers clients clients"]
    overlap: Float[Numbers, "*layers clients clients"]
    chance: Float[Numbers, "*layers clients clients"]
    rows: Float[Numbers, "*layers clients clients"]
    apart: Float[Numbers, "*layers clients clients"]
    near: Bool[Numbers, "*layers clients clients"]
    size: Float[Numbers, "*layers clients"]
    present: Bool[Numbers, "*layers clients"]


def evidence(weights: LowRankMatrices | tuple[Numbers, Numbers] | Shaped[Numbers, "clients out in"]) -> Evidence:
    """What one layer tells of each pair of its clients, for `pool`: of one layer inside a trace, say.

    **Args:** `weights`, [clients, out, in] or `LowRankMatrices`; or a pair of arrays, B [clients, out, rank] and
    A [clients, rank, in], where columns of zeros fill up smaller ranks.

    **Returns:** `Evidence`, in NumPy arrays of NumPy arrays: then nothing is compiled.

    **Source:** not in CLAIR.

    **Cost:** of factors K²r²(out + in), by products of rank × rank and Gram matrices alone; of others K·in³.

    >>> import numpy as np
    >>> import clairjax as cj
    >>> one = np.diag([1.0, 2.0])
    >>> cj.alignment.evidence(np.stack([one, -3 * one, one[::-1]])).cosine.round(1).tolist()
    [[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    if isinstance(weights, LowRankMatrices):
        return of_factors(weights.up, weights.scaled_down())
    if isinstance(weights, tuple):
        return of_factors(*weights)
    xp = weights.__array_namespace__()
    with jax.default_matmul_precision("highest"):
        count, out, _ = weights.shape
        grams = xp.matmul(weights.swapaxes(1, 2), weights)
        values, vectors = xp.linalg.eigh(grams)
        held = values > _cut(values.dtype) * values[:, -1:]
        spaces = xp.matmul(xp.where(held[:, None], vectors, 0), vectors.swapaxes(1, 2))
        own = weights / divisor(xp.sqrt((weights * weights).sum((1, 2))))[:, None, None]
        share = _shares(_inner(own.reshape(count, -1)))
        own = own - (share[:, None, None] * own).sum(0)[None]
        own_grams = xp.matmul(own.swapaxes(1, 2), own)
        tables = (_inner(each.reshape(count, -1)) for each in (weights, grams, spaces, own_grams))
        return _evidence(out, *tables)


def of_factors(up: Float[Numbers, "clients out rank"], down: Float[Numbers, "clients rank in"]) -> Evidence:
    """Of W_k = up_k down_k. Columns of zeros, which fill up smaller ranks, change nothing."""
    xp: Any = up.__array_namespace__()
    with jax.default_matmul_precision("highest"):
        count, out, rank = up.shape
        columns, left, left_back = _orthonormal(up.swapaxes(1, 2))
        lengths, right, right_back = _orthonormal(down)
        core = xp.matmul(left.swapaxes(1, 2), (columns * lengths)[..., None] * right)
        turn, values, back = xp.linalg.svd(core)
        held = values > _cut(values.dtype) ** 0.5 * values[:, :1]
        values = xp.where(held, values, 0)
        # Singular vectors of W_k, as rows.
        left = xp.matmul(xp.where(held[:, None], turn, 0).swapaxes(1, 2), left_back)
        right = xp.matmul(xp.where(held[..., None], back, 0), right_back)
        across, along = (_inner(each.reshape(count * rank, -1)) for each in (left, right))
        weighed = values.reshape(-1, 1) * along * values.reshape(1, -1)
        unit = values / divisor(xp.sqrt((values * values).sum(1)))[:, None]
        cosines = _by_pair(unit.reshape(-1, 1) * along * across * unit.reshape(1, -1), count)
        start = right[xp.argmax(cosines.sum(1))][:COMMON]
        own = _own_rows(left, unit[..., None] * right, _shares(cosines), start)
        own = _inner(own.reshape(-1, own.shape[2]))
        tables = (weighed * across, weighed * weighed, along * along, own * own)
        return _evidence(out, *(_by_pair(each, count) for each in tables))


def _by_pair(table: Either, count: int) -> Either:
    rank = len(table) // count
    return table.reshape(count, rank, count, rank).sum((1, 3))


def _own_rows(left: Either, right: Either, share: Either, start: Either) -> Either:
    """Of D_k = left_kᵀ right_k less M, their mean by `share`, R_k with R_kᵀR_k = (D_k − M)ᵀ(D_k − M). Of M the leading
    directions alone: what clients have in common has few. The power method finds them, from the rows `start`."""
    xp: Any = left.__array_namespace__()
    count, rank, out = left.shape
    columns, rows = left.reshape(count * rank, out), (share[:, None, None] * right).reshape(count * rank, -1)
    lead = start
    for _ in range(STEPS):
        lead = _orthonormal(((start @ rows.T) @ columns)[None])[2][0]
        start = (lead @ columns.T) @ rows
    both = xp.concat([left, xp.broadcast_to(lead[None], (count, *lead.shape))], axis=1)
    values, vectors = xp.linalg.eigh(xp.matmul(both, both.swapaxes(1, 2)))
    roots = xp.matmul(vectors * xp.sqrt(xp.maximum(values, 0))[:, None], vectors.swapaxes(1, 2))
    own = xp.concat([right, xp.broadcast_to(-start[None], (count, *start.shape))], axis=1)
    return xp.matmul(roots, own)


def _orthonormal(factor: Float[Numbers, "clients rank side"]) -> tuple[Either, Either, Either]:
    """Lengths ℓ, H and Q with factor_k = diag(ℓ) H Q, the rows of Q orthonormal or zero. By Gram matrices of rows of
    one length: a QR of the tall side takes ten times as long."""
    xp: Any = factor.__array_namespace__()
    lengths = xp.sqrt((factor * factor).sum(2))
    unit = factor / divisor(lengths)[..., None]
    values, vectors = xp.linalg.eigh(xp.matmul(unit, unit.swapaxes(1, 2)))
    held = values > _cut(values.dtype) * values[:, -1:]
    roots = xp.where(held, xp.sqrt(xp.where(held, values, 1)), 0)
    back = xp.matmul(xp.where(held[:, None], vectors / divisor(roots)[:, None], 0).swapaxes(1, 2), unit)
    return lengths, vectors * roots[:, None], back


def _evidence(out: int, inner: Either, row_inner: Either, shared: Either, own_inner: Either) -> Evidence:
    """From ⟨W_j, W_k⟩, ⟨W_jᵀW_j, W_kᵀW_k⟩, tr(P_j P_k), and the second of what is a client's own."""
    xp: Any = inner.__array_namespace__()
    squares = xp.diagonal(inner)
    present = squares > 0
    both = (squares[:, None] * squares[None]) ** 0.5
    cosine = inner / divisor(both)
    return Evidence(
        cosine=cosine,
        overlap=shared / divisor(_outer_root(xp, shared)),
        chance=row_inner / divisor(both * both) / out,
        rows=row_inner / divisor(_outer_root(xp, row_inner)),
        apart=own_inner / divisor(_outer_root(xp, own_inner)),
        near=_near(cosine),
        size=xp.sqrt(xp.where(present, squares, 0)),
        present=present,
    )


def _near(cosine: Either) -> Either:
    """Pairs whose directions are the same, to rounding or to a hundredth of what is usual of others."""
    xp: Any = cosine.__array_namespace__()
    count, apart, present = len(cosine), 1 - cosine, xp.diagonal(cosine) > 0
    rounding = max(ROUNDING, 64 * float(xp.finfo(apart.dtype).eps))
    others = present[:, None] & present[None] & ~np.eye(count, dtype=bool)
    differ = others & (apart > rounding)
    far = xp.sort(xp.where(differ, apart, np.inf).reshape(-1))
    usual = far[xp.minimum(differ.sum() // USUAL, count * count - 1)]
    return others & (apart <= xp.maximum(xp.where(xp.isfinite(usual), NEAR_COPY**2 * usual, 0), rounding))


def _shares(cosine: Either) -> Either:
    """Of the mean, where those who sent the same have one share together, and who sent zeros has none."""
    xp: Any = cosine.__array_namespace__()
    share = xp.where(xp.diagonal(cosine) > 0, 1 / (1 + _near(cosine).sum(1)).astype(cosine.dtype), 0)
    return share / divisor(share.sum())


def _inner(rows: Float[Numbers, "vectors entries"]) -> Float[Numbers, "vectors vectors"]:
    return rows @ rows.T


def _outer_root(xp: Any, table: Either) -> Either:
    diagonal = xp.diagonal(table)
    return xp.sqrt(diagonal[:, None] * diagonal[None])


def divisor(values: Either) -> Either:
    """1 where nothing is there to divide by."""
    xp: Any = values.__array_namespace__()
    return xp.where(values > 0, values, 1)


def _cut(dtype: Any) -> float:
    """Of squares, relative to the largest: below it is rounding, of a float32 file at best."""
    return max(1e-12, 64 * float(jnp.finfo(dtype).eps))
