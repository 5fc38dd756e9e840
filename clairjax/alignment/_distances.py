"""Distances of clients outside the row space as the vote reads them, and the groups that stand close together."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._typing import ScalarLike
from ._contrasts import pair_index
from ._majority import NEAR_COPY, copies, identical_majority, votes_needed


# Of a tight group, in units of 1/√freedom. It is looked for in every row, so it has to be plainer than a gap.
GROUP = 4
FURTHEST = 1e6  # ratio of distances, whose square float32 holds


class Distances(NamedTuple):
    """All distances are logs."""

    rows: Float[Array, "clients others"]  # of each client to the others, ascending
    table: Float[Array, "clients clients"]
    reach: Float[Array, " clients"]  # m_k, to the h-th nearest
    middle: Float[Array, ""]  # M, the (h + 1)-th smallest of them: with h + 1 benign clients no minority raises it
    needed: Int[Array, ""]  # h
    deviation: Float[Array, ""]  # 1/√freedom
    alike: Bool[Array, "clients clients"]  # nearer than two of their noise can be by chance
    copies: Bool[Array, "clients clients"]  # exact and near
    exact: Bool[Array, ""]  # whether M is rounding

    @staticmethod
    def of(
        off_subspace: Float[Array, "clients clients"],
        separations: Float[Array, "clients clients"],
        freedom: ScalarLike | Int[Array, ""],
        vote_share: ScalarLike,
    ) -> "Distances":
        count, dtype = off_subspace.shape[0], off_subspace.dtype
        own, pairs = jnp.eye(count, dtype=bool), pair_index(count)
        needed = votes_needed(count, vote_share)
        rounding = 16 * jnp.finfo(dtype).eps * jnp.sort(separations[pairs])[len(pairs[0]) // 2]
        nearest = jnp.sort(off_subspace, axis=1)  # the own zero is first
        own_reach = jnp.take(nearest, needed, axis=1)
        usual = jnp.take(jnp.sort(own_reach), needed)
        exact = usual <= 4 * rounding
        deviation = 1 / jnp.sqrt(jnp.maximum(jnp.asarray(freedom, dtype), 1))
        alike = _alike(off_subspace, own_reach, usual, deviation) & ~exact & ~own
        near = alike & (off_subspace <= NEAR_COPY * usual)
        # A copy tells nothing of the noise: it is put at its twin's distance to the nearest other client, where it is
        # nearer than that. But a majority of copies has no noise.
        copy = (copies(separations) | near) & ~identical_majority(separations)
        nearest_other = jnp.min(jnp.where(copy | own, jnp.inf, off_subspace), axis=1, keepdims=True)
        # What is below rounding is one value.
        least = jnp.maximum(rounding, jnp.finfo(dtype).tiny)
        least = jnp.maximum(jnp.where(jnp.isfinite(nearest_other), nearest_other, 0), least)
        table, rows = (jnp.log(jnp.maximum(each, least)) for each in (off_subspace, nearest[:, 1:]))
        reach = jnp.take(rows, needed - 1, axis=1)
        middle = jnp.take(jnp.sort(reach), needed)
        return Distances(rows, table, reach, middle, needed, deviation, alike, copy, exact)


def _alike(
    off_subspace: Float[Array, "clients clients"],
    reach: Float[Array, " clients"],
    usual: Float[Array, ""],
    deviation: Float[Array, ""],
) -> Bool[Array, "clients clients"]:
    """Pairs nearer to each other than their distances to the others allow, were the noise of both independent.

    Independent clients are at d_jk² = v_j + v_k, and a client's reach is v_k and a usual client's v, so that
    m_j² + m_k² − M² is about what d_jk² should be. Clients of little noise are near each other for that alone.
    """
    unit = jnp.where(usual > 0, usual, 1)
    square = lambda lengths: jnp.minimum(lengths / unit, FURTHEST) ** 2
    reach = square(reach)
    missing = reach[:, None] + reach[None, :] - 1 - square(off_subspace)
    return missing > jnp.minimum(GROUP * deviation, 0.5)


def tight_groups(found: Distances) -> Int[Array, " clients"]:
    """How many stand in a client's tight group, itself included; 1 for who is in none.

    A jump in a client's row is plain if it is wider than noise explains and than the spread below it. The client's
    circle ends at the outermost plain jump before the h-th neighbour. A group is in each other's circles: nobody is
    drawn in by a group that merely is the nearest. A group is alike: clients of little noise are none.
    """
    rows, count = found.rows, len(found.rows)
    jumps = jnp.diff(rows, axis=1)
    inside = jnp.arange(1, count - 1, dtype=found.needed.dtype) < found.needed
    plain = (jumps > GROUP * found.deviation) & (jumps > rows[:, :-1] - rows[:, :1]) & inside[None]
    circle = jnp.max(jnp.where(plain, (rows[:, :-1] + rows[:, 1:]) / 2, -jnp.inf), axis=1, initial=-jnp.inf)
    mutual = found.table < jnp.minimum(circle[:, None], circle[None, :])
    return 1 + (mutual & found.alike).sum(1, dtype=jnp.int32)
