"""One round instead of many: every client's ridge estimate, shrunk by what the others' tell, cut to rank k."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .. import _validate
from .._compile import compiled
from .._precision import HIGHEST
from .._status import Status, worst
from .._typing import ScalarLike
from ..kernels import gram, orthonormalize, right_basis
from ._data import ClientData, Counts, validate_linear
from ._flute import withheld
from ._linear import (
    AbstractRepresentation,
    LinearClients,
    Representation,
    argument_status,
    grams,
    input_status,
    solve_positive,
)


STEPS_A_DECADE = 6
INTERPOLATING = 1e-4
# Clients' worth of weight on equal shrinkage in all directions, as a multiple of the number of features.
EVEN_SHARE = 2


class RidgeRepresentation(AbstractRepresentation):
    """A shared basis and a head for each client, cut from their ridge estimates.

    - `basis` [features, rank], orthonormal, and `heads` [clients, rank];
    - `status`, as of `Representation`;
    - `penalty`: of the ridge estimates, given or found.
    """

    basis: Float[Array, "features rank"]
    heads: Float[Array, "clients rank"]
    status: Status
    penalty: Float[Array, ""]


def truncated_ridge(
    inputs: ArrayLike | Sequence[Any],
    targets: ArrayLike | Sequence[Any],
    rank: int,
    *,
    penalty: ScalarLike | None = None,
    counts: Counts | None = None,
) -> RidgeRepresentation:
    """A shared representation in one round: each client's shrunk least squares, and the best rank-k matrix to them.

    Client i's ridge estimate is θ_i = (X_iᵀX_i/N + λI)⁻¹ X_iᵀy_i/N. With `penalty=None` λ minimises the generalised
    cross-validation error Σ_i RSS_i/(1 − df_i/N)², pooled over clients. These estimates then give the covariance of
    the clients' coefficients,

    S = (Σ_i E[θ_iθ_iᵀ | data] + ν τ² I)/(M + ν),    τ² = tr(Σ_i E[θ_iθ_iᵀ | data])/(M d),    ν = 2 d,

    one step of expectation-maximisation held back towards equal variances. They give every client its posterior mean
    under N(0, S), which is ridge with a matrix for a penalty. So each direction of each client is shrunk as its own
    data and the others' say. Of all rank-k matrices the truncated singular value decomposition of the posterior means
    is expected to be the closest to the truth.

    **Args:**

    - `inputs` [M, N, d] and `targets` [M, N], float32 or float64, arrays, NumPy arrays or lists; N < d is allowed.
    - `rank` (static): k ≤ min(d, M).
    - `penalty`: λ > 0, on the scale of X_iᵀX_i/N; plain ridge and truncation with that λ. None: from the data, as
      above.
    - `counts` [M], integers from 1 to N: client i's samples are its first `counts[i]`, and what stands beyond them is
      not looked at; None: all N.

    **Weights with `counts`:** N_i takes the place of N, but for a λ that is found. That λ belongs to
    (X_iᵀX_i/N̄ + λI)⁻¹ X_iᵀy_i/N̄ with N̄ the mean count: one prior for all, so a client with more samples is shrunk
    less. In the choice of λ and in the noise's variance every sample weighs the same. In S and in the truncation every
    client weighs the same.

    **Returns:** `RidgeRepresentation`.

    **Raises:** `ValueError` naming the argument, and the client for non-finite values, outside a trace.

    **Source:** not in the FLUTE paper. Golub, Heath and Wahba (1979) for the criterion, Eckart and Young (1936) for
    the truncation. Each client reports its Gram matrix and moment once (its ridge estimate alone where `penalty` is
    given).

    **Cost:** M eigendecompositions of min(N, d)², one of min(M, d)², and M (d² min(N, d) + min(N, d)³)
    multiplications: about one hundredth of 2,000 rounds of `flute`. Inputs are taken to have one scale: the ridge is
    not invariant to the units of a feature. In float32 coefficients are right to about 1e-5.

    **When to choose something else:** `local_ridge` where the models share no subspace of rank k. What rank k leaves
    out stays in the error, however many clients there are. A small k can pay only where it leaves out less than a
    client's own error: `clairjax reproduce shared-or-local`. k = min(d, M) leaves nothing out; the clients then share
    S alone. `flute` or `fedrep` where clients must not report more than gradients.

    >>> import jax
    >>> from clairjax.data import LinearTasks
    >>> from clairjax.representation import truncated_ridge
    >>> problem = LinearTasks(clients=15, features=10, samples=200).generate(key=jax.random.key(0))
    >>> found = truncated_ridge(problem.inputs, problem.targets, 2)
    >>> found.basis.shape, found.heads.shape
    ((10, 2), (15, 2))
    """
    data = validate_linear(inputs, targets, rank, counts)
    if penalty is not None:
        _validate.positive(penalty, "penalty")
    return _truncated_ridge(data, penalty, rank)


@partial(compiled, static_argnames=("rank",))
def _truncated_ridge(data: ClientData, penalty: ScalarLike | None, rank: int) -> RidgeRepresentation:
    in_range = _validate.traced_in_range(positive=[penalty], holds=[data.enough()])
    data, unit = in_units(data)
    spectra = Spectra.of(*data)
    if penalty is None:
        penalty = cross_validated(spectra)
        estimates = posterior(spectra, prior_covariance(spectra, penalty))
    else:
        penalty = jnp.asarray(penalty, unit.dtype)
        estimates = ridge_of_each(spectra, penalty)
    status = worst(argument_status(in_range), input_status(LinearClients.of(*data)))
    basis, heads = truncate(estimates, rank)
    found = withheld(Representation(basis, unit * heads, None, status))
    return RidgeRepresentation(found.basis, found.heads, status, penalty)


def in_units(data: ClientData) -> tuple[ClientData, Float[Array, ""]]:
    """Targets over the power of two next below the largest, and that power: their squares neither vanish nor overflow.

    Every digit stays as it is.
    """
    largest = jnp.max(jnp.abs(data.targets))
    _, exponent = jnp.frexp(jnp.where(largest > 0, largest, 1))
    unit = jnp.ldexp(jnp.ones_like(largest), exponent - 1)
    return data._replace(targets=data.targets / unit), unit


class Spectra(NamedTuple):
    """Each client's data, turned to m = min(samples, features) orthogonal rows s_j v_jᵀ with targets t_j.

    All are divided by one number, the mean number of samples N̄: then a penalty is one prior for all clients.
    """

    squares: Float[Array, "clients m"]  # s_j²: eigenvalues of X_iᵀX_i/N̄
    vectors: Float[Array, "clients m features"]  # the rows v_jᵀ; zero where s_j is
    targets: Float[Array, "clients m"]
    rest: Float[Array, " clients"]  # ‖y_i‖²/N̄ that no coefficients explain
    numbers: Float[Array, " clients_or_1"]  # N_i
    shares: Float[Array, " clients_or_1"]  # N_i/N̄

    @classmethod
    def of(
        cls,
        inputs: Float[Array, "clients samples features"],
        targets: Float[Array, "clients samples"],
        counts: Int[Array, " clients"] | None = None,
    ) -> "Spectra":
        data = ClientData(inputs, targets, counts)
        clients = LinearClients.of(*data).weighted(data.shares())
        if clients.inputs is not None:
            squares, left = jnp.linalg.eigh(grams(jnp.swapaxes(clients.inputs, 1, 2)))
            rows = jnp.einsum("mnj,mnd->mjd", left, clients.inputs, precision=HIGHEST)
        else:
            squares, right = jnp.linalg.eigh(clients.full_gram())
            rows = jnp.swapaxes(right, 1, 2) * jnp.sqrt(jnp.maximum(squares, 0))[..., None]
        # Below rounding a direction carries no information, and is left out as if it were not there.
        seen = squares > squares.shape[1] * jnp.finfo(inputs.dtype).eps * squares[:, -1:]
        inverse = jnp.where(seen, 1 / jnp.sqrt(jnp.where(seen, squares, 1)), 0)
        vectors = rows * inverse[..., None]
        turned = jnp.einsum("mjd,md->mj", vectors, clients.moment, precision=HIGHEST) * inverse
        rest = jnp.maximum(clients.square - jnp.sum(turned**2, 1), 0)
        return cls(jnp.where(seen, squares, 0), vectors, turned, rest, data.numbers(), data.shares())

    @property
    def mean_number(self) -> Float[Array, ""]:
        """N̄."""
        return self.numbers[0] / self.shares[0]


def ridge(spectra: Spectra, penalty: Float[Array, "*each"]) -> Float[Array, "clients features"]:
    """Each client's ridge estimate, (X_iᵀX_i/N̄ + λI)⁻¹ X_iᵀy_i/N̄, with one λ or [clients, 1]."""
    filtered = spectra.targets * jnp.sqrt(spectra.squares) / (spectra.squares + penalty)
    return jnp.einsum("mj,mjd->md", filtered, spectra.vectors, precision=HIGHEST)


