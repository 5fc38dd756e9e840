"""CLAIR's Algorithm 1 in plain NumPy, as fast as NumPy lets it be: what the solvers are timed against.

It is given what a user would not have: buffers reused, the singular value threshold through the small Gram (or by
an SVD, the textbook way), one weight for all pairs folded into the step, and the number of steps it needs, so that
it spends no time on a stopping rule.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np


SingularThreshold = Callable[[np.ndarray, float], np.ndarray]


def contrasts(weights: np.ndarray) -> np.ndarray:
    j, k = np.triu_indices(len(weights), 1)
    return weights[j] - weights[k]


def flat(blocks: np.ndarray) -> np.ndarray:
    return blocks.reshape(-1, blocks.shape[-1])


def norms(blocks: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("gqp,gqp->g", blocks, blocks))


def svt_by_svd(matrix: np.ndarray, threshold: float) -> np.ndarray:
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return (left * np.maximum(values - threshold, 0)) @ right


def svt_by_gram(matrix: np.ndarray, threshold: float) -> np.ndarray:
    squares, right = np.linalg.eigh(matrix.T @ matrix)
    values = np.sqrt(np.maximum(squares, 0))
    kept = values > threshold
    return matrix @ ((right[:, kept] * (1 - threshold / values[kept])) @ right[:, kept].T)


def iterates(
    weights: np.ndarray, penalty: tuple[float, float], pair_weight: float, svt: SingularThreshold
) -> Iterator[np.ndarray]:
    """The low-rank part after each step of Algorithm 1 from zero, with its constant step 1/(2ω)."""
    stack = contrasts(weights)
    step = 1 / (2 * pair_weight)
    low_rank, sparse, half = np.zeros_like(stack), np.zeros_like(stack), np.empty_like(stack)
    while True:
        np.subtract(stack, low_rank, out=half)
        half -= sparse
        half /= 2  # t ω R
        low_rank += half
        sparse += half
        low_rank = svt(flat(low_rank), step * penalty[0]).reshape(stack.shape)
        sizes = norms(sparse)
        sparse *= (np.maximum(sizes - step * penalty[1], 0) / np.where(sizes > 0, sizes, 1))[:, None, None]
        yield low_rank


def low_rank_after(
    steps: int, weights: np.ndarray, penalty: tuple[float, float], pair_weight: float, svt: SingularThreshold
) -> np.ndarray:
    return next(itertools.islice(iterates(weights, penalty, pair_weight, svt), steps - 1, None))


def objective(stack: np.ndarray, low_rank: np.ndarray, penalty: tuple[float, float], pair_weight: float) -> float:
    """(7) at a low-rank part and the sparse part that suits it best, which Algorithm 1's own approaches."""
    sizes = norms(stack - low_rank)
    bend = penalty[1] / pair_weight
    loss = np.where(sizes <= bend, sizes**2 / 2, bend * (sizes - bend / 2)).sum() * pair_weight
    squares = np.linalg.eigvalsh(flat(low_rank).T @ flat(low_rank))
    return float(loss + penalty[0] * np.sqrt(np.maximum(squares, 0)).sum())


def steps_needed(
    weights: np.ndarray, penalty: tuple[float, float], pair_weight: float, bound: float, max_steps: int = 20_000
) -> int:
    """The first step at which the objective is at or below `bound`."""
    stack = contrasts(weights)
    for steps, low_rank in enumerate(iterates(weights, penalty, pair_weight, svt_by_gram), 1):
        if objective(stack, low_rank, penalty, pair_weight) <= bound:
            return steps
        if steps == max_steps:
            break
    raise RuntimeError(f"Algorithm 1 did not reach {bound} in {max_steps} steps.")


def projector(low_rank: np.ndarray, rank: int) -> np.ndarray:
    """Onto the leading `rank` directions of the row space."""
    _, vectors = np.linalg.eigh(flat(low_rank).T @ flat(low_rank))
    leading = vectors[:, vectors.shape[1] - rank :]
    return leading @ leading.T


def vote_and_refine(weights: np.ndarray, row_space: np.ndarray, share: float = 0.5) -> np.ndarray:
    """(8) at the largest gap between the off-subspace distances, and (9)."""
    clients = len(weights)
    rest = weights - weights @ row_space
    rows = rest.reshape(clients, -1)
    products = rows @ rows.T
    squares = np.diag(products)[:, None] + np.diag(products) - 2 * products
    distances = np.sqrt(np.maximum(squares, 0))
    ordered = np.sort(distances[np.triu_indices(clients, 1)])
    widest = np.argmax(np.diff(ordered))
    near = (distances <= ordered[widest : widest + 2].mean()).sum(1) - 1
    members = near >= share * (clients - 1)
    refined = weights.copy()
    refined[members] += rest[members].mean(0) - rest[members]
    return refined
