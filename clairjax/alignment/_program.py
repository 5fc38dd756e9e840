"""The convex program (7), with the sparse part eliminated, and the duality gap that certifies a solution."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._loop import Outcome
from .._status import Status, worst
from .._typing import ScalarLike
from ..subspaces import projector
from ._clients import Clients
from ._contrasts import pair_sum


class Penalty(eqx.Module):
    """Weights of the two penalties of the convex program.

    **Args:** positive scalars in the units of the weights times a pair weight; `decompose` and `clair` refuse others.

    - `low_rank` (the paper's λ_L) multiplies the nuclear norm of the stacked low-rank part.
    - `sparse` (λ_S) multiplies the sum of block Frobenius norms of the sparse part.

    **Source:** CLAIR (7). Section 7 of the paper uses low_rank = c1·K^(−1/2), sparse = c2·K^(−3/2).
    """

    low_rank: ScalarLike
    sparse: ScalarLike


class Decomposition(eqx.Module):
    """A solution of the convex program (7): `contrasts = low rank + block sparse + rest`.

    - `objective`: value of (7) at the low-rank part below and its best sparse part;
    - `basis` [in, max_rank]: right singular vectors of the stacked low-rank part, largest first, padded with exact
      zeros beyond `rank`;
    - `rank`: singular values whose penalty exceeds what the certificate can resolve (traced integer);
    - `singular_values` [max_rank], in the same order;
    - `residual_norms` [clients, clients]: ‖D_jk − L_jk‖_F, what the low-rank part leaves of each contrast. The
      sparse part is its block soft threshold at sparse/pair_weight;
    - `optimality`: duality gap over objective, 0 at the optimum. The objective is within this fraction of the
      minimum, up to rounding;
    - `steps`: iterations done; `status`.
    """

    objective: Float[Array, ""]
    basis: Float[Array, " in max_rank"]
    rank: Int[Array, ""]
    singular_values: Float[Array, " max_rank"]
    residual_norms: Float[Array, "clients clients"]
    optimality: Float[Array, ""]
    steps: Int[Array, ""]
    status: Status

    @property
    def projector(self) -> Float[Array, " in in"]:
        """Projector onto the row space of the low-rank part, [in, in]."""
        return projector(self.basis)


class Start(NamedTuple):
    """Where `Factored` may begin. From the factor alone it takes as many steps as from anywhere, for the weights."""

    factor: Float[Array, " in max_rank"]
    weights: Float[Array, "clients clients"]  # Huber weights of the contrasts


class Certificate(NamedTuple):
    """A low-rank part by its singular vectors and values, what it leaves, and how far it is from the optimum."""

    objective: Float[Array, ""]
    optimality: Float[Array, ""]
    basis: Float[Array, " in max_rank"]
    singular_values: Float[Array, " max_rank"]
    residual_norms: Float[Array, "clients clients"]
    exclusion: Float[Array, " max_rank"]  # the gap below which the optimum's row space cannot hold the direction


def tolerance(rtol: ScalarLike | None, dtype: jnp.dtype) -> Float[Array, ""]:
    """The relative duality gap to stop at; None is eps^0.6, as far as rounding lets the gap be told."""
    return jnp.asarray(float(jnp.finfo(dtype).eps) ** 0.6 if rtol is None else rtol, dtype)


def residual_weights(
    residual_norms: Float[Array, "*pairs"], pair_weights: Float[Array, "*pairs"], penalty: Penalty
) -> Float[Array, "*pairs"]:
    """min(ω, λ_S/‖R‖): eliminating S leaves Σ ω huber(‖R‖; λ_S/ω), whose gradient is this weight times R."""
    positive = residual_norms > 0
    return jnp.where(
        positive,
        jnp.minimum(pair_weights, penalty.sparse / jnp.where(positive, residual_norms, 1)),
        pair_weights,
    )


def certify(
    basis: Float[Array, " in max_rank"],
    singular_values: Float[Array, " max_rank"],
    residual_norms: Float[Array, "clients clients"],
    residual_contrast_products: Float[Array, "clients clients"],
    dual_norm: Float[Array, ""],
    dual_lengths: Float[Array, " max_rank"],
    pair_weights: Float[Array, "clients clients"],
    penalty: Penalty,
) -> Certificate:
    """Objective of (7) and the relative duality gap at a low-rank part L, from tables over pairs.

    With R = D − L and Z_g = min(ω_g, λ_S/‖R_g‖) R_g, the Fenchel dual of (7) is max ⟨Z, D⟩ − ½ Σ ‖Z_g‖²/ω_g over
    ‖Z_g‖_F ≤ λ_S and ‖Z‖_op ≤ λ_L. Z meets the first; scaled by min(1, λ_L/‖Z‖_op) it meets the second.

    The dual is strongly concave: a gap δ puts the best Z within √(2 δ max ω) of this Z. Each direction v of the best
    row space has ‖Zv‖ = λ_L at the best Z. So v is none of its directions if δ is below `exclusion`, which is
    (λ_L − ‖Zv‖)²/(2 max ω). This is gap-safe screening (Ndiaye et al., 2017), for the nuclear norm.

    `basis` and `singular_values` are L's, `residual_contrast_products` holds ⟨R_g, D_g⟩, `dual_norm` is ‖Z‖_op and
    `dual_lengths` the ‖Zv‖ of the basis.
    """
    weights = residual_weights(residual_norms, pair_weights, penalty)
    squares = residual_norms**2
    excess = jnp.maximum(residual_norms - weights * residual_norms / jnp.where(pair_weights > 0, pair_weights, 1), 0)
    loss = pair_sum(weights * squares / 2 + penalty.sparse * excess / 2)
    objective = loss + penalty.low_rank * singular_values.sum()
    scale = jnp.minimum(1, penalty.low_rank / jnp.where(dual_norm > 0, dual_norm, penalty.low_rank))
    quadratic = pair_sum(weights**2 * squares / jnp.where(pair_weights > 0, pair_weights, 1))
    dual = scale * pair_sum(weights * residual_contrast_products) - scale**2 * quadratic / 2
    optimality = jnp.where(objective == 0, 0, (objective - dual) / jnp.where(objective == 0, 1, objective))
    missing = jnp.maximum(penalty.low_rank - scale * dual_lengths, 0)
    exclusion = missing**2 / (2 * jnp.max(pair_weights))
    return Certificate(objective, optimality, basis, singular_values, residual_norms, exclusion)


def leading(basis: Float[Array, " in max_rank"], rank: Int[Array, ""]) -> Float[Array, " in max_rank"]:
    """The first `rank` columns, the others zero."""
    return jnp.where(jnp.arange(basis.shape[1], dtype=rank.dtype)[None] < rank, basis, 0)


def decomposition(certificate: Certificate, outcome: Outcome, penalty: Penalty, rtol: ScalarLike) -> Decomposition:
    """The public result. A direction counts as zero in three cases.

    - Its penalty is within the tolerance of the objective.
    - Its singular value is within 8 √eps of the largest: it comes by way of a Gram.
    - The gap rules it out.

    Where the gap stays open and no column up to the bound on the rank is zero, the bound holds the gap open.
    """
    objective, optimality, basis, values, residual_norms, exclusion = certificate
    kept = penalty.low_rank * values > 10 * rtol * objective
    kept &= values > 8 * jnp.sqrt(jnp.finfo(values.dtype).eps) * values[0]
    kept &= exclusion <= jnp.maximum(rtol, jnp.abs(optimality)) * objective
    kept = jnp.cumprod(kept) > 0
    status = outcome.status
    if basis.shape[1] < basis.shape[0]:
        bound = kept[-1] & (status == Status.max_steps_reached)
        status = Status.where(bound, Status.rank_at_bound, status)
    return Decomposition(
        objective=objective,
        basis=jnp.where(kept[None], basis, 0),
        rank=kept.sum(dtype=jnp.int32),
        singular_values=jnp.where(kept, values, 0),
        residual_norms=residual_norms,
        optimality=optimality,
        steps=outcome.steps,
        status=status,
    )


def with_status(solution: Decomposition, status: Status) -> Decomposition:
    """The solution of a problem whose data or arguments may be bad."""
    return eqx.tree_at(lambda result: result.status, solution, worst(status, solution.status))


def lifted(solution: Decomposition, clients: Clients) -> Decomposition:
    """With the basis in the coordinates of the inputs."""
    return eqx.tree_at(lambda result: result.basis, solution, clients.lift(solution.basis))
