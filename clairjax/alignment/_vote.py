"""Who belongs: the vote (8) on off-subspace distances, and two ways to find its threshold."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._typing import ScalarLike
from ._contrasts import pair_index
from ._distances import Distances, tight_groups
from ._influence import influence
from ._majority import votes_needed
from ._median import median


# Widths that noise does not reach, in units of 1/√freedom: √2 standard deviations of the log distance of two clients
# that differ by noise alone. Where noise is unequal, a noisy client's own part is in all of its distances.
GAP = 3
UNEQUAL_GAP = 5
# No member is this many times further from its h-th nearest than a majority is. Benign clients with heavy tails, or
# trained clients, reach 2.2. Members between the two weigh less.
FAR = 3


class Ballot(NamedTuple):
    members: Bool[Array, " clients"]
    votes: Float[Array, " clients"]  # share of the other clients within the threshold
    threshold: Float[Array, ""]
    majority: Bool[Array, ""]  # whether a mutually consistent majority was identified
    influence: Float[Array, " clients"]  # of a member, 1 unless bounded
    exact: Bool[Array, ""]  # whether a majority differs by rounding alone


def vote(off_subspace: Float[Array, "clients clients"], threshold: ScalarLike, vote_share: ScalarLike) -> Ballot:
    """Members are the clients that at least `vote_share` of the others lie within `threshold` of; CLAIR (8)."""
    count = off_subspace.shape[0]
    threshold = jnp.asarray(threshold, off_subspace.dtype)
    near = (off_subspace <= threshold) & ~jnp.eye(count, dtype=bool)
    ballots = near.sum(1, dtype=jnp.int32)
    members = ballots >= votes_needed(count, vote_share)
    votes = ballots.astype(off_subspace.dtype) / jnp.asarray(count - 1, off_subspace.dtype)
    return Ballot(members, votes, threshold, members.any(), jnp.ones_like(votes), jnp.asarray(False))


def largest_gap_threshold(off_subspace: Float[Array, "clients clients"]) -> Float[Array, ""]:
    """Middle of the largest gap between sorted distances of pairs; the largest distance if all are equal.

    **Source:** CLAIR section 7, which names the rule and gives no formula. It errs where contaminated pairs differ
    more from mixed pairs than mixed pairs from benign ones, and it splits even where nobody is contaminated.
    """
    distances = jnp.sort(off_subspace[pair_index(off_subspace.shape[0])])
    gaps = jnp.diff(distances)
    widest = jnp.argmax(gaps)
    return jnp.where(gaps[widest] > 0, (distances[widest] + distances[widest + 1]) / 2, distances[-1])


def majority_vote(
    off_subspace: Float[Array, "clients clients"],
    separations: Float[Array, "clients clients"],
    freedom: ScalarLike | Int[Array, ""],
    vote_share: ScalarLike,
    variances: Float[Array, " clients"],
) -> Ballot:
    """The vote (8) at a threshold found in the data: the first significant gap above a majority.

    Let h be the number of votes needed and m_k the distance from client k to its h-th nearest. Sorted, the first h + 1
    of the m_k belong to a majority if there is one. The threshold is in the first wide gap above them, in log
    distance. A wide gap exceeds the spread of the m_k below it, and `GAP`/√freedom. That is four standard deviations
    of the log distance of two clients that differ by noise. The threshold is at most `FAR` times the (h + 1)-th of the
    m_k. Without a wide gap, and with nobody so far out, everyone is a member.

    No majority is identified if half of the clients are members in tight groups of a third or more that stand apart.
    The others may be contaminated as well. A group is not apart where it is as far from the others as these are from
    each other: whoever is honest, all belong. Copies, exact or near, are no group.

    **Args:** `off_subspace`, ‖D_jk P⊥‖_F in units of the pair's noise; `separations`, ‖D_jk‖_F; `freedom`, q(p − r);
    `vote_share`; `variances`, of the clients' noise.

    **Source:** stands in for the largest gap of CLAIR section 7, whose failures at p = 50 are its own.
    """
    count = off_subspace.shape[0]
    found = Distances.of(off_subspace, separations, freedom, vote_share)
    groups = tight_groups(found)
    ballot = vote(off_subspace, _first_gap(off_subspace, found, variances), vote_share)
    third, half = max(2, -(-count // 3)), -(-count // 2)
    grouped = ballot.members & (groups >= third)
    grouped = (grouped & _apart(found, ballot.members & ~grouped)).sum(dtype=jnp.int32)
    weights = influence(off_subspace, found, groups, ballot.members, variances)
    return ballot._replace(majority=ballot.majority & (grouped < half), influence=weights, exact=found.exact)


def _apart(found: Distances, others: Bool[Array, " clients"]) -> Bool[Array, " clients"]:
    """Who is not as far from the middle one of `others` as these are from each other; all, if they are few.

    Copies of one are one. Who is in the middle of strangers is nearer to each of them than they are to each other.
    """
    own = jnp.eye(len(others), dtype=bool)
    others = others & ~jnp.any(found.copies & others[None] & jnp.tri(len(others), k=-1, dtype=bool), axis=1)
    away = median(found.table, others[None] & ~own)
    return (jnp.abs(away - median(away, others)) > GAP * found.deviation) | (others.sum() < 2)


def _first_gap(
    off_subspace: Float[Array, "clients clients"], found: Distances, variances: Float[Array, " clients"]
) -> Float[Array, ""]:
    """The threshold: the middle of the first gap that is wide, or what no benign client reaches."""
    order = jnp.sort(found.reach)
    gaps = jnp.diff(order)
    position = jnp.arange(len(gaps), dtype=found.needed.dtype)
    unequal = jnp.clip(jnp.log2(jnp.max(variances) / jnp.min(variances)), 0, 1)
    gap = (GAP + (UNEQUAL_GAP - GAP) * unequal) * found.deviation
    wide = (gaps > gap) & (gaps > order[:-1] - order[0]) & (position >= found.needed)
    first = jnp.argmax(wide)
    middle = jnp.exp((order[first] + order[jnp.minimum(first + 1, len(gaps))]) / 2)
    threshold = jnp.where(wide.any(), middle, jnp.max(off_subspace))
    cap = found.middle + jnp.log(jnp.asarray(FAR, order.dtype))
    return jnp.where(order[-1] > cap, jnp.minimum(threshold, jnp.exp(cap)), threshold)
