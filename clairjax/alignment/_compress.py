"""Refined clients as factors of a chosen rank."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _validate
from .._compile import compiled
from .._precision import HIGHEST
from ._low_rank import LowRankMatrices
from ._low_rank_clients import joint_rows
from ._refined_factors import RefinedFactors


def compress(refined: RefinedFactors, rank: int) -> LowRankMatrices:
    """The best approximation of each refined client by factors of one rank, at scale 1.

    With W̃ = U Σ Vᵀ it is up = U Σ^½, down = Σ^½ Vᵀ of the largest `rank` singular values.

    **Args:**

    - `refined`, of `clair` on `LowRankMatrices`.
    - `rank` (static), at least 1.

    **Returns:** `LowRankMatrices`; where `rank` exceeds what the clients can have, padded with zeros.

    **Raises:** `ValueError` for another `rank`.

    **Source:** Eckart and Young; not in CLAIR, whose refined matrices have the rank of all clients together.

    **Cost:** two QR of R columns, and an SVD of R × R a client. R is twice the sum of the clients' ranks, or a side of
    the matrix where that is smaller.

    >>> import jax
    >>> import clairjax as cj
    >>> left, right = jax.random.split(jax.random.key(0))
    >>> clients = cj.LowRankMatrices(jax.random.normal(left, (5, 9, 2)), jax.random.normal(right, (5, 2, 8)))
    >>> refined = cj.clair(clients).refined
    >>> cj.alignment.compress(refined, 3).shape
    (5, 9, 8)
    """
    _validate.at_least(rank, "rank", 1)
    return _compress(refined, int(rank))


@partial(compiled, static_argnames=("rank",))
def _compress(refined: RefinedFactors, rank: int) -> LowRankMatrices:
    """By QR of the stacked factors of each side and SVD of the small core between them, client after client."""
    left_basis, ups, common_up = _in_joint_basis(refined.own_up.mT, refined.common_up.T)
    right_basis, downs, common_down = _in_joint_basis(refined.own_down, refined.common_down)
    common = jnp.matmul(common_up.T, common_down, precision=HIGHEST)
    kept = min(rank, *common.shape)

    def best(client: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        up, down, share = client
        core = jnp.matmul(up.T, down, precision=HIGHEST) + share * common
        left, values, right = jnp.linalg.svd(core, full_matrices=False)
        root = jnp.sqrt(values[:kept])
        return left[:, :kept] * root[None], root[:, None] * right[:kept]

    up, down = jax.lax.map(best, (ups, downs, refined.common_share))
    up = up if left_basis is None else jnp.matmul(left_basis, up, precision=HIGHEST)
    down = down if right_basis is None else jnp.matmul(down, right_basis.T, precision=HIGHEST)
    missing = (0, rank - kept)
    return LowRankMatrices(jnp.pad(up, ((0, 0), (0, 0), missing)), jnp.pad(down, ((0, 0), missing, (0, 0))))


def _in_joint_basis(
    own: Float[Array, "clients rank side"], common: Float[Array, "all side"]
) -> tuple[Float[Array, "side reduced"] | None, Float[Array, "clients rank reduced"], Float[Array, "all reduced"]]:
    count, rank, side = own.shape
    basis, coordinates = joint_rows(jnp.concatenate([own.reshape(-1, side), common])[None])
    flat = coordinates[0]
    return basis, flat[: count * rank].reshape(count, rank, -1), flat[count * rank :]
