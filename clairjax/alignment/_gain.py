"""What collaboration gains and costs, client by client: should this client take part?"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._precision import HIGHEST
from ..subspaces import along
from ._reports import centred, members_mean
from ._theory import coordinate_gram, member_coordinates, whiten


class Collaboration(eqx.Module):
    """Gain and cost of collaboration for each client, as shares of its local mean squared error E^(k).

    **Source:** CLAIR, (30)–(35). Both factors are 1 for a client that is no member: it keeps its own matrix.
    """

    reducible_share: Float[Array, " clients"]  # θ_k = E_⊥^(k)/E^(k), the error outside the shared row space, (30)
    averaged_share: Float[Array, " clients"]  # φ_k = H^(k)/E_⊥^(k): how much of it averaging removes, (31)
    oracle_gain: Float[Array, " clients"]  # H^(k), in the units of the error, (31)
    cost: Float[Array, " clients"]  # E_cost^(k)/E^(k), printed as varphi_k: what estimating costs, (33)

    @property
    def mse_factor(self) -> Float[Array, " clients"]:
        """1 − φ_k θ_k: the error with the true set and row space, over the local error. Theorem 4, (32)."""
        return 1 - self.averaged_share * self.reducible_share

    @property
    def mse_factor_bound(self) -> Float[Array, " clients"]:
        """(√(1 − φ_k θ_k) + √cost)²: at most this is the error over the local error, given the right set.

        It is 1 − ζ_k θ_k for the largest ζ_k of (34), by the triangle inequality in the proof of Theorem 5.
        """
        return (jnp.sqrt(self.mse_factor) + jnp.sqrt(self.cost)) ** 2

    @property
    def mse_factor_expected(self) -> Float[Array, " clients"]:
        """1 − φ_k θ_k + cost: what to expect, where the bound covers the worst case.

        For errors of one law this cost of the members' principal row space and the error of Theorem 4 are
        uncorrelated, to first order. Outside the row space the cost depends on contrasts of the clients' errors, the
        error on their mean. Not in the paper.
        """
        return self.mse_factor + self.cost

    @property
    def worthwhile(self) -> Bool[Array, " clients"]:
        """Should this client collaborate? True where (34) holds for some ζ_k in (0, φ_k).

        That is cost < (1 − √(1 − φ_k θ_k))²: the bound is below 1. It is sufficient, not necessary.
        """
        return self.mse_factor_bound < 1

    @property
    def guaranteed_share(self) -> Float[Array, " clients"]:
        """The supremum of the ζ_k in (34): how much of the reducible error surely goes; 0 without one."""
        room = jnp.maximum(1 - self.mse_factor_bound, 0)
        return _ratio(room, self.reducible_share)


def projected_errors(
    second_moments: Float[Array, "clients in in"], basis: Float[Array, "in rank"]
) -> tuple[Float[Array, " clients"], Float[Array, " clients"]]:
    """Split each client's mean squared error into the parts outside and inside the shared row space.

    E_⊥ = tr(M) − tr(AᵀMA) and E_A = tr(AᵀMA), with M = E[ΞᵀΞ] the p × p second moment of the client's error
    Ξ.

    **Args:**

    - `second_moments` [K, p, p], symmetric, positive semidefinite.
    - `basis` [p, r], orthonormal columns, zero columns allowed.

    **Returns:** (outside [K], inside [K]).

    **Source:** CLAIR, (29). For q independent rows of covariance Σ, M = q Σ.

    **Cost:** O(K p² r).

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import projected_errors
    >>> outside, inside = projected_errors(jnp.diag(jnp.array([1.0, 2.0, 3.0]))[None], jnp.eye(3)[:, :1])
    >>> outside.tolist(), inside.tolist()
    ([5.0], [1.0])
    """
    inside = jnp.einsum("pr,kpt,tr->k", basis, second_moments, basis, precision=HIGHEST)
    return jnp.trace(second_moments, axis1=1, axis2=2) - inside, inside


def collaboration(
    outside: Float[Array, " clients"],
    inside: Float[Array, " clients"],
    members: Bool[Array, " clients"],
    cost: Float[Array, " clients"] | None = None,
) -> Collaboration:
    """Gain and cost from each client's error outside and inside the shared row space.

    H^(k) = E_⊥^(k) − Σ_{j∈C} E_⊥^(j)/|C|², φ_k = H^(k)/E_⊥^(k), θ_k = E_⊥^(k)/(E_⊥^(k) + E_A^(k)).

    **Args:**

    - `outside` E_⊥ [K] ≥ 0.
    - `inside` E_A [K] ≥ 0.
    - `members` [K].
    - `cost` E_cost [K] ≥ 0 in the same units (default: none, the true row space).

    **Returns:** `Collaboration`. H and φ are negative for a client whose own error is below that of the
    average.

    **Source:** CLAIR, (30), (31), (33). φ_k ≤ 1 − 1/|C|² for members, so φ_k < 1 as the paper says. The
    factor of Theorem 4 is exact for the true set and independent errors of mean zero, which its statement leaves
    unsaid.

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import collaboration
    >>> ours = collaboration(jnp.full(4, 8.0), jnp.full(4, 2.0), jnp.array([True, True, True, False]))
    >>> [round(float(value), 4) for value in ours.mse_factor]
    [0.4667, 0.4667, 0.4667, 1.0]
    """
    count = jnp.maximum(members.sum(), 1).astype(outside.dtype)
    gain = jnp.where(members, outside - jnp.where(members, outside, 0).sum() / count**2, 0)
    local = outside + inside
    charged = jnp.zeros_like(local) if cost is None else jnp.where(members, cost, 0)
    return Collaboration(_ratio(outside, local), _ratio(gain, outside), gain, _ratio(charged, local))


def even_mse_factor(members: Int[Array, ""] | int, rank: int, inputs: int) -> Float[Array, ""] | float:
    """The error of a member with the true set and row space over its local error, when all clients err alike.

    1 − (|C| − 1)(p − r)/(|C| p), for errors of one law that are spread evenly over the p input directions.

    **Args:**

    - `members` |C| ≥ 1.
    - `rank` r.
    - `inputs` p.

    **Source:** CLAIR, Theorem 4, second display.

    >>> from clairjax.alignment import even_mse_factor
    >>> round(even_mse_factor(6, 2, 10), 4)
    0.3333
    """
    return 1 - (1 - 1 / members) * ((inputs - rank) / inputs)


def decomposition_cost(
    estimates: Float[Array, "clients out in"],
    weights: Float[Array, "clients out in"],
    members: Bool[Array, " clients"],
    basis: Float[Array, "in rank"],
    true_basis: Float[Array, "in true"],
) -> Float[Array, " clients"]:
    """One draw of the cost of an estimated row space; its mean over draws is E_cost^(k).

    ‖(W̄ − W^(k)) P_⊥ + (Ŵ^(k) − Ŵ̄)(P̂ − P)‖_F², with W true, Ŵ estimated, means over the members, P the true
    and P̂ the estimated projector. The first term is the benign misalignment −Ē_0 P_⊥, zero when the row
    space is exactly shared.

    **Args:**

    - `estimates` and `weights` [K, q, p].
    - `members` [K].
    - `basis` [p, r̂] and `true_basis` [p, r], orthonormal columns, zero columns allowed.

    **Returns:** [K], zero for a client that is no member.

    **Source:** CLAIR, (33). **Cost:** O(K q p r).

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import decomposition_cost
    >>> weights = jnp.array([[[1.0, 2.0]], [[3.0, 2.0]], [[9.0, 9.0]]])
    >>> axis = jnp.array([[1.0], [0.0]])
    >>> decomposition_cost(weights, weights, jnp.array([True, True, False]), axis, axis).tolist()
    [0.0, 0.0, 0.0]
    """
    off = members_mean(weights, members)[None] - weights
    shift = estimates - members_mean(estimates, members)[None]
    draw = off - along(off, true_basis) + along(shift, basis) - along(shift, true_basis)
    return jnp.where(members, jnp.sum(draw**2, (1, 2)), 0)


def estimate_collaboration(
    weights: Float[Array, "clients out in"],
    members: Bool[Array, " clients"],
    basis: Float[Array, "in rank"],
    *,
    fitted: bool = True,
) -> Collaboration:
    """Gain and cost from what the clients reported alone: should this client collaborate?

    Outside the row space the members share one matrix, so with R_k = (W^(k) − W̄) P_⊥, m = |C| and
    T = m/(m − 1) · Σ ‖R_k‖², the estimate of Σ E_⊥, each client has

        E_⊥^(k) = (‖R_k‖² − T/m²)/(1 − 2/m)   (m ≥ 3; for m = 2 the two errors cannot be told apart and T/2 is
        used).

    Inside it noise and signal cannot be told apart: E_A^(k) = E_⊥^(k) · r/(p − r), as for evenly spread
    errors. To first order in the noise the cost of the members' principal row space is E_cost^(k) = h_k ·
    T/(m q) with h_k the leverage of client k's block in the stacked (W^(k) − W̄) A, Σ h_k = r.

    **Args:**

    - `weights` [K, q, p], `members` [K], `basis` [p, r]: of a CLAIR result. Zero columns of `basis` are
      padding.
    - `fitted`: whether `basis` is the members' principal row space, which takes up r of the (m − 1) q degrees
      of freedom per direction outside (static). With the true row space, pass False.

    **Returns:** `Collaboration`. With fewer than two members nothing is estimated: factors 1, never
    worthwhile.

    **Source:** CLAIR, (29)–(34); the estimators are not the paper's. They assume that the set is right and that
    errors are independent between clients. The signal must be well above the noise in each shared direction:
    otherwise the cost is underestimated. The cost assumes equal noise, too. A client's E_⊥ has a relative standard
    error of about √(2/(q (p − r))). Where E_⊥ comes out negative it is set to 0: the client is told not to
    collaborate.

    **Cost:** O(K q p r).

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.alignment import estimate_collaboration
    >>> reported = 0.1 * jax.random.normal(jax.random.key(0), (6, 20, 5))
    >>> ours = jax.jit(estimate_collaboration)(reported, jnp.arange(6) < 5, jnp.eye(5)[:, :2])
    >>> ours.worthwhile.tolist()
    [True, True, True, True, True, False]
    """
    _, outputs, inputs = weights.shape
    count = members.sum().astype(weights.dtype)
    rank = jnp.any(basis != 0, axis=0).sum().astype(weights.dtype)
    own = centred(weights, members)
    residual = jnp.sum((own - along(own, basis)) ** 2, (1, 2))
    freedom = (count - 1) * outputs
    residual = residual * (_ratio(freedom, freedom - rank) if fitted else 1)
    total = _ratio(count, count - 1) * residual.sum()
    each = _ratio(residual - total / jnp.maximum(count, 1) ** 2, 1 - 2 / jnp.maximum(count, 1))
    outside = jnp.where(members, jnp.where(count > 2, jnp.maximum(each, 0), total / 2), 0)
    inside = outside * _ratio(rank, inputs - rank)
    cost = _leverage(weights, members, basis) * total / jnp.maximum(count, 1) / outputs
    return collaboration(outside, inside, members, cost)


def _leverage(weights, members, basis):
    coordinates = member_coordinates(weights, members, basis)
    root, _ = whiten(coordinate_gram(coordinates), coordinates.shape[0] * coordinates.shape[1])
    return jnp.sum(jnp.einsum("kqr,rs->kqs", coordinates, root, precision=HIGHEST) ** 2, (1, 2))


def _ratio(numerator: Array, denominator: Array) -> Array:
    """numerator / denominator, 0 where the denominator is not positive, NaN where it is NaN."""
    return jnp.where(denominator <= 0, 0, numerator / jnp.where(denominator <= 0, 1, denominator))
