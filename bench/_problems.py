"""Clients and penalties that the benchmarks share."""

import jax
import numpy as np

from clairjax.data import MultiResponse


# Section 7 of the paper: samples a client has, by the number of inputs.
SAMPLES = {10: 100, 20: 150, 50: 300}


def section_7(clients: int, size: int) -> MultiResponse:
    """The paper's model with `size` inputs and outputs."""
    return MultiResponse(clients=clients, outputs=size, inputs=size, samples=SAMPLES[size])


def estimates(clients: int, size: int, replicates: int) -> jax.Array:
    """What the clients report, [replicates, clients, size, size], in the default float of the process."""
    keys = jax.random.split(jax.random.key(7), replicates)
    return jax.vmap(lambda key: section_7(clients, size).generate(key=key).estimates)(keys)


def planted(
    clients: int, size: int, *, rank: int = 2, contaminated_share: float = 0.25, noise: float = 0.1
) -> tuple[np.ndarray, np.ndarray]:
    """Float32 clients with a shared row space, the first ones contaminated, and the mask of the others.

    Drawn client by client: for the largest sizes the clients are the only array of their size.
    """
    rng = np.random.default_rng(11)
    contaminated = round(contaminated_share * clients)
    backbone = rng.standard_normal((size, size), np.float32)
    factor = rng.standard_normal((rank, size), np.float32)
    weights = noise * rng.standard_normal((clients, size, size), np.float32)
    for k in range(clients):
        weights[k] += backbone
        own = rng.standard_normal((size, size if k < contaminated else rank), np.float32)
        weights[k] += own / 2 if k < contaminated else own @ factor / np.sqrt(np.float32(rank))
    return weights, np.arange(clients) >= contaminated


def penalty(weights: np.ndarray, share: float = 0.6) -> tuple[float, float]:
    """(λ_L, λ_S) for pair weights 1/clients: λ_S a tenth of the median weighted contrast, λ_L a share of what kills L.

    The rule by which the library tunes, written again in NumPy so that both sides are handed the same numbers. The
    row space found depends on the share, hardly on the common scale of the two.
    """
    clients, _, inputs = weights.shape
    weights = weights - weights.mean(0)
    rows = weights.reshape(clients, -1)
    products = rows @ rows.T
    squares = np.diag(products)[:, None] + np.diag(products) - 2 * products
    sparse = 0.1 * np.median(np.sqrt(squares[np.triu_indices(clients, 1)])) / clients
    np.fill_diagonal(squares, np.inf)
    laplacian = np.diag((1 / squares).sum(1)) - 1 / squares
    scatter = weights.reshape(-1, inputs).T @ (laplacian @ rows).reshape(-1, inputs)  # Σ DᵀD/‖D‖² over pairs
    return float(share * sparse * np.sqrt(np.linalg.eigvalsh(scatter)[-1])), float(sparse)
