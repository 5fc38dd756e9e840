"""Refinement (9), the row space refitted on the members, and shrinkage of what lies outside it."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..subspaces import noise_edge_rank, rank_from_gap
from ._averaging import members_mean
from ._clients import Clients, nonzero
from ._contrasts import HIGHEST
from ._program import leading


# On the noise edge: least squares with n/p of 6 to 10 leaves noise that is far from white with few members.
MARGIN = 1.4
# An eigenvalue this many times the next is a gap that noise whose spectrum falls off does not have.
PLAIN_GAP = 4


class Refit(NamedTuple):
    basis: Float[Array, " in max_rank"]
    rank: Int[Array, ""]
    by_gap: Bool[Array, ""]  # whether the members' noise had no floor to find the rank against


def refit(clients: Clients, members: Bool[Array, " clients"], max_rank: int, rank: int | None) -> Refit:
    """Leading principal directions of the members about their mean, and how many of them are signal.

    The program's basis is biased by its penalties and by what the contaminated pairs put into it; the members
    alone give the least-squares estimate. With `rank` None it is found against the members' noise floor. Noise far
    from white, as that of trained LoRA factors is, has none: then signal seems to reach `max_rank` or more than half
    of the spectrum, and the widest gap decides instead, if there is a plain one.
    """
    count, _, _ = clients.shape
    pairs = members[:, None] & members[None, :] & ~jnp.eye(count, dtype=bool)
    # Σ (W_k − W̄)ᵀ(W_k − W̄) over the members is the sum over their pairs of D_jkᵀ D_jk, over their number.
    number = jnp.maximum(members.sum(), 1).astype(clients.dtype)
    eigenvalues, vectors = clients.principal(pairs.astype(clients.dtype) / number)
    if rank is None:
        found = noise_edge_rank(eigenvalues, clients.noise_rows(members, eigenvalues), max_rank, margin=MARGIN)
        gap, plain = _widest_gap(eigenvalues, max_rank)
        half = (nonzero(eigenvalues) + 1) // 2
        by_gap = (found >= jnp.minimum(max_rank, half)) & plain & (gap < found)
        found = jnp.where(by_gap, gap, found)
    else:
        found, by_gap = jnp.asarray(rank, jnp.int32), jnp.asarray(False)
    return Refit(leading(vectors[:, :max_rank], found), found, by_gap)


def _widest_gap(eigenvalues: Float[Array, " all"], max_rank: int) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """Where it is, and whether it is plain."""
    gap = rank_from_gap(eigenvalues, max_rank)
    last = jnp.maximum(gap - 1, 0)
    return gap, eigenvalues[last] > PLAIN_GAP * eigenvalues[jnp.minimum(last + 1, eigenvalues.shape[0] - 1)]


def refine(
    weights: Float[Array, "clients out in"],
    members: Bool[Array, " clients"],
    basis: Float[Array, " in max_rank"],
    rank: Int[Array, ""],
    *,
    shrink: bool,
) -> Float[Array, "clients out in"]:
    """Members move to the members' mean outside the row space and keep their own part inside it; CLAIR (9).

    W̃_k = W̄ + (W_k − W̄)P + s_k (W_k − W̄)P⊥ with W̄ the mean of the members. (9) is s_k = 0 for members; clients
    outside keep what they reported, s_k = 1.

    With `shrink` every s_k is the positive part of a James–Stein factor, 1 − v_k (d − 2)/‖(W_k − W̄)P⊥‖² with
    d = q(p − r). v_k is the noise variance of an entry, σ̂², times 1 − 1/|C| for a member (whose own noise is in
    W̄) and 1 for others; σ̂² is the members' mean square outside the row space, on (|C| − 1)d degrees of freedom.
    It assumes that entries outside the row space have one noise variance for all clients, close to white, and that
    the row space is known. A client far from the members is then left alone and one within the noise is pooled.
    Only members enter W̄ and σ̂², so that no value a contaminated client reports changes a member's result.

    **Source:** CLAIR (9); the shrinkage is not in the paper.

    **Cost:** 2·K·q·p·r multiplications, memory K·q·p.

    >>> import jax.numpy as jnp
    >>> weights = jnp.array([[[1.0, 2.0]], [[3.0, 4.0]], [[9.0, 9.0]]])
    >>> basis = jnp.array([[1.0], [0.0]])
    >>> refine(weights, jnp.array([True, True, False]), basis, jnp.array(1), shrink=False).tolist()
    [[[1.0, 3.0]], [[3.0, 3.0]], [[9.0, 9.0]]]
    """
    mean = members_mean(weights, members)[None]
    deviations = weights - mean
    inside = jnp.matmul(jnp.matmul(deviations, basis, precision=HIGHEST), basis.T, precision=HIGHEST)
    if not shrink:
        return jnp.where(members[:, None, None], mean + inside, weights)
    _, out, in_ = weights.shape
    outside = deviations - inside
    squares = jnp.sum(outside**2, axis=(1, 2))
    count = jnp.maximum(members.sum(), 1).astype(weights.dtype)
    freedom = (out * (in_ - rank)).astype(weights.dtype)
    variance = jnp.where(members, squares, 0).sum() / jnp.maximum((count - 1) * freedom, 1)
    noise = variance * jnp.where(members, 1 - 1 / count, 1) * jnp.maximum(freedom - 2, 0)
    factor = jnp.maximum(1 - noise / jnp.where(squares > 0, squares, 1), 0)
    return mean + inside + factor[:, None, None] * outside
