"""When the convex program provably finds the shared row space: incoherence, overlap, admissible penalties.

Each function takes the truth or estimates of it. Row spaces and sets are arrays, so all but the two functions
that may return None work under `jit` and `vmap`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._precision import HIGHEST
from .._typing import ScalarLike
from ._reports import centred


Count = Int[Array, ""] | int


class Whitened(NamedTuple):
    """`root` [r, r] with rootᵀ gram root = diag(kept): the inverse square root of a Gram on its range."""

    root: Float[Array, "rank rank"]
    kept: Bool[Array, " rank"]


def whiten(gram: Float[Array, "rank rank"], size: int) -> Whitened:
    """Invert the square root of a Gram matrix of `size` terms on its numerical range; zero elsewhere."""
    values, vectors = jnp.linalg.eigh(gram)
    kept = values > size * jnp.finfo(gram.dtype).eps * jnp.maximum(values[-1], 0)
    scale = jnp.where(kept, jax.lax.rsqrt(jnp.where(kept, values, 1)), 0)
    return Whitened(vectors * scale[None, :], kept)


def member_coordinates(
    weights: Float[Array, "clients out in"], members: Bool[Array, " clients"], basis: Float[Array, "in rank"]
) -> Float[Array, "clients out rank"]:
    """(W^(k) − W̄) A for members, with W̄ their mean; zero for the others."""
    return jnp.einsum("kqp,pr->kqr", centred(weights, members), basis, precision=HIGHEST)


def corrupted_pairs(members: Bool[Array, " clients"]) -> Int[Array, ""]:
    """The number of pairs with a contaminated client in them.

    s = K(K − 1)/2 − |C|(|C| − 1)/2.

    **Args:** `members` [K], the benign clients C.

    **Returns:** an integer in [0, K(K − 1)/2].

    **Source:** CLAIR, section 3.2 and Lemma 2. There s/G = 1 − η² + η(1 − η)/(K − 1) with η = |C|/K, which is
    exact.

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import corrupted_pairs
    >>> int(corrupted_pairs(jnp.array([True, True, True, False])))
    3
    """
    clients, benign = members.size, members.sum()
    return clients * (clients - 1) // 2 - benign * (benign - 1) // 2


def incoherence(
    weights: Float[Array, "clients out in"], members: Bool[Array, " clients"], basis: Float[Array, "in rank"]
) -> Float[Array, ""]:
    """How far one pair of clients dominates the shared signal: 1 when all pairs carry the same share.

    U is an orthonormal basis of the column space of the stacked benign contrasts (W^(j) − W^(k)) P_A, with zero
    blocks for the other pairs. Incoherence is the smallest μ with max_g ‖U_g‖_F² ≤ μ r/G, for r the rank and G all
    pairs. The Gram of the stack is |C| Σ_k C_kᵀ C_k with C_k = (W^(k) − W̄) A, so nothing of the stack's length is
    formed.

    **Args:**

    - `weights` [K, q, p], true or estimated.
    - `members` [K].
    - `basis` [p, r], orthonormal columns, zero columns allowed.

    **Returns:** μ ≥ G/(G − s); 1 where the members' contrasts vanish.

    **Source:** CLAIR, Assumption 2 (Block-IC), for the L_0 of (11). Since that L_0 has s zero blocks, μ
    cannot be below G/(G − s), which the paper's "μ ≥ 1" does not say.

    **Cost:** O(K q p r + K² q r). The Gram squares singular values: in float32, directions below 10⁻³ of the
    largest count as absent.

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import incoherence
    >>> weights = jnp.array([[[0.0, 1.0]], [[1.0, 1.0]], [[0.0, 5.0]]])
    >>> round(float(incoherence(weights, jnp.array([True, True, False]), jnp.array([[1.0], [0.0]]))), 4)
    3.0
    """
    clients = members.size
    coordinates = member_coordinates(weights, members, basis)
    root, kept = whiten(coordinate_gram(coordinates), clients * weights.shape[1])
    unit = jnp.einsum("kqr,rs->kqs", coordinates, root, precision=HIGHEST)
    inner = jnp.einsum("jqr,kqr->jk", unit, unit, precision=HIGHEST)
    squares = jnp.diagonal(inner)
    count = jnp.maximum(members.sum(), 1).astype(inner.dtype)
    blocks = (squares[:, None] + squares[None, :] - 2 * inner) / count
    largest = jnp.max(jnp.where(members[:, None] & members[None, :], blocks, 0))
    rank = kept.sum().astype(inner.dtype)
    return jnp.where(rank > 0, largest * (clients * (clients - 1) / 2) / jnp.maximum(rank, 1), 1)


def column_overlap(
    weights: Float[Array, "clients out in"], members: Bool[Array, " clients"], basis: Float[Array, "in rank"]
) -> Float[Array, ""]:
    """How much of a shared direction only corrupted pairs show: below 1, the members span the row space.

    ρ = ‖P_I P_U P_I‖_op with U the column space of the stack of all (W^(j) − W^(k)) P_A and P_I the blocks of
    corrupted pairs. It equals 1 − λ_min(T^{-1/2} B T^{-1/2}) with T the r × r Gram of all blocks and B that
    of the benign ones.

    **Args:**

    - `weights` [K, q, p], true or estimated.
    - `members` [K].
    - `basis` [p, r], orthonormal columns, zero columns allowed.

    **Returns:** ρ in [0, 1]; 0 where no contrast has a part in the row space.

    **Source:** CLAIR, Lemma 1, for the component L_A = D P_A of (18). Departs from print: the L_0 of (11) has zero
    blocks for corrupted pairs. So its ρ is 0 whatever the data, and Lemma 2 holds without its condition. For L_A,
    ρ < 1 says what Lemma 1 means by it: benign contrasts alone span the row space. The bound ρ ≤ s μ r/G needs a μ
    over all pairs of the same decomposition, not that of `incoherence`.

    **Cost:** O(K q p r).

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import column_overlap
    >>> weights = jnp.array([[[0.0, 1.0]], [[1.0, 1.0]], [[0.0, 5.0]]])
    >>> round(float(column_overlap(weights, jnp.array([True, True, False]), jnp.array([[1.0], [0.0]]))), 6)
    0.5
    """
    everyone = jnp.ones_like(members)
    rows = weights.shape[0] * weights.shape[1]
    total = weights.shape[0] * coordinate_gram(member_coordinates(weights, everyone, basis))
    benign = members.sum().astype(weights.dtype) * coordinate_gram(member_coordinates(weights, members, basis))
    root, kept = whiten(total, rows)
    share = jnp.einsum("rs,rt,tu->su", root, benign, root, precision=HIGHEST)
    share = share + jnp.diag(1 - kept.astype(root.dtype))
    return jnp.clip(1 - jnp.linalg.eigvalsh(share)[0], 0, 1)


def penalty_ratio_bounds(
    incoherence: ScalarLike,
    rank: Count,
    corrupted_pairs: Count,
    pairs: Count,
    *,
    row_slack: ScalarLike | None = None,
    block_slack: ScalarLike = 1.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The open interval of penalty.sparse / penalty.low_rank for which exact recovery is proved.

    For given a and b, with x = √(μ r s/G),

        lower = √(μ r/G) / (b − (1 + a) x),   upper = a / ((1 + a) √s).

    Both ends rise with a, so the union over a in (0, 1) is one interval,

        lower = 2 √(μ r/G) / (b + √(b² − 4 b x)),   upper = 1/(2 √s),

    largest for b → 1, and not empty exactly when x < b/4.

    **Args:**

    - `incoherence`: μ > 0. `rank`: r. `corrupted_pairs`: s ≥ 0. `pairs`: G = K(K − 1)/2.
    - `row_slack`: a in (0, 1), by how much the dual certificate stays below λ_L outside the tangent space;
      None for the union over all a.
    - `block_slack`: b in (0, 1), the same for λ_S on benign pairs; 1 (the default) for the limit b → 1.

    **Returns:** two scalars of μ's dtype; the interval is empty exactly where lower < upper fails. Upper is
    infinite without corrupted pairs.

    **Source:** CLAIR, (25), for λ_S/λ_L; the union is ours. It is not empty when μ r s/G < 1/16. As μ ≥ G/(G
    − s), that takes s/(G − s) < 1/(16 r): with one contaminated client, at least 16 r-fold more benign pairs
    than corrupted ones, K > 32 r + 2.

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import penalty_ratio_bounds
    >>> [round(float(end), 4) for end in penalty_ratio_bounds(1.5, 1, 49, 1225)]
    [0.0613, 0.0714]
    """
    dtype = jnp.result_type(float) if not isinstance(incoherence, jax.Array) else incoherence.dtype
    mu, r, s, g, b = (jnp.asarray(v, dtype) for v in (incoherence, rank, corrupted_pairs, pairs, block_slack))
    block = jnp.sqrt(mu * r / g)
    spread = block * jnp.sqrt(s)
    if row_slack is None:
        lower = 2 * block / (b + jnp.sqrt(jnp.maximum(b * (b - 4 * spread), 0)))
        return lower, 1 / (2 * jnp.sqrt(s))
    a = jnp.asarray(row_slack, dtype)
    room = b - (1 + a) * spread
    lower = jnp.where(room > 0, block / jnp.where(room > 0, room, 1), jnp.inf)
    return lower, a / ((1 + a) * jnp.sqrt(s))


