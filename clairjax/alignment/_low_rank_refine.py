"""Refinement (9) of clients that report factors; what it gives is factored, too."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._clients import Clients
from ._contrasts import HIGHEST, diagonal
from ._factored import Factored
from ._low_rank import LowRankMatrices, client_factors
from ._low_rank_clients import centred
from ._refine import refit


class RefinedFactors(eqx.Module):
    """Refined clients: W̃_k = own_up_k own_down_k + common_share_k · common_up common_down.

    The first product is what the client keeps of its own, of its rank; the second is the members' mean outside the
    shared row space, of rank up to the sum of theirs and the same for all. `dense` forms the matrices and
    `clairjax.alignment.compress` gives factors of a chosen rank. The columns of the second product are columns of
    `own_up`; where it is `transposed`, its rows are rows of `own_down`.
    """

    own_up: Float[Array, "clients out rank"]
    own_down: Float[Array, "clients rank in"]
    common_up: Float[Array, "out all"]
    common_down: Float[Array, "all in"]
    common_share: Float[Array, " clients"]
    transposed: bool = eqx.field(static=True, default=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(clients, out, in), of the matrices."""
        return self.own_up.shape[0], self.own_up.shape[1], self.own_down.shape[2]

    @property
    def mT(self) -> "RefinedFactors":  # as arrays have it
        """The transposed matrices."""
        return RefinedFactors(
            self.own_down.swapaxes(1, 2),
            self.own_up.swapaxes(1, 2),
            self.common_down.T,
            self.common_up.T,
            self.common_share,
            not self.transposed,
        )

    def dense(self) -> Float[Array, "clients out in"]:
        """The matrices themselves."""
        common = jnp.matmul(self.common_up, self.common_down, precision=HIGHEST)
        own = jnp.matmul(self.own_up, self.own_down, precision=HIGHEST)
        return own + self.common_share[:, None, None] * common[None]


def refine_factors(
    weights: LowRankMatrices,
    clients: Clients,
    members: Bool[Array, " clients"],
    basis: Float[Array, " in max_rank"],
    rank: Int[Array, ""],
    *,
    shrink: bool,
) -> RefinedFactors:
    """`refine` without forming a matrix: W̃_k = W_k (P + s_k P⊥) + (1 − s_k) W̄ P⊥.

    `clients` are the same clients as the solvers see them, and `basis` is in their coordinates.
    """
    whole = clients.lift(basis)
    down = weights.scaled_down()
    inside = jnp.matmul(jnp.matmul(down, whole, precision=HIGHEST), whole.T, precision=HIGHEST)
    count, out, size = weights.up.shape
    number = jnp.maximum(members.sum(), 1).astype(weights.dtype)
    share = _own_shares(clients, members, basis, rank) if shrink else jnp.where(members, 0, 1).astype(down.dtype)
    own = inside + share[:, None, None] * (down - inside)
    # Outsiders may be huge or not finite: their factors stay out of the mean altogether.
    counted = members[:, None, None]
    common_up = jnp.where(counted, weights.up, 0).transpose(1, 0, 2).reshape(out, count * size)
    common_down = (jnp.where(counted, down - inside, 0) / number).reshape(count * size, -1)
    return RefinedFactors(weights.up, own, common_up, common_down, 1 - share)


def _own_shares(
    clients: Clients, members: Bool[Array, " clients"], basis: Float[Array, " in max_rank"], rank: Int[Array, ""]
) -> Float[Array, " clients"]:
    """`refine`'s factors s_k, from inner products outside the row space."""
    table = clients.project_out(basis).inner_products()
    count = jnp.maximum(members.sum(), 1).astype(table.dtype)
    weights = jnp.where(members, 1 / count, 0)
    to_mean = jnp.matmul(table, weights, precision=HIGHEST)
    squares = jnp.maximum(diagonal(table) - 2 * to_mean + jnp.sum(weights * to_mean), 0)
    freedom = clients.freedom(rank).astype(table.dtype)
    variance = jnp.where(members, squares, 0).sum() / jnp.maximum((count - 1) * freedom, 1)
    noise = variance * jnp.where(members, 1 - 1 / count, 1) * jnp.maximum(freedom - 2, 0)
    return jnp.maximum(1 - noise / jnp.where(squares > 0, squares, 1), 0)


def keep(counts: Bool[Array, ""], refined: RefinedFactors, weights: LowRankMatrices) -> RefinedFactors:
    """`refined` where the vote counts, else what was reported."""
    return RefinedFactors(
        refined.own_up,
        jnp.where(counts, refined.own_down, weights.scaled_down()),
        refined.common_up,
        refined.common_down,
        jnp.where(counts, refined.common_share, 0),
    )


def refine_members(
    weights: LowRankMatrices,
    members: Bool[Array, " clients"],
    *,
    rank: int | None = None,
    max_rank: int = Factored().max_rank,
    shrink: bool = False,
) -> RefinedFactors:
    """Refinement (9) of `LowRankMatrices` with a collaborative set that is given: no vote.

    For a set that more than one matrix decides, as the layers of a model together do. The row space is the members'
    principal one, as `clair` refits it.

    **Arguments:** `weights`; `members` [clients] bool; `rank` (static) of the shared row space, None finds it, up to
    `max_rank` (static); `shrink` (static) as in `clair`.

    **Returns:** `RefinedFactors`. Clients that are no members keep what they reported unless `shrink=True`.

    **Raises:** as `clair`, for `weights`.

    **Source:** CLAIR (9), with the row space of `clair`'s refit.

    **Cost:** that of one of `clair`'s three refits.

    >>> import jax, jax.numpy as jnp
    >>> from clairjax import LowRankMatrices
    >>> from clairjax.alignment import refine_members
    >>> up, down = jax.random.split(jax.random.key(0))
    >>> weights = LowRankMatrices(jax.random.normal(up, (4, 6, 2)), jax.random.normal(down, (4, 2, 5)))
    >>> refine_members(weights, jnp.array([True, True, True, False])).dense().shape
    (4, 6, 5)
    """
    weights = client_factors(weights)
    return _refine_members(weights, members, min(max_rank, weights.shape[2]), rank, shrink)


@partial(jax.jit, static_argnames=("max_rank", "rank", "shrink"))
def _refine_members(
    weights: LowRankMatrices, members: Bool[Array, " clients"], max_rank: int, rank: int | None, shrink: bool
) -> RefinedFactors:
    clients = centred(weights)
    basis, found, _ = refit(clients, members, min(max_rank, clients.shape[2]), rank)
    return refine_factors(weights, clients, members, basis, found, shrink=shrink)


@jax.jit
def change_norms(refined: RefinedFactors, weights: LowRankMatrices) -> Float[Array, " clients"]:
    """‖W̃_k − W_k‖_F of what `clair` or `refine_members` made of `weights`, whose factor on one side is kept."""
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
