"""Sums of products of factors, W = Σ c · up · down, by NumPy in float64.

Tables of the factors' inner products, as wide as the sum of their ranks, give what is needed of W. They are cheap
beside decompositions of tall matrices. W is formed only where a side of it is smaller than the tables.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np


CUT = 1e-7  # of the largest singular value: tables of inner products keep half of the digits
Pair = tuple[np.ndarray, np.ndarray]  # up [out, rank] and down [rank, in]


class Tables(NamedTuple):
    """Of up · down: the inner products of the columns of up, and of the rows of down."""

    columns: np.ndarray
    rows: np.ndarray

    def norm(self, shares: np.ndarray | float = 1.0) -> float:
        """‖up · diag(shares) · down‖_F."""
        return float(np.sqrt(max(np.sum(self.weighed(shares).columns * self.rows), 0)))

    def weighed(self, shares: np.ndarray | float) -> "Tables":
        """Of up · diag(shares) and down."""
        return Tables(self.columns * np.multiply.outer(shares, shares), self.rows)


class Spectrum(NamedTuple):
    """W = up · left · diag(values) · right · down, with values descending; those below the rounding are left out.

    The singular vectors, up · left and right · down, are as long as the sides of W, so that only those are formed
    that are needed.
    """

    pair: Pair
    left: np.ndarray
    values: np.ndarray
    right: np.ndarray


def summed(parts: Iterable[tuple[float, Pair]]) -> Pair:
    """Σ c · up · down as one product."""
    parts = list(parts)
    ups = [up if scale == 1 else float(scale) * up for scale, (up, _) in parts]
    return np.hstack(ups, dtype=np.float64), np.vstack([down for _, (_, down) in parts], dtype=np.float64)


def inner_products(pairs: Sequence[Pair]) -> np.ndarray:
    """⟨W_j, W_k⟩ of some matrices."""
    columns, rows = summed((1, pair) for pair in pairs)
    starts = np.cumsum([0, *(up.shape[1] for up, _ in pairs[:-1])])
    table = (columns.T @ columns) * (rows @ rows.T)
    return np.add.reduceat(np.add.reduceat(table, starts, 0), starts, 1)


def tables(pair: Pair) -> Tables:
    up, down = pair
    return Tables(up.T @ up, down @ down.T)


def tables_beside(few: Pair, many: Pair, known: Tables) -> Tables:
    """Of `few` and `many` side by side, where those of `many` are `known`: they cost most."""
    own, across = tables(few), Tables(few[0].T @ many[0], few[1] @ many[1].T)
    whole = zip(own, across, known, strict=True)
    return Tables(*(np.block([[mine, both], [both.T, theirs]]) for mine, both, theirs in whole))


def norm(pair: Pair) -> float:
    """‖up · down‖_F."""
    return tables(pair).norm()


def distance(one: Pair, other: Pair, known: Tables, shares: np.ndarray | float = 1.0) -> float:
    """Of a product from that of `other` with `shares`, whose tables are `known`."""
    one = summed([(1, one)])
    signs = np.concatenate([np.ones(one[0].shape[1]), -np.broadcast_to(shares, len(known.rows))])
    return tables_beside(one, other, known).norm(signs)


def spectrum(pair: Pair, known: Tables | None = None) -> Spectrum:
    """By eigendecompositions of tables: two of the rank, or one of a side of W where that is not larger."""
    up, down = pair
    if up.shape[0] > down.shape[1]:
        turned = spectrum((down.T, up.T), known and Tables(known.rows, known.columns))
        right, left = turned.pair
        return Spectrum((left.T, right.T), turned.right.T, turned.values, turned.left.T)
    if up.shape[1] >= up.shape[0]:
        whole = up @ down
        values, left = _roots(whole @ whole.T)
        return Spectrum((np.eye(len(whole)), whole), left, values, left.T / values[:, None])
    columns, rows = known or tables(pair)
    sizes, turn = _roots(rows)
    values, back = _roots((turn * sizes).T @ columns @ (turn * sizes))
    left = (turn * sizes) @ (back / values)
    return Spectrum(pair, left, values, left.T @ columns / values[:, None])


def _roots(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Singular values, descending, and vectors of what has this table; none of zeros."""
    squares, vectors = np.linalg.eigh(table)
    values = np.sqrt(np.maximum(squares[::-1], 0))
    kept = int(np.sum(values > CUT * values.max(initial=0)))
    return values[:kept], vectors[:, ::-1][:, :kept]


def rows_of(found: Spectrum) -> np.ndarray:
    """The right singular vectors, as rows."""
    return found.right @ found.pair[1]


def rank_within(values: np.ndarray, error: float) -> int:
    """The smallest rank, from 1, that leaves out at most `error` in Frobenius norm."""
    tails = np.sqrt(np.cumsum(values[::-1] ** 2))[::-1]
    return max(1, int(np.sum(tails > error)))


def balanced(found: Spectrum, rank: int) -> Pair:
    """The best approximation of this rank, U Σ^½ · Σ^½ Vᵀ, padded with zeros."""
    kept = min(rank, len(found.values))
    root, missing = np.sqrt(found.values[:kept]), rank - kept
    up, down = found.pair
    up, down = up @ (found.left[:, :kept] * root), (root[:, None] * found.right[:kept]) @ down
    return np.pad(up, ((0, 0), (0, missing))), np.pad(down, ((0, missing), (0, 0)))


def in_type(pair: Pair, kind: Any) -> Pair:
    """As a file has it; too large a number is infinite there, and looked at by the caller."""
    with np.errstate(over="ignore"):
        up, down = (np.ascontiguousarray(factor).astype(kind) for factor in pair)
    return up, down