def penalty_ratio_interval(
    incoherence: ScalarLike,
    rank: Count,
    corrupted_pairs: Count,
    pairs: Count,
    *,
    row_slack: ScalarLike | None = None,
    block_slack: ScalarLike = 1.0,
) -> tuple[float, float] | None:
    """`penalty_ratio_bounds` as two floats, or None where the interval is empty. For use outside a trace.

    **Source:** CLAIR, (25).

    >>> from clairjax.alignment import penalty_ratio_interval
    >>> penalty_ratio_interval(1.0, 2, 4, 10) is None
    True
    """
    bounds = penalty_ratio_bounds(
        incoherence, rank, corrupted_pairs, pairs, row_slack=row_slack, block_slack=block_slack
    )
    lower, upper = (float(end) for end in bounds)
    return (lower, upper) if lower < upper else None


def vote_share_interval(members: int, clients: int) -> tuple[float, float] | None:
    """The vote shares with which the vote finds exactly the members, given the right threshold.

    ((|C^c| − 1)/(K − 1), (|C| − 1)/(K − 1)], the lower end excluded and the upper one included: a member
    agrees with the |C| − 1 others, a contaminated client with at most the |C^c| − 1 others.

    **Args:**

    - `members` |C| in [1, K].
    - `clients` K ≥ 2.

    **Returns:** (lower, upper), or None where the members are no strict majority.

    **Raises:** `ValueError` for counts outside these ranges.

    **Source:** CLAIR, Remark 3, Theorem 3. The default 1/2 lies in it for every strict majority.

    >>> from clairjax.alignment import vote_share_interval
    >>> vote_share_interval(3, 5)
    (0.25, 0.5)
    """
    if not 1 <= members <= clients or clients < 2:
        raise ValueError(f"members must be in [1, clients] with clients >= 2, got {members} of {clients}.")
    if 2 * members <= clients:
        return None
    return (clients - members - 1) / (clients - 1), (members - 1) / (clients - 1)


def coordinate_gram(coordinates: Float[Array, "clients out rank"]) -> Float[Array, "rank rank"]:
    return jnp.einsum("kqr,kqs->rs", coordinates, coordinates, precision=HIGHEST)
