"""Refined clients as factors of a chosen rank."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

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


def truncation_errors(values: Float[Array, "clients all"]) -> Float[Array, "clients ranks"]:
    """Relative Frobenius error of keeping the first r singular values, for r = 0, 1, … all; zero for a zero client."""
    tails = jnp.cumsum((values**2)[:, ::-1], axis=1)[:, ::-1]
    tails = jnp.pad(tails, ((0, 0), (0, 1)))
    total = tails[:, :1]
    return jnp.sqrt(tails / jnp.where(total > 0, total, 1))


def rank_within(values: Float[Array, "clients all"], error: float) -> Int[Array, " clients"]:
    """The smallest rank of each client whose truncation errs by at most `error`."""
    return jnp.sum(truncation_errors(values) > error, axis=1, dtype=jnp.int32)


@compiled
def change_norms(refined: RefinedFactors, weights: LowRankMatrices) -> Float[Array, " clients"]:
    """‖W̃_k − W_k‖_F of what `refine` made of `weights`, whose factor on one side is kept."""
    if refined.transposed:
        refined, weights = refined.mT, weights.mT
    down = refined.own_down - weights.scaled_down()
    up, common_up = refined.own_up, refined.common_up
    own = jnp.sum(_products(up, up) * _products(down.swapaxes(1, 2), down.swapaxes(1, 2)), axis=(1, 2))
    left = jnp.einsum("kqr,qs->krs", up, common_up, precision=HIGHEST)
    right = jnp.einsum("krp,sp->krs", down, refined.common_down, precision=HIGHEST)
    mixed = jnp.sum(left * right, axis=(1, 2))
    common = jnp.sum(
        jnp.matmul(common_up.T, common_up, precision=HIGHEST)
        * jnp.matmul(refined.common_down, refined.common_down.T, precision=HIGHEST)
    )
    share = refined.common_share
    return jnp.sqrt(jnp.maximum(own + 2 * share * mixed + share**2 * common, 0))


def _products(left: Float[Array, "clients n r"], right: Float[Array, "clients n s"]) -> Float[Array, "clients r s"]:
    return jnp.einsum("knr,kns->krs", left, right, precision=HIGHEST)
