"""How much a member counts: less where it is far out, or where several move together."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._contrasts import pair_variances
from ._distances import Distances
from ._unequal import squares_to_mean


# Half width of the noise band, in units of 1/√freedom, and the most it can be.
BAND, WIDEST_BAND = 3, 1.7
# On the edge of noise: benign clients stay below 1.2 of it.
SHIFT_MARGIN = 1.5
SHIFTS = 3  # directions looked at
LEAST_CLIENTS, LEAST_FREEDOM = 5, 4  # of an edge to speak of: members, and freedom of each


def influence(
    off_subspace: Float[Array, "clients clients"],
    found: Distances,
    groups: Int[Array, " clients"],
    members: Bool[Array, " clients"],
    variances: Float[Array, " clients"],
) -> Float[Array, " clients"]:
    """Of each member in the mean and in the row space, beside its samples; exactly 1 where noise explains it.

    - Who is beyond the noise band counts by the variance that its reach shows, not by that which it claims.
    - Near copies, and tight groups, count as one client: what they add is not their number.
    - So do members that are moved together in one direction; see `common_shifts`.
    """
    dtype = off_subspace.dtype
    band = jnp.minimum(jnp.exp(BAND * found.deviation), jnp.asarray(WIDEST_BAND, dtype))
    beyond = jnp.maximum(jnp.exp(found.reach - found.middle) / band, 1)
    # (x/β)² of a pair of variances v_k and 1, the middle client's.
    shown = beyond**2 * (variances + 1) - 1
    alone = jnp.where(beyond > 1, variances / jnp.maximum(variances, shown), 1)
    together = groups * (1 + found.copies.sum(1, dtype=groups.dtype))
    squares = off_subspace**2 * pair_variances(variances)
    moved = common_shifts(squares, members, 1 / found.deviation**2, variances)
    bounded = jnp.minimum(alone / together.astype(dtype), 1 / moved.astype(dtype))
    return jnp.where(found.exact, 1, bounded)


def common_shifts(
    squares: Float[Array, "clients clients"],
    members: Bool[Array, " clients"],
    freedom: Float[Array, ""],
    variances: Float[Array, " clients"],
) -> Int[Array, " clients"]:
    """How many members are moved together with a client, itself included; 1 for who is not.

    The Gram of the members' deviations from their mean, each over its noise, has the Marchenko–Pastur law of
    |C| − 1 dimensions if they are noise. An eigenvalue beyond its edge is a direction that several share, and the
    eigenvector holds where each member stands along it. Who stands further from the narrowest majority than that is
    wide is moved, with all others on its side. One client alone is never moved together with itself.
    """
    dtype = squares.dtype
    root = jnp.where(members, jnp.sqrt(1 / variances), 0)
    to_mean, _ = squares_to_mean(squares, root**2)
    products = to_mean[:, None] + to_mean[None, :] - squares  # 2⟨W_j − W̄, W_k − W̄⟩
    pairs = root[:, None] * root[None, :]
    table = jnp.where(pairs > 0, products * pairs, 0)  # others may be out of range
    values, vectors = jnp.linalg.eigh(table, symmetrize_input=False)
    # The |C| − 1 largest are the noise's; the others are zero.
    count = members.sum(dtype=jnp.int32)
    behind = jnp.arange(len(values) - 1, -1, -1, dtype=count.dtype)
    lower, upper = behind == (count - 1) // 2, behind == (count - 2) // 2
    median = (jnp.where(lower, values, 0) + jnp.where(upper, values, 0)).sum() / 2
    number = count.astype(dtype)
    ratio = (number - 1) / freedom
    edge = (1 + jnp.sqrt(ratio)) ** 2 / (1 - ratio / 3)
    seen = (values[None, -SHIFTS:] > SHIFT_MARGIN * edge * median) & (count >= LEAST_CLIENTS)
    seen &= freedom >= LEAST_FREEDOM * number
    along = jnp.where(members[:, None], vectors[:, -SHIFTS:] / jnp.where(members, root, 1)[:, None], jnp.inf)
    low, width = _narrowest_majority(along, count)
    below, above = along < low - width, (along > low + 2 * width) & members[:, None]
    moved = jnp.where(below, below.sum(0, dtype=jnp.int32), 0) + jnp.where(above, above.sum(0, dtype=jnp.int32), 0)
    return jnp.maximum(jnp.max(jnp.where(seen, moved, 0), axis=1), 1)


def _narrowest_majority(
    along: Float[Array, "clients shifts"], count: Int[Array, ""]
) -> tuple[Float[Array, "1 shifts"], Float[Array, "1 shifts"]]:
    """The shortest interval that holds more than half of the `count` finite entries of each column: start, width."""
    order = jnp.sort(along, axis=0)
    last = jnp.arange(len(along), dtype=count.dtype) + count // 2
    ends = jnp.take(order, last, axis=0, mode="clip")
    widths = jnp.where((last < count)[:, None], ends - order, jnp.inf)
    width = jnp.min(widths, axis=0, keepdims=True)
    return jnp.min(jnp.where(widths == width, order, jnp.inf), axis=0, keepdims=True), width
