"""Refined clients as factors of a chosen rank."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _validate
from .._compile import compiled
from ._contrasts import HIGHEST
from ._low_rank import LowRankMatrices
from ._low_rank_clients import joint_rows
from ._refined_factors import RefinedFactors


class Spectra(NamedTuple):
    """Singular value decompositions of refined clients, W̃_k = up_k diag(values_k) down_k; values descend."""

    up: Float[Array, "clients out all"]
    values: Float[Array, "clients all"]
    down: Float[Array, "clients all in"]


def compress(refined: RefinedFactors, rank: int) -> LowRankMatrices:
    """The best approximation of each refined client by factors of one rank, at scale 1.

    With W̃ = U Σ Vᵀ it is up = U Σ^½, down = Σ^½ Vᵀ of the largest `rank` singular values.

    **Arguments:** `refined`, of `clair` on `LowRankMatrices`; `rank` (static), at least 1.

    **Returns:** `LowRankMatrices`; where `rank` exceeds what the clients can have, padded with zeros.

    **Raises:** `ValueError` for another `rank`.

    **Source:** Eckart and Young; not in CLAIR, whose refined matrices have the rank of all clients together.

    **Cost:** with R the sum of the clients' ranks, or a side of the matrix where that is smaller, two QR of R
    columns and one SVD of R × R a client.

    >>> import jax
    >>> import clairjax as cj
    >>> left, right = jax.random.split(jax.random.key(0))
    >>> clients = cj.LowRankMatrices(jax.random.normal(left, (5, 9, 2)), jax.random.normal(right, (5, 2, 8)))
    >>> refined = cj.clair(clients).refined
    >>> cj.alignment.compress(refined, 3).shape
    (5, 9, 8)
    """
    _validate.at_least(rank, "rank", 1)
    return balanced(spectra(refined), rank)


@compiled
def spectra(refined: RefinedFactors) -> Spectra:
    """By QR of the stacked factors and SVD of the small core between them, client after client."""
    if refined.transposed:
        found = spectra(refined.mT)
        return Spectra(found.down.mT, found.values, found.up.mT)
    count, _, own = refined.own_up.shape
    left_basis, left = _joint_columns(refined)
    stacked = jnp.concatenate([refined.own_down.reshape(count * own, -1), refined.common_down])
    right_basis, right = joint_rows(stacked[None])
    left_own, left_common = left[:, : count * own], left[:, count * own :]
    right_own, right_common = right[0, : count * own], right[0, count * own :]
    shared = jnp.matmul(left_common, right_common, precision=HIGHEST)

    def decompose(client: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        up, down, share = client
        core = jnp.matmul(up, down, precision=HIGHEST) + share * shared
        left, values, right = jnp.linalg.svd(core, full_matrices=False)
        return left, values, right

    ups = left_own.reshape(-1, count, own).transpose(1, 0, 2)
    downs = right_own.reshape(count, own, -1)
    up, values, down = jax.lax.map(decompose, (ups, downs, refined.common_share))
    up = up if left_basis is None else jnp.matmul(left_basis, up, precision=HIGHEST)
    down = down if right_basis is None else jnp.matmul(down, right_basis.T, precision=HIGHEST)
    return Spectra(up, values, down)


def _joint_columns(refined: RefinedFactors) -> tuple[Array | None, Array]:
    count, out, own = refined.own_up.shape
    # The members' columns are those of the common part: only the coordinates of both are wanted.
    flat = refined.own_up.transpose(1, 0, 2).reshape(out, count * own)
    both = jnp.concatenate([flat, refined.common_up], axis=1)
    if count * own >= out:
        return None, both
    basis, _ = jnp.linalg.qr(flat)
    return basis, jnp.matmul(basis.T, both, precision=HIGHEST)


def balanced(found: Spectra, rank: int) -> LowRankMatrices:
    kept = min(rank, found.values.shape[1])
    root = jnp.sqrt(found.values[:, :kept])
    up = found.up[:, :, :kept] * root[:, None, :]
    down = root[:, :, None] * found.down[:, :kept]
    missing = rank - kept
    up, down = jnp.pad(up, ((0, 0), (0, 0), (0, missing))), jnp.pad(down, ((0, 0), (0, missing), (0, 0)))
    return LowRankMatrices(up, down)
