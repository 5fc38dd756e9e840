"""Pairwise contrasts (5)-(6) and the K × K Laplacians that stand in for the stack of them."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._precision import HIGHEST


def pair_index(clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices (j, k), j < k, of the G = K(K−1)/2 pairs, in the paper's order (1,2), (1,3), …, (K−1,K)."""
    return np.triu_indices(clients, 1)


def contrasts(weights: Float[Array, "clients out in"]) -> Float[Array, "pairs out in"]:
    """The stack of contrasts W_j − W_k over the G pairs j < k.

    **Source:** CLAIR (5)-(6).

    **Cost:** G·q·p memory: `Factored` never calls it.

    >>> import jax.numpy as jnp
    >>> contrasts(jnp.array([[[1.0]], [[2.0]], [[4.0]]])).ravel().tolist()
    [-1.0, -3.0, -2.0]
    """
    j, k = pair_index(weights.shape[0])
    return weights[j] - weights[k]


def laplacian_times(pair_values: Float[Array, "clients clients"], x: Float[Array, " clients *rest"]) -> Array:
    """(diag(v1) − v) x for symmetric pair values v with zero diagonal.

    With x a client-indexed array, Σ_{j<k} v_jk (a_j − a_k)ᵀ(x_j − x_k) = Σ_j a_jᵀ (diag(v1) − v) x_j: this is how
    each sum over pairs below is taken without forming a contrast.
    """
    degree = pair_values.sum(1).reshape((-1,) + (1,) * (x.ndim - 1))
    return degree * x - jnp.tensordot(pair_values, x, 1, precision=HIGHEST)


def pair_table(values: Float[Array, " pairs"], clients: int) -> Float[Array, "clients clients"]:
    """Values of the pairs, in the order of `pair_index`, as a symmetric table."""
    empty = jnp.zeros((clients, clients), values.dtype).at[pair_index(clients)].set(values)
    return empty + empty.T


def pair_sum(pair_values: Float[Array, "clients clients *rest"]) -> Float[Array, " *rest"]:
    """Sum over unordered pairs of a symmetric table with zero diagonal."""
    return pair_values.sum((0, 1)) / 2


def low_quantile(pair_values: Float[Array, "clients clients"]) -> Float[Array, ""]:
    """The value of a fifth of the pairs: a quarter of them at least are within a majority, whatever the others are."""
    pairs = pair_index(len(pair_values))
    return jnp.sort(pair_values[pairs])[len(pairs[0]) // 5]


def pair_squared_distances(
    inner_products: Float[Array, "clients clients"],
) -> Float[Array, "clients clients"]:
    """‖x_j − x_k‖² from the table of inner products; zero on the diagonal, never negative.

    Loses digits where clients are close to each other and far from the origin: centre first.
    """
    squares = jnp.diagonal(inner_products)
    table = squares[:, None] + squares[None, :] - inner_products - inner_products.T
    off_diagonal = 1 - jnp.eye(len(squares), dtype=table.dtype)
    return jnp.maximum(table, 0) * off_diagonal


def pair_variances(variances: Float[Array, " clients"]) -> Float[Array, "clients clients"]:
    """The noise variance of each contrast, that of two clients of variance 1 being 1."""
    return (variances[:, None] + variances[None, :]) / 2
