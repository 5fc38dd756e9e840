"""Who belongs: the vote (8) on off-subspace distances, and two ways to find its threshold."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._typing import ScalarLike
from ._contrasts import low_quantile, pair_index


# Widths that noise does not reach, in units of 1/√freedom: √2 standard deviations of the log distance of two
# clients that differ by noise alone. A group is looked for in every row, so it has to be plainer.
GAP = 3
GROUP = 4


class Ballot(NamedTuple):
    members: Bool[Array, " clients"]
    votes: Float[Array, " clients"]  # share of the other clients within the threshold
    threshold: Float[Array, ""]
    majority: Bool[Array, ""]  # whether a mutually consistent majority was identified


def vote(off_subspace: Float[Array, "clients clients"], threshold: ScalarLike, vote_share: ScalarLike) -> Ballot:
    """Members are the clients that at least `vote_share` of the others lie within `threshold` of; CLAIR (8)."""
    count = off_subspace.shape[0]
    threshold = jnp.asarray(threshold, off_subspace.dtype)
    near = (off_subspace <= threshold) & ~jnp.eye(count, dtype=bool)
    ballots = near.sum(1, dtype=jnp.int32)
    members = ballots >= votes_needed(count, vote_share)
    votes = ballots.astype(off_subspace.dtype) / jnp.asarray(count - 1, off_subspace.dtype)
    return Ballot(members, votes, threshold, members.any())


def largest_gap_threshold(off_subspace: Float[Array, "clients clients"]) -> Float[Array, ""]:
    """Middle of the largest gap between sorted distances of pairs; the largest distance if all are equal.

    **Source:** CLAIR section 7, which names the rule and gives no formula. It errs where contaminated pairs differ
    more from mixed pairs than mixed pairs from benign ones, and it splits even where nobody is contaminated.
    """
    distances = jnp.sort(off_subspace[pair_index(off_subspace.shape[0])])
    gaps = jnp.diff(distances)
    widest = jnp.argmax(gaps)
    return jnp.where(gaps[widest] > 0, (distances[widest] + distances[widest + 1]) / 2, distances[-1])


def copies(separations: Float[Array, "clients clients"]) -> Bool[Array, "clients clients"]:
    """Pairs of clients that reported the same matrix."""
    eps = jnp.finfo(separations.dtype).eps
    return (separations <= eps * low_quantile(separations)) & ~jnp.eye(separations.shape[0], dtype=bool)


def identical_majority(separations: Float[Array, "clients clients"]) -> Bool[Array, ""]:
    """Whether more than half of the clients reported the same matrix."""
    count = separations.shape[0]
    return (2 * (copies(separations).sum(1, dtype=jnp.int32) + 1) > count).any()


def majority_vote(
    off_subspace: Float[Array, "clients clients"],
    separations: Float[Array, "clients clients"],
    freedom: ScalarLike | Int[Array, ""],
    vote_share: ScalarLike,
) -> Ballot:
    """The vote (8) at a threshold found in the data: the first significant gap above a majority.

    Let h be the number of votes needed and m_k the distance from client k to its h-th nearest. Sorted, the first
    h + 1 of the m_k belong to a majority if there is one. The threshold is set in the first gap above them, in
    log distance, that is wider than both `GAP`/√freedom, four standard deviations of the log distance of two
    clients that differ by noise, and the spread of the m_k below it. Without such a gap everyone is a member.

    A majority is not identified if a third of the members lie in tight groups too small to be one: their nearest
    distances show such a gap before the h-th. Exact copies (separation zero) do not count as a group.

    **Args:** `off_subspace`, ‖D_jk P⊥‖_F; `separations`, ‖D_jk‖_F; `freedom`, q(p − r); `vote_share`.

    **Source:** stands in for the largest gap of CLAIR section 7, whose failures at p = 50 are its own.
    """
    count = off_subspace.shape[0]
    dtype = off_subspace.dtype
    # A copy tells nothing of the noise: put it at its twin's distance to the nearest other client. But a majority of
    # copies has no noise.
    copy = copies(separations) & ~identical_majority(separations)
    nearest_other = jnp.min(jnp.where(copy | jnp.eye(count, dtype=bool), jnp.inf, off_subspace), axis=1)
    distances = jnp.where(copy & jnp.isfinite(nearest_other)[:, None], nearest_other[:, None], off_subspace)
    # Each row without its own zero, ascending; what is below rounding is one value.
    rows = jnp.sort(jnp.where(jnp.eye(count, dtype=bool), -jnp.inf, distances), axis=1)[:, 1:]
    pairs = pair_index(count)
    rounding = 16 * jnp.finfo(dtype).eps * jnp.sort(separations[pairs])[len(pairs[0]) // 2]
    logs = jnp.log(jnp.maximum(rows, jnp.maximum(rounding, jnp.finfo(dtype).tiny)))
    needed = votes_needed(count, vote_share)
    deviation = 1 / jnp.sqrt(jnp.maximum(jnp.asarray(freedom, dtype), 1))

    reach = jnp.take(logs, needed - 1, axis=1)  # log m_k
    order = jnp.sort(reach)
    gaps = jnp.diff(order)
    position = jnp.arange(count - 1, dtype=needed.dtype)
    wide = (gaps > GAP * deviation) & (gaps > order[:-1] - order[0]) & (position >= needed)
    first = jnp.argmax(wide)
    found = wide.any()
    threshold = jnp.where(
        found, jnp.exp((order[first] + order[jnp.minimum(first + 1, count - 1)]) / 2), jnp.max(off_subspace)
    )
    ballot = vote(off_subspace, threshold, vote_share)

    jumps = jnp.diff(logs, axis=1)  # jumps[k, i]: between neighbours i and i + 1, a group of i + 2 clients
    neighbour = jnp.arange(count - 2, dtype=needed.dtype)
    group = (neighbour + 2 >= -(-count // 3)) & (neighbour + 1 < needed)
    apart = (jumps > GROUP * deviation) & (jumps > logs[:, :-1] - logs[:, :1]) & group[None]
    grouped = (apart.any(1) & ballot.members).sum()
    majority = ballot.members.any() & (grouped < -(-count // 3))
    return ballot._replace(majority=majority)


def votes_needed(count: int, vote_share: ScalarLike) -> Int[Array, ""]:
    """Votes that make a member: ⌈α(K − 1)⌉, rounding error aside."""
    share = jnp.asarray(vote_share)
    return jnp.ceil(share * (count - 1) - 1e-4).astype(jnp.int32)