def ridge_of_each(spectra: Spectra, penalty: Float[Array, ""]) -> Float[Array, "clients features"]:
    """(X_iᵀX_i/N_i + λI)⁻¹ X_iᵀy_i/N_i: one λ on each client's own scale."""
    return ridge(spectra, penalty * spectra.shares[:, None])


def residuals(
    spectra: Spectra, penalty: Float[Array, ""]
) -> tuple[Float[Array, " clients"], Float[Array, " clients"]]:
    """Each client's squared residual over N̄ at a penalty, and the share of its samples that is not used up."""
    seen = spectra.squares > 0
    left = penalty / (spectra.squares + penalty)
    unused = spectra.numbers - jnp.sum(seen, 1).astype(left.dtype) + jnp.sum(left, 1, where=seen)
    return spectra.rest + jnp.sum((left * spectra.targets) ** 2, 1), unused / spectra.numbers


def cross_validated(spectra: Spectra) -> Float[Array, ""]:
    """The penalty of least generalised cross-validation error, up to 10³ times the mean eigenvalue.

    From eps times it where every client has more samples than features and the estimate tends to least squares.
    Otherwise from 1e-4: it tends to interpolation, where the criterion is flat and rounding would choose.
    """

    def error(penalty: Float[Array, ""]) -> Float[Array, ""]:
        square, unused = residuals(spectra, penalty)
        return jnp.sum(square / unused**2)

    dtype = spectra.squares.dtype
    long, short = _grid(float(jnp.finfo(dtype).eps)), _grid(INTERPOLATING)
    short = np.pad(short, (0, len(long) - len(short)), "edge")
    determined = jnp.all(spectra.numbers > spectra.vectors.shape[2])
    grid = jnp.where(determined, jnp.asarray(long, dtype), jnp.asarray(short, dtype))
    scale = jnp.sum(spectra.squares) / (spectra.vectors.shape[0] * spectra.vectors.shape[2])
    penalties = grid * jnp.where(scale > 0, scale, 1)
    return penalties[jnp.argmin(jax.vmap(error)(penalties))]


