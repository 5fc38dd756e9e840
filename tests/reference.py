"""The CLAIR procedure in plain NumPy, from the paper alone, and its programs in a convex modelling library.

Nothing here imports clairjax: every solver of the library is checked against this file, and this file against
itself (test_reference.py). Stacks of contrasts are [pairs, out, in], in the order of `np.triu_indices(K, 1)`.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Solution(NamedTuple):
    low_rank: np.ndarray  # L [pairs, out, in]
    sparse: np.ndarray  # S [pairs, out, in]
    objective: float
    gap: float  # objective minus a lower bound of the optimum; NaN if not known
    steps: int


def contrasts(weights: np.ndarray) -> np.ndarray:
    """(5)-(6)."""
    return np.stack([weights[j] - weights[k] for j, k in itertools.combinations(range(len(weights)), 2)])


def pair_vector(pair_weights: float | np.ndarray, clients: int) -> np.ndarray:
    """ω_g in the order of the stack, from one number or a symmetric [K, K] table."""
    table = np.broadcast_to(np.asarray(pair_weights, float), (clients, clients))
    return table[np.triu_indices(clients, 1)]


def flat(blocks: np.ndarray) -> np.ndarray:
    return blocks.reshape(-1, blocks.shape[-1])


def norms(blocks: np.ndarray) -> np.ndarray:
    return np.sqrt((blocks**2).sum((1, 2)))


def objective(stack, low_rank, sparse, penalty, omega) -> float:
    """(7), with penalty = (λ_L, λ_S)."""
    loss = 0.5 * np.sum(omega * norms(stack - low_rank - sparse) ** 2)
    return loss + penalty[0] * np.linalg.norm(flat(low_rank), "nuc") + penalty[1] * norms(sparse).sum()


def dual_value(stack, multiplier, omega) -> float:
    """⟨Z, D⟩ − ½ Σ ‖Z_g‖²/ω_g: a lower bound of (7) for each Z with ‖Z‖_op ≤ λ_L and all ‖Z_g‖_F ≤ λ_S."""
    return np.sum(multiplier * stack) - 0.5 * np.sum(norms(multiplier) ** 2 / omega)


def duality_gap(stack, low_rank, sparse, penalty, omega) -> float:
    """Objective minus the dual value of the residual, scaled until it is feasible."""
    multiplier = omega[:, None, None] * (stack - low_rank - sparse)
    excess = max(np.linalg.norm(flat(multiplier), 2) / penalty[0], norms(multiplier).max() / penalty[1], 1.0)
    return objective(stack, low_rank, sparse, penalty, omega) - dual_value(stack, multiplier / excess, omega)


def svt(matrix: np.ndarray, threshold: float) -> np.ndarray:
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return (left * np.maximum(values - threshold, 0)) @ right


def svt_gram(matrix: np.ndarray, threshold: float) -> np.ndarray:
    """The same through the eigenvectors of the small Gram: the fast choice for a tall stack."""
    squares, right = np.linalg.eigh(matrix.T @ matrix)
    values = np.sqrt(np.maximum(squares, 0))
    shrink = np.maximum(values - threshold, 0) / np.where(values > 0, values, 1)
    return matrix @ ((right * shrink) @ right.T)


def block_soft_threshold(blocks: np.ndarray, threshold: float) -> np.ndarray:
    size = norms(blocks)
    return blocks * (np.maximum(size - threshold, 0) / np.where(size > 0, size, 1))[:, None, None]


def algorithm1(
    weights: np.ndarray,
    penalty: tuple[float, float],
    pair_weights: float | np.ndarray = 1.0,
    *,
    max_steps: int = 100_000,
    rtol: float | None = 1e-10,
    target: float | None = None,
    check_every: int = 10,
    threshold_singular_values: Callable[[np.ndarray, float], np.ndarray] = svt,
) -> Solution:
    """Algorithm 1 with its constant step 1/(2 max ω), from zero.

    Stops when the duality gap is at most rtol times the objective, or when the objective is at most `target`.
    """
    stack = contrasts(weights)
    omega = pair_vector(pair_weights, len(weights))
    step = 1 / (2 * omega.max())
    low_rank, sparse = np.zeros_like(stack), np.zeros_like(stack)
    value, gap = np.inf, np.nan
    for m in range(1, max_steps + 1):
        residual = omega[:, None, None] * (stack - low_rank - sparse)
        moved = flat(low_rank + step * residual)
        low_rank = threshold_singular_values(moved, step * penalty[0]).reshape(stack.shape)
        sparse = block_soft_threshold(sparse + step * residual, step * penalty[1])
        if m % check_every and m < max_steps:
            continue
        value = objective(stack, low_rank, sparse, penalty, omega)
        if target is not None and value <= target:
            break
        if rtol is not None:
            gap = duality_gap(stack, low_rank, sparse, penalty, omega)
            if gap <= rtol * value:
                break
    return Solution(low_rank, sparse, value, gap, m)


def convex_program(weights, penalty, pair_weights=1.0, *, exact: bool = False) -> Solution:
    """(7), or with `exact` the noiseless (24), by a convex modelling library. Small sizes only."""
    import cvxpy as cp

    stack = contrasts(weights)
    pairs, out, inputs = stack.shape
    omega = pair_vector(pair_weights, len(weights))
    low_rank = cp.Variable((pairs * out, inputs))
    sparse = flat(stack) - low_rank if exact else cp.Variable((pairs * out, inputs))
    blocks = [slice(g * out, (g + 1) * out) for g in range(pairs)]
    cost = penalty[0] * cp.normNuc(low_rank) + penalty[1] * sum(cp.norm(sparse[b], "fro") for b in blocks)
    if not exact:
        rest = flat(stack) - low_rank - sparse
        cost += 0.5 * sum(w * cp.sum_squares(rest[b]) for w, b in zip(omega, blocks, strict=True))
    value = cp.Problem(cp.Minimize(cost)).solve(solver=cp.CLARABEL)
    sparse_value = sparse.value
    return Solution(low_rank.value.reshape(stack.shape), sparse_value.reshape(stack.shape), value, np.nan, 0)


def projector(low_rank: np.ndarray, rtol: float = 1e-6) -> np.ndarray:
    """Onto the row space of L, singular values below rtol times the largest dropped."""
    _, values, right = np.linalg.svd(flat(low_rank), full_matrices=False)
    kept = right[values > rtol * values[0]] if values[0] > 0 else right[:0]
    return kept.T @ kept


def off_subspace(weights: np.ndarray, row_space: np.ndarray) -> np.ndarray:
    """[K, K] norms of the blocks D^(j,k) P_⊥."""
    rest = weights @ (np.eye(len(row_space)) - row_space)
    return np.sqrt(((rest[:, None] - rest[None]) ** 2).sum((2, 3)))


def largest_gap(table: np.ndarray) -> float:
    """The middle of the largest gap between the sorted values of the pairs."""
    values = np.sort(table[np.triu_indices(len(table), 1)])
    at = np.argmax(np.diff(values))
    return 0.5 * (values[at] + values[at + 1])


def vote(table: np.ndarray, threshold: float, share: float = 0.5) -> np.ndarray:
    """(8)."""
    near = (table <= threshold) & ~np.eye(len(table), dtype=bool)
    return near.sum(1) / (len(table) - 1) >= share


def refine(
    weights: np.ndarray, members: np.ndarray, row_space: np.ndarray, counts: np.ndarray | None = None
) -> np.ndarray:
    """(9), term by term; the others keep their own matrix. `counts` of each member in the mean, 1 without."""
    refined = np.array(weights)
    voted = np.flatnonzero(members)
    for k in voted:
        terms = [weights[j] - (weights[j] - weights[k]) @ row_space for j in voted]
        refined[k] = np.average(terms, axis=0, weights=None if counts is None else counts[voted])
    return refined
