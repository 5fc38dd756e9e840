"""`Factored`: the optimum of (7) without the stack of contrasts."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._loop import iterate
from .._typing import ScalarLike
from ..kernels import orthonormalize, spectral_norm
from ._clients import Clients
from ._contrasts import HIGHEST, laplacian_times, pair_squared_distances, pair_sum
from ._program import Certificate, Decomposition, Penalty, certify, decomposition, residual_weights, tolerance


# Up to this width the Gram of the dual variable is formed and its spectral norm exact; beyond, Lanczos.
SMALL = 128
LANCZOS_STEPS = 24


class Factored(eqx.Module):
    """Alternating minimisation over L_g = U_g Aᵀ with the sparse part eliminated.

    With A: p × r the nuclear norm is min ½(‖U‖² + ‖A‖²), and the program is Σ_g ω_g huber(‖D_g − U_g Aᵀ‖; λ_S/ω_g)
    + λ_L/2 (‖U‖² + ‖A‖²). A step sets the Huber weights c_g, then U_g = D_g A (AᵀA + λ_L/c_g)⁻¹, then A by least
    squares; each lowers the objective. Every sum over pairs is a K × K Laplacian between two products with the
    clients, so no contrast is formed.

    **Args:** `max_rank` (static; cut to `in`): columns of A, at least the rank of the solution. With one column to
    spare the optimum found is global, and `optimality` certifies it; with too few the gap stays open and the status
    says so. `max_steps` (static). `rtol`: stop when the relative duality gap is at or below it; None means
    eps^0.6 of the dtype (4e-10 in float64, 7e-5 in float32).

    **Source:** same optimum as CLAIR Algorithm 1, which is `ProximalGradient`.

    **Cost:** a step K·q·p·r + (K r)²·q multiplications, K·q·p + (K r)² memory; the gap, taken every 10 steps,
    K²·q·p. In float32 residuals below 3e-4 of a contrast are resolved by the certificate only.
    """

    max_rank: int = eqx.field(static=True, default=8)
    max_steps: int = eqx.field(static=True, default=500)
    rtol: ScalarLike | None = None

    def solve(
        self,
        clients: Clients,
        penalty: Penalty,
        pair_weights: Float[Array, "clients clients"],
        factor: Float[Array, " in max_rank"] | None = None,
    ) -> Decomposition:
        """Solve (7) for the clients, from `factor` if given (a warm start)."""
        distances = pair_squared_distances(clients.inner_products())
        if factor is None:
            factor = initial_factor(clients, distances, self.max_rank)
        rtol = tolerance(self.rtol, factor.dtype)
        _, certificate, outcome = iterate(
            lambda state: step(clients, distances, penalty, pair_weights, state),
            lambda state: _certificate(clients, penalty, pair_weights, state),
            start(factor, pair_weights),
            rtol=rtol,
            max_steps=self.max_steps,
            check_every=10,
        )
        return decomposition(certificate, outcome, penalty, rtol)


class State(NamedTuple):
    factor: Float[Array, " in max_rank"]  # A
    previous: Float[Array, " in max_rank"]  # A of the step before, in the same coordinates
    momentum: Float[Array, ""]  # steps since the last restart
    weights: Float[Array, "clients clients"]  # Huber weights c, zero on the diagonal


def start(factor: Float[Array, " in max_rank"], pair_weights: Float[Array, "clients clients"]) -> State:
    return State(factor, factor, jnp.zeros((), factor.dtype), pair_weights)


def initial_factor(
    clients: Clients, distances: Float[Array, "clients clients"], max_rank: int
) -> Float[Array, " in max_rank"]:
    """A fixed arbitrary basis, scaled to the contrasts. A constant of the trace: a draw would cost compile time."""
    in_ = clients.shape[2]
    draw = np.random.default_rng(0).standard_normal((in_, min(max_rank, in_)))
    basis = jnp.asarray(np.linalg.qr(draw)[0], distances.dtype)
    return basis * jnp.sqrt(jnp.sqrt(pair_sum(distances) / basis.shape[1]))


@jax.named_scope("clairjax.factored_step")
def step(
    clients: Clients,
    distances: Float[Array, "clients clients"],
    penalty: Penalty,
    pair_weights: Float[Array, "clients clients"],
    state: State,
) -> State:
    extrapolated = state.factor + state.momentum / (state.momentum + 3) * (state.factor - state.previous)
    factor, rotation = with_orthogonal_columns(extrapolated)
    latest = jnp.matmul(state.factor, rotation, precision=HIGHEST)
    weights = state.weights
    squares = (factor**2).sum(0)[None, None]
    rows, cross = contrast_products(clients, factor)

    def gain(weights: Array) -> Array:  # U_g = D_g A diag(gain_g)
        return weights[..., None] / (weights[..., None] * squares + penalty.low_rank)

    # ‖D − UAᵀ‖² = ‖D‖² − Σ_i h_i (2 − h_i s_i²) ‖D a_i‖²: loses digits where little is left, hence the floor.
    h = gain(weights)
    explained = (h * (2 - h * squares) * jnp.diagonal(cross, axis1=-2, axis2=-1)).sum(-1)
    left = jnp.maximum(distances - explained, jnp.finfo(distances.dtype).eps * distances)
    weights = residual_weights(jnp.sqrt(left), pair_weights, penalty)

    h = gain(weights)
    contrast_rows = _weighted_rows(weights[..., None] * h, rows)
    numerator = clients.adjoint_times(contrast_rows)  # Σ c DᵀU
    normal = pair_sum((weights[..., None] * h)[..., :, None] * h[..., None, :] * cross)  # Σ c UᵀU
    normal = normal + penalty.low_rank * jnp.eye(factor.shape[1], dtype=normal.dtype)
    updated = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(normal), True), numerator.T).T
    overshot = jnp.sum((factor - updated) * (updated - latest)) > 0
    return State(updated, latest, jnp.where(overshot, 0, state.momentum + 1), weights)


def with_orthogonal_columns(
    factor: Float[Array, " in max_rank"],
) -> tuple[Float[Array, " in max_rank"], Float[Array, "max_rank max_rank"]]:
    _, rotation = jnp.linalg.eigh(jnp.matmul(factor.T, factor, precision=HIGHEST))
    rotation = rotation[:, ::-1]
    return jnp.matmul(factor, rotation, precision=HIGHEST), rotation


@jax.named_scope("clairjax.factored_certificate")
def _certificate(
    clients: Clients, penalty: Penalty, pair_weights: Float[Array, "clients clients"], state: State
) -> Certificate:
    """Objective and gap at L_g = D_g Â diag(k_g) Âᵀ, with its singular vectors and values and residual norms."""
    factor, _ = with_orthogonal_columns(state.factor)
    directions = orthonormalize(factor)  # Â = A diag(1/s), completed where s = 0
    squares = (factor**2).sum(0)
    rows, cross = contrast_products(clients, directions)
    along = jnp.diagonal(cross, axis1=-2, axis2=-1)
    outside = pair_squared_distances(clients.project_out(directions).inner_products())
    kept = state.weights[..., None] * squares[None, None]
    kept = kept / (kept + penalty.low_rank)

    residual_norms = jnp.sqrt(outside + ((1 - kept) ** 2 * along).sum(-1))
    products = outside + ((1 - kept) * along).sum(-1)
    low_rank_gram = pair_sum(kept[..., :, None] * kept[..., None, :] * cross)
    values, vectors = jnp.linalg.eigh(low_rank_gram)
    values = jnp.sqrt(jnp.maximum(values[::-1], 0))

    weights = after(residual_weights(residual_norms, pair_weights, penalty), values)
    dual_norm = _dual_norm(clients, weights**2, kept, directions, rows, cross)
    basis = jnp.matmul(directions, vectors[:, ::-1], precision=HIGHEST)
    return certify(basis, values, residual_norms, products, dual_norm, pair_weights, penalty)


def _dual_norm(
    clients: Clients,
    weights: Float[Array, "clients clients"],
    kept: Float[Array, "clients clients max_rank"],
    directions: Float[Array, " in max_rank"],
    rows: Float[Array, "clients out max_rank"],
    cross: Float[Array, "clients clients max_rank max_rank"],
) -> Float[Array, ""]:
    """Spectral norm of the stack of √w_g R_g, R_g = D_g (I − Â diag(k_g) Âᵀ), by products with clients alone."""
    in_ = clients.shape[2]
    kept_rows = _weighted_rows(weights[..., None] * kept, rows)
    inner = pair_sum(weights[..., None, None] * kept[..., :, None] * kept[..., None, :] * cross)

    if in_ <= SMALL:
        mixed = jnp.matmul(clients.adjoint_times(kept_rows), directions.T, precision=HIGHEST)
        both = jnp.matmul(jnp.matmul(directions, inner, precision=HIGHEST), directions.T, precision=HIGHEST)
        square = jnp.linalg.eigvalsh(clients.scatter(weights) - mixed - mixed.T + both)[-1]
    else:

        def gram_times(vector: Float[Array, " in"]) -> Float[Array, " in"]:
            image = clients.times(vector[:, None])[..., 0]
            along = jnp.matmul(directions.T, vector, precision=HIGHEST)
            remaining = laplacian_times(weights, image) - jnp.matmul(kept_rows, along, precision=HIGHEST)
            overlap = jnp.einsum("kqr,kq->r", kept_rows, image, precision=HIGHEST)
            overlap = overlap - jnp.matmul(inner, along, precision=HIGHEST)
            outside = clients.adjoint_times(remaining[..., None])[:, 0]
            return outside - jnp.matmul(directions, overlap, precision=HIGHEST)

        square = spectral_norm(gram_times, in_, dtype=rows.dtype, steps=LANCZOS_STEPS)
    return jnp.sqrt(jnp.maximum(square, 0))


def after(x: Array, computed: Array) -> Array:
    """x, available only once `computed` is.

    On CPU two batched factorisations that do not depend on each other can wait for each other's threads for ever
    (jaxlib 0.10). Zero times a float is not folded away, for it may be NaN.
    """
    return x + 0 * computed.sum()


def contrast_products(
    clients: Clients, basis: Float[Array, " in columns"]
) -> tuple[Float[Array, "clients out columns"], Float[Array, "clients clients columns columns"]]:
    """W_k B for each client, and (D_g B)ᵀ(D_g B) for each pair."""
    rows = clients.times(basis)
    count, out, columns = rows.shape
    flat = rows.transpose(0, 2, 1).reshape(count * columns, out)
    table = jnp.matmul(flat, flat.T, precision=HIGHEST).reshape(count, columns, count, columns).transpose(0, 2, 1, 3)
    own = jnp.diagonal(table, axis1=0, axis2=1).transpose(2, 0, 1)
    return rows, own[:, None] + own[None, :] - table - table.transpose(1, 0, 2, 3)


def _weighted_rows(
    pair_values: Float[Array, "clients clients columns"], rows: Float[Array, "clients out columns"]
) -> Float[Array, "clients out columns"]:
    """`laplacian_times` with a table of its own for each column."""
    return jax.vmap(laplacian_times, in_axes=(2, 2), out_axes=2)(pair_values, rows)
