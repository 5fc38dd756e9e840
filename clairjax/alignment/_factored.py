"""`Factored`: the optimum of (7) without the stack of contrasts."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _validate
from .._compile import after
from .._loop import iterate
from .._precision import HIGHEST
from .._typing import ScalarLike
from ..kernels import gram, orthonormalize, spectral_norm
from ._clients import Clients
from ._contrasts import laplacian_times, pair_squared_distances, pair_sum
from ._program import Certificate, Decomposition, Penalty, Start, certify, decomposition, residual_weights, tolerance
from ._solver import Solver


# Up to this width the Gram of the dual variable is formed: exact, and cheaper to compile. Beyond, Lanczos.
SMALL = 128
LANCZOS_STEPS = 24


class Factored(Solver):
    """Alternating minimisation over L_g = U_g Aᵀ with the sparse part eliminated.

    With A: p × r the nuclear norm is min ½(‖U‖² + ‖A‖²), and the program is Σ_g ω_g huber(‖D_g − U_g Aᵀ‖; λ_S/ω_g)
    + λ_L/2 (‖U‖² + ‖A‖²). A step sets the Huber weights c_g, then U_g = D_g A (AᵀA + λ_L/c_g)⁻¹, then A by least
    squares; each lowers the objective. Every sum over pairs is a K × K Laplacian between two products with the
    clients, so no contrast is formed.

    **Args:**

    - `max_rank` (static; cut to `in`): columns of A. With one more than the rank of the solution the optimum is
      global, and `optimality` certifies it. With too few the gap stays open and the status says so.
    - `max_steps` (static).
    - `rtol`: stop when the relative duality gap is at or below it. None means eps^0.6 of the dtype, 4e-10 in float64
      and 7e-5 in float32.

    **Source:** same optimum as CLAIR Algorithm 1, which is `ProximalGradient`.

    **Cost:** a step K·q·p·r + (K r)²·q multiplications, K·q·p + (K r)² memory; the gap, taken every 10 steps,
    K²·q·p. In float32 residuals below 3e-4 of a contrast are resolved by the certificate only.
    """

    max_rank: int = eqx.field(static=True, default=8)
    max_steps: int = eqx.field(static=True, default=500)
    rtol: ScalarLike | None = None

    def __check_init__(self):
        _validate.at_least(self.max_rank, "max_rank", 1)

    def rank_bound(self, in_: int) -> int:
        return min(self.max_rank, in_)

    def solve(
        self,
        clients: Clients,
        penalty: Penalty,
        pair_weights: Float[Array, "clients clients"],
        start: Start | None = None,
    ) -> Decomposition:
        """Solve (7) for the clients, from `start` if given."""
        distances = pair_squared_distances(clients.inner_products())
        if start is None:
            start = Start(initial_factor(clients, distances, self.max_rank), pair_weights)
        rtol = tolerance(self.rtol, distances.dtype)
        _, certificate, outcome = iterate(
            lambda state: step(clients, distances, penalty, pair_weights, state),
            lambda state: _certificate(clients, penalty, pair_weights, state),
            at_rest(start),
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


def at_rest(start: Start) -> State:
    return State(start.factor, start.factor, jnp.zeros((), start.factor.dtype), start.weights)


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
    explained = (h * (2 - h * squares) * jnp.diagonal(cross, axis1=2, axis2=3)).sum(-1)
    left = jnp.maximum(distances - explained, jnp.finfo(distances.dtype).eps * distances)
    weights = residual_weights(jnp.sqrt(left), pair_weights, penalty)

    h = gain(weights)
    contrast_rows = _weighted_rows(weights[..., None] * h, rows)
    numerator = clients.adjoint_times(contrast_rows)  # Σ c DᵀU
    normal, spread = _pair_grams(jnp.stack([weights, jnp.ones_like(weights)]), h, cross)  # Σ c UᵀU, Σ UᵀU
    normal = normal + penalty.low_rank * jnp.eye(factor.shape[1], dtype=normal.dtype)
    updated = jnp.matmul(numerator, inverse(normal), precision=HIGHEST)
    turn = balancing(updated, spread)
    updated, latest, factor = (jnp.matmul(each, turn, precision=HIGHEST) for each in (updated, latest, factor))
    overshot = jnp.sum((factor - updated) * (updated - latest)) > 0
    return State(updated, latest, jnp.where(overshot, 0, state.momentum + 1), weights)


def with_orthogonal_columns(
    factor: Float[Array, " in max_rank"],
) -> tuple[Float[Array, " in max_rank"], Float[Array, "max_rank max_rank"]]:
    _, rotation = jnp.linalg.eigh(gram(factor), symmetrize_input=False)
    rotation = rotation[:, ::-1]
    return jnp.matmul(factor, rotation, precision=HIGHEST), rotation


def inverse(matrix: Float[Array, "max_rank max_rank"]) -> Float[Array, "max_rank max_rank"]:
    """Of a small positive definite matrix; symmetric, unlike what two triangular solves leave."""
    root = jnp.linalg.cholesky(matrix)
    half = jax.scipy.linalg.solve_triangular(root, jnp.eye(len(matrix), dtype=matrix.dtype), lower=True)
    return gram(half)


def balancing(
    factor: Float[Array, " in max_rank"], spread: Float[Array, "max_rank max_rank"]
) -> Float[Array, "max_rank max_rank"]:
    """T with A T = V Σ^½ for U Aᵀ = Ŵ Σ Vᵀ, given UᵀU: of all factors of one product the one of least norm.

    Without it the balance of U against A, which ‖L‖_* needs and L does not show, converges like 1 − λ_L/σ a step.
    """
    values, vectors = jnp.linalg.eigh(spread, symmetrize_input=False)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0))[None]
    scaled = jnp.matmul(factor, root, precision=HIGHEST)
    squares, rotation = jnp.linalg.eigh(gram(scaled), symmetrize_input=False)
    squares, rotation = squares[::-1], rotation[:, ::-1]
    kept = squares > (jnp.finfo(squares.dtype).eps ** 2) * squares[0]
    scale = jnp.where(kept, jnp.where(kept, squares, 1) ** -0.25, 0)
    return jnp.matmul(root, rotation, precision=HIGHEST) * scale[None]


@jax.named_scope("clairjax.factored_certificate")
def _certificate(
    clients: Clients, penalty: Penalty, pair_weights: Float[Array, "clients clients"], state: State
) -> Certificate:
    """Objective and gap at L_g = D_g Â diag(k_g) Âᵀ, with its singular vectors and values and residual norms."""
    directions = orthonormalize(state.factor)  # Â = A diag(1/s), completed where s = 0: `step` leaves A balanced
    squares = (state.factor**2).sum(0)
    rows, cross = contrast_products(clients, directions)
    # Of a client and itself, too, where rounding leaves what it will.
    along = jnp.maximum(jnp.diagonal(cross, axis1=2, axis2=3), 0)
    remainder = clients.project_out(directions)
    outside = pair_squared_distances(remainder.inner_products())
    kept = state.weights[..., None] * squares[None, None]
    left = penalty.low_rank / (kept + penalty.low_rank)  # not 1 − kept, which has no digits where λ_L is small
    kept = kept / (kept + penalty.low_rank)

    residual_norms = jnp.sqrt(outside + (left**2 * along).sum(-1))
    products = outside + (left * along).sum(-1)
    (low_rank_gram,) = _pair_grams(jnp.ones_like(outside)[None], kept, cross)
    values, vectors = jnp.linalg.eigh(low_rank_gram, symmetrize_input=False)
    values = jnp.sqrt(jnp.maximum(values[::-1], 0))

    weights = after(residual_weights(residual_norms, pair_weights, penalty), values)
    # Z_g = w_g R_g with R_g = D_g (I − ÂÂᵀ) + D_g Â diag(left_g) Âᵀ, two parts that are orthogonal and each small
    # where R_g is: no difference of large products is taken.
    weights = (weights**2)[..., None]
    left_rows = _weighted_rows(weights * left, rows)
    (inner,) = _pair_grams(weights[None, ..., 0], left, cross)  # ÂᵀZᵀZÂ
    dual_lengths = jnp.sqrt(jnp.maximum(jnp.sum(vectors * jnp.matmul(inner, vectors, precision=HIGHEST), axis=0), 0))
    dual_norm = jnp.sqrt(_dual_square(remainder, weights[..., 0], directions, left_rows, inner))
    basis = jnp.matmul(directions, vectors[:, ::-1], precision=HIGHEST)
    return certify(basis, values, residual_norms, products, dual_norm, dual_lengths[::-1], pair_weights, penalty)


def _dual_square(
    remainder: Clients,
    weights: Float[Array, "clients clients"],
    directions: Float[Array, " in max_rank"],
    left_rows: Float[Array, "clients out max_rank"],
    inner: Float[Array, "max_rank max_rank"],
) -> Float[Array, ""]:
    """Largest eigenvalue of ZᵀZ: of the matrix where it is small, else by products with vectors alone."""
    in_ = remainder.shape[2]
    if in_ <= SMALL:
        mixed = jnp.matmul(remainder.adjoint_times(left_rows), directions.T, precision=HIGHEST)
        inside = jnp.matmul(jnp.matmul(directions, inner, precision=HIGHEST), directions.T, precision=HIGHEST)
        table = remainder.scatter(weights) + mixed + mixed.T + inside
        return jnp.maximum(jnp.linalg.eigvalsh(table)[-1], 0)

    def gram_times(vector: Float[Array, " in"]) -> Float[Array, " in"]:
        along = jnp.matmul(directions.T, vector, precision=HIGHEST)
        image = remainder.times((vector - jnp.matmul(directions, along, precision=HIGHEST))[:, None])[..., 0]
        outside = laplacian_times(weights, image) + jnp.matmul(left_rows, along, precision=HIGHEST)
        inside = jnp.einsum("kqr,kq->r", left_rows, image, precision=HIGHEST)
        inside = inside + jnp.matmul(inner, along, precision=HIGHEST)
        return remainder.adjoint_times(outside[..., None])[:, 0] + jnp.matmul(directions, inside, precision=HIGHEST)

    return spectral_norm(gram_times, in_, dtype=inner.dtype, steps=LANCZOS_STEPS)


def contrast_products(
    clients: Clients, basis: Float[Array, " in columns"]
) -> tuple[Float[Array, "clients out columns"], Float[Array, "clients clients columns columns"]]:
    """W_k B for each client, and (D_g B)ᵀ(D_g B) for each pair g = (j, k).

    Off its diagonal the latter is right only as the mean of (j, k) and (k, j). A sum over pairs sees no more.
    """
    rows = clients.times(basis)
    count, out, columns = rows.shape
    flat = rows.transpose(0, 2, 1).reshape(count * columns, out)
    table = gram(flat.T).reshape(count, columns, count, columns).transpose(0, 2, 1, 3)
    own = jnp.diagonal(table).transpose(2, 0, 1)
    return rows, own[:, None] + own[None, :] - 2 * table


def _pair_grams(
    tables: Float[Array, "tables clients clients"],
    scales: Float[Array, "clients clients columns"],
    cross: Float[Array, "clients clients columns columns"],
) -> Float[Array, "tables columns columns"]:
    """Σ_g v_g diag(s_g) (D_g B)ᵀ(D_g B) diag(s_g) over pairs, for each table v and the same scales s.

    The sum is a product of matrices: on a CPU, XLA adds one number at a time in a sum.
    """
    products = scales[..., :, None] * scales[..., None, :] * cross
    flat = products.reshape(-1, scales.shape[2] ** 2)
    sums = jnp.matmul(tables.reshape(len(tables), -1), flat, precision=HIGHEST)
    return sums.reshape(-1, *cross.shape[2:]) / 2


def _weighted_rows(
    pair_values: Float[Array, "clients clients columns"], rows: Float[Array, "clients out columns"]
) -> Float[Array, "clients out columns"]:
    """`laplacian_times` with a table of its own for each column."""
    return jax.vmap(laplacian_times, in_axes=(2, 2), out_axes=2)(pair_values, rows)
