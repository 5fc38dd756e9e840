"""The row space of the members: their principal directions, as many as rise above their noise."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..subspaces import noise_edge_rank, rank_from_gap
from ._clients import Clients, nonzero
from ._program import leading
from ._reports import total


# On the noise edge: least squares with n/p of 6 to 10 leaves noise that is far from white with few members.
MARGIN = 1.4
# An eigenvalue this many times the next is a gap that noise whose spectrum falls off does not have.
PLAIN_GAP = 4
# On the variance of the eigenvalues of white noise: least squares leave noise that is less white.
SPREAD = 2.5


class Refit(NamedTuple):
    basis: Float[Array, " in max_rank"]
    rank: Int[Array, ""]
    by_gap: Bool[Array, ""]  # whether the members' noise had no floor to find the rank against
    cut_short: Bool[Array, ""]  # whether what follows max_rank is not shown to be noise


def refit_members(clients: Clients, weights: Float[Array, " clients"], max_rank: int, rank: int | None) -> Refit:
    """Leading principal directions of the members about their mean, and how many of them are signal.

    Members have a weight above 0: in proportion to it they count in the mean and about it.

    The program's basis is biased by its penalties and by contaminated clients. The members alone give the estimate of
    least squares. With `rank` None the rank is found against the members' noise floor. Noise far from white, as that
    of trained LoRA factors, has no floor. Then signal seems to reach `max_rank`, or more than half of the spectrum. A
    plain gap decides instead, the widest.
    """
    count, _, _ = clients.shape
    members = weights > 0
    # Σ w_k (W_k − W̄)ᵀ(W_k − W̄) is the sum over pairs of w_j w_k D_jkᵀ D_jk, over Σ w_k.
    pairs = jnp.where(jnp.eye(count, dtype=bool), 0, weights[:, None] * weights[None, :])
    eigenvalues, vectors = clients.principal(pairs / total(weights))
    if rank is None:
        rows = clients.noise_rows(members, eigenvalues)
        above = noise_edge_rank(eigenvalues, rows, max_rank + 1, margin=MARGIN)
        found = jnp.minimum(above, max_rank)
        gap, plain = _widest_gap(eigenvalues, max_rank)
        half = (nonzero(eigenvalues) + 1) // 2
        by_gap = (found >= jnp.minimum(max_rank, half)) & plain & (gap < found)
        more = (above > max_rank) | ~_flat(eigenvalues[max_rank:], rows, max_rank)
        cut_short = (found == max_rank) & (max_rank < eigenvalues.shape[0]) & ~by_gap & more
        found = jnp.where(by_gap, gap, found)
    else:
        found, by_gap, cut_short = jnp.asarray(rank, jnp.int32), jnp.asarray(False), jnp.asarray(False)
    return Refit(leading(vectors[:, :max_rank], found), found, by_gap, cut_short)


def _flat(rest: Float[Array, " rest"], rows: Int[Array, ""], rank: int) -> Bool[Array, ""]:
    """Whether the eigenvalues after the first `rank` spread as those of white noise, and are enough to show it.

    Of l ≥ s rows and columns the s eigenvalues of noise have the variance s/l of their squared mean. They are enough
    where they outnumber the signal: otherwise the median that noise is measured by may be signal itself.
    """
    columns = rest.shape[0]
    left = jnp.maximum(rows - rank, 1)
    number = jnp.minimum(left, columns)
    counted = jnp.arange(columns, dtype=number.dtype) < number
    mean = rest.sum() / number.astype(rest.dtype)
    variance = jnp.where(counted, (rest - mean) ** 2, 0).sum() / number.astype(rest.dtype)
    ratio = number.astype(rest.dtype) / jnp.maximum(left, columns).astype(rest.dtype)
    return (variance <= SPREAD * mean**2 * ratio) & (number > rank)


def _widest_gap(eigenvalues: Float[Array, " all"], max_rank: int) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """Where it is, and whether it is plain."""
    gap = rank_from_gap(eigenvalues, max_rank)
    last = jnp.maximum(gap - 1, 0)
    return gap, eigenvalues[last] > PLAIN_GAP * eigenvalues[jnp.minimum(last + 1, eigenvalues.shape[0] - 1)]
