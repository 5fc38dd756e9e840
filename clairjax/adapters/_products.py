"""Sums of products of factors, W = Σ c · up · down, by NumPy in float64.

Tables of the factors' inner products, as wide as the sum of their ranks, give what is needed of W. They are cheap
beside decompositions of tall matrices. W is formed only where a side of it is smaller than the tables.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np


CUT = 1e-7  # of the largest singular value: tables of inner products keep half of the digits
Pair = tuple[np.ndarray, np.ndarray]  # up [out, rank] and down [rank, in]


class Spectrum(NamedTuple):
    """W = left · diag(values) · right, values descending; those below the rounding are left out."""

    left: np.ndarray
    values: np.ndarray
    right: np.ndarray


def summed(parts: Iterable[tuple[float, Pair]]) -> Pair:
    """Σ c · up · down as one product."""
    parts = list(parts)
    ups = [float(scale) * up.astype(np.float64) for scale, (up, _) in parts]
    return np.hstack(ups), np.vstack([down.astype(np.float64) for _, (_, down) in parts])


def inner_products(pairs: Sequence[Pair]) -> np.ndarray:
    """⟨W_j, W_k⟩ of some matrices."""
    columns, rows = summed((1, pair) for pair in pairs)
    starts = np.cumsum([0, *(up.shape[1] for up, _ in pairs[:-1])])
    table = (columns.T @ columns) * (rows @ rows.T)
    return np.add.reduceat(np.add.reduceat(table, starts, 0), starts, 1)


def norm(pair: Pair) -> float:
    """‖up · down‖_F."""
    up, down = pair
    return float(np.sqrt(max(np.sum((up.T @ up) * (down @ down.T)), 0)))


def spectrum(pair: Pair) -> Spectrum:
    """By eigendecompositions of tables: two of the rank, or one of a side of W where that is not larger."""
    up, down = pair
    if up.shape[0] > down.shape[1]:
        right, values, left = spectrum((down.T, up.T))
        return Spectrum(left.T, values, right.T)
    if up.shape[1] >= up.shape[0]:
        whole = up @ down
        values, left = _roots(whole @ whole.T)
        return Spectrum(left, values, (left.T @ whole) / values[:, None])
    sizes, turn = _roots(down @ down.T)
    columns = up @ (turn * sizes)
    values, turn = _roots(columns.T @ columns)
    left = columns @ (turn / values)
    return Spectrum(left, values, (left.T @ up) @ down / values[:, None])


def _roots(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Singular values, descending, and vectors of what has this table; none of zeros."""
    squares, vectors = np.linalg.eigh(table)
    values = np.sqrt(np.maximum(squares[::-1], 0))
    kept = int(np.sum(values > CUT * values.max(initial=0)))
    return values[:kept], vectors[:, ::-1][:, :kept]


def rank_within(values: np.ndarray, error: float) -> int:
    """The smallest rank, from 1, that leaves out at most `error` in Frobenius norm."""
    tails = np.sqrt(np.cumsum(values[::-1] ** 2))[::-1]
    return max(1, int(np.sum(tails > error)))


def balanced(found: Spectrum, rank: int) -> Pair:
    """The best approximation of this rank, U Σ^½ · Σ^½ Vᵀ, padded with zeros."""
    kept = min(rank, len(found.values))
    root, missing = np.sqrt(found.values[:kept]), rank - kept
    up, down = found.left[:, :kept] * root, root[:, None] * found.right[:kept]
    return np.pad(up, ((0, 0), (0, missing))), np.pad(down, ((0, missing), (0, 0)))


def in_type(pair: Pair, kind: Any) -> Pair:
    """As a file has it; too large a number is infinite there, and looked at by the caller."""
    with np.errstate(over="ignore"):
        up, down = (np.ascontiguousarray(factor).astype(kind) for factor in pair)
    return up, down