def _grid(lowest: float) -> np.ndarray:
    decades = 3 - np.log10(lowest)
    return np.logspace(3 - decades, 3, int(decades * STEPS_A_DECADE))


def prior_covariance(spectra: Spectra, penalty: Float[Array, ""]) -> Float[Array, "features features"]:
    """S of `truncated_ridge` in units of the noise's variance, by one step from the ridge, S = I/(N̄ λ)."""
    clients, _, features = spectra.vectors.shape
    estimates = ridge(spectra, penalty)
    square, unused = residuals(spectra, penalty)
    floor = jnp.finfo(square.dtype).eps * jnp.sum(spectra.rest + jnp.sum(spectra.targets**2, 1))
    variance = jnp.maximum(jnp.sum(square), floor) / jnp.sum(unused * spectra.shares)
    variance = jnp.where(variance > 0, variance, 1)

    # Posterior covariances: 1/(N̄ (s_j² + λ)) along v_j, and 1/(N̄ λ) across all v_j of a client whose samples do not
    # span all features.
    short = (jnp.sum(spectra.squares > 0, 1) < features).astype(square.dtype)
    along = 1 / (spectra.squares + penalty) - short[:, None] / penalty
    eye = jnp.eye(features, dtype=square.dtype)
    spread = jnp.einsum("mj,mjd,mje->de", along, spectra.vectors, spectra.vectors, precision=HIGHEST)
    spread = spread + jnp.sum(short) / penalty * eye
    total = gram(estimates) / variance + spread / spectra.mean_number
    even = EVEN_SHARE * features
    return (total + even * jnp.trace(total) / (clients * features) * eye) / (clients + even)


def posterior(spectra: Spectra, covariance: Float[Array, "features features"]) -> Float[Array, "clients features"]:
    """Each client's posterior mean under a prior covariance in units of the noise's variance."""
    rows = spectra.vectors * jnp.sqrt(spectra.squares)[..., None]
    shaped = jnp.einsum("mjd,de->mje", rows, covariance, precision=HIGHEST)
    inner = jnp.einsum("mje,mle->mjl", shaped, rows, precision=HIGHEST)
    inner = inner + jnp.eye(inner.shape[1], dtype=inner.dtype)[None] / spectra.mean_number
    return jnp.einsum("mj,mjd->md", solve_positive(inner, spectra.targets), shaped, precision=HIGHEST)


def truncate(
    estimates: Float[Array, "clients features"], rank: int
) -> tuple[Float[Array, "features rank"], Float[Array, "clients rank"]]:
    """The closest matrix of rank k: an orthonormal basis of its rows, and the heads."""
    count, features = estimates.shape
    if features <= count:
        basis, _ = right_basis(gram(estimates), rank)
    else:
        left, _ = right_basis(gram(estimates.T), rank)
        basis = orthonormalize(jnp.matmul(estimates.T, left, precision=HIGHEST))
    return basis, jnp.matmul(estimates, basis, precision=HIGHEST)
