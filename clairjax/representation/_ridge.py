"""One round instead of many: every client's ridge estimate, shrunk by what the others' tell, cut to rank k."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .. import _validate
from .._status import worst
from .._typing import ScalarLike
from ..kernels import gram, orthonormalize, right_basis
from ._flute import withheld
from ._linear import (
    HIGHEST,
    LinearClients,
    Representation,
    argument_status,
    grams,
    input_status,
    solve_positive,
    validate_linear,
)


STEPS_A_DECADE = 6
INTERPOLATING = 1e-4
# Clients' worth of weight on equal shrinkage in all directions, as a multiple of the number of features.
EVEN_SHARE = 2


class RidgeRepresentation(Representation):
    """A `Representation` with the `penalty` of the ridge estimates it was cut from, given or found."""

    penalty: Float[Array, ""]


def truncated_ridge(
    inputs: ArrayLike | Sequence[Any],
    targets: ArrayLike | Sequence[Any],
    rank: int,
    *,
    penalty: ScalarLike | None = None,
) -> RidgeRepresentation:
    """A shared representation in one round: each client's shrunk least squares, and the best rank-k matrix to them.

    Client i's ridge estimate is θ_i = (X_iᵀX_i/N + λI)⁻¹ X_iᵀy_i/N. With `penalty=None` λ minimises the generalised
    cross-validation error Σ_i RSS_i/(1 − df_i/N)², pooled over clients. These estimates then give the covariance of
    the clients' coefficients,

    S = (Σ_i E[θ_iθ_iᵀ | data] + ν τ² I)/(M + ν),    τ² = tr(Σ_i E[θ_iθ_iᵀ | data])/(M d),    ν = 2 d,

    one step of expectation-maximisation held back towards equal variances, and every client its posterior mean
    under N(0, S): ridge with a matrix for a penalty, so that each direction of each client is shrunk as its own data
    and the others' say. Of all rank-k matrices the truncated singular value decomposition of the posterior means is
    expected to be the closest to the truth.

    **Arguments:** `inputs` [M, N, d] and `targets` [M, N], float32 or float64, arrays, NumPy arrays or lists; N < d
    is allowed. `rank` (static): k ≤ min(d, M). `penalty`: λ > 0, on the scale of X_iᵀX_i/N; plain ridge and
    truncation with that λ. None: from the data, as above.

    **Returns:** `Representation` with an orthonormal basis, no history, and the `penalty`.

    **Raises:** `ValueError` naming the argument, and the client for non-finite values, outside a trace.

    **Source:** not in the FLUTE paper. Golub, Heath and Wahba (1979) for the criterion, Eckart and Young (1936) for
    the truncation. Each client reports its Gram matrix and moment once (its ridge estimate alone where `penalty` is
    given).

    **Cost:** M eigendecompositions of min(N, d)², one of min(M, d)², and M (d² min(N, d) + min(N, d)³)
    multiplications: about one hundredth of 2,000 rounds of `flute`. Inputs are taken to have one scale: the ridge is
    not invariant to the units of a feature. In float32 coefficients are right to about 1e-5.

    **When to choose something else:** `flute` or `fedrep` where clients must not report more than gradients.

    >>> import jax
    >>> from clairjax.data import LinearTasks
    >>> from clairjax.representation import truncated_ridge
    >>> problem = LinearTasks(clients=15, features=10, samples=200).generate(key=jax.random.key(0))
    >>> found = truncated_ridge(problem.inputs, problem.targets, 2)
    >>> found.basis.shape, found.heads.shape
    ((10, 2), (15, 2))
    """
    inputs, targets = validate_linear(inputs, targets, rank)
    if penalty is not None:
        _validate.positive(penalty, "penalty")
    return _truncated_ridge(inputs, targets, penalty, _validate.traced_in_range(positive=[penalty]), rank)


@partial(jax.jit, static_argnames="rank")
def _truncated_ridge(
    inputs: Array, targets: Array, penalty: ScalarLike | None, in_range: Bool[Array, ""] | bool, rank: int
) -> RidgeRepresentation:
    targets, unit = in_units(targets)
    spectra = Spectra.of(inputs, targets)
    if penalty is None:
        penalty = cross_validated(spectra)
        estimates = posterior(spectra, prior_covariance(spectra, penalty))
    else:
        penalty = jnp.asarray(penalty, inputs.dtype)
        estimates = ridge(spectra, penalty)
    status = worst(input_status(LinearClients.of(inputs, targets)), argument_status(in_range))
    basis, heads = truncate(estimates, rank)
    found = withheld(Representation(basis, unit * heads, None, status))
    return RidgeRepresentation(found.basis, found.heads, None, status, penalty)


def in_units(
    targets: Float[Array, "clients samples"],
) -> tuple[Float[Array, "clients samples"], Float[Array, ""]]:
    """Targets over the power of two next below the largest, and that power: their squares neither vanish nor overflow.

    Every digit stays as it is.
    """
    largest = jnp.max(jnp.abs(targets))
    _, exponent = jnp.frexp(jnp.where(largest > 0, largest, 1))
    unit = jnp.ldexp(jnp.ones_like(largest), exponent - 1)
    return targets / unit, unit


class Spectra(NamedTuple):
    """Each client's data, turned to m = min(samples, features) orthogonal rows s_j v_jᵀ with targets t_j."""

    squares: Float[Array, "clients m"]  # s_j²: eigenvalues of X_iᵀX_i/N
    vectors: Float[Array, "clients m features"]  # the rows v_jᵀ; zero where s_j is
    targets: Float[Array, "clients m"]
    rest: Float[Array, " clients"]  # ‖y_i‖²/N that no coefficients explain
    samples: int

    @classmethod
    def of(
        cls, inputs: Float[Array, "clients samples features"], targets: Float[Array, "clients samples"]
    ) -> "Spectra":
        clients = LinearClients.of(inputs, targets)
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
        return cls(jnp.where(seen, squares, 0), vectors, turned, rest, inputs.shape[1])


def ridge(spectra: Spectra, penalty: Float[Array, ""]) -> Float[Array, "clients features"]:
    """Each client's ridge estimate with one penalty for all."""
    filtered = spectra.targets * jnp.sqrt(spectra.squares) / (spectra.squares + penalty)
    return jnp.einsum("mj,mjd->md", filtered, spectra.vectors, precision=HIGHEST)


def residuals(
    spectra: Spectra, penalty: Float[Array, ""]
) -> tuple[Float[Array, " clients"], Float[Array, " clients"]]:
    """Each client's mean squared residual at a penalty, and the share of its samples that is not used up."""
    left = penalty / (spectra.squares + penalty)
    unused = spectra.samples - spectra.squares.shape[1] + jnp.sum(left, 1)
    return spectra.rest + jnp.sum((left * spectra.targets) ** 2, 1), unused / spectra.samples


def cross_validated(spectra: Spectra) -> Float[Array, ""]:
    """The penalty of least generalised cross-validation error, up to 10³ times the mean eigenvalue.

    From eps times it with more samples than features, where the estimate tends to least squares. Otherwise from 1e-4:
    it tends to interpolation, where the criterion is flat and rounding would choose.
    """

    def error(penalty: Float[Array, ""]) -> Float[Array, ""]:
        square, unused = residuals(spectra, penalty)
        return jnp.sum(square / unused**2)

    dtype = spectra.squares.dtype
    determined = spectra.samples > spectra.vectors.shape[2]
    lowest = np.log10(float(jnp.finfo(dtype).eps) if determined else INTERPOLATING)
    grid = np.logspace(lowest, 3, int((3 - lowest) * STEPS_A_DECADE))
    scale = jnp.sum(spectra.squares) / (spectra.vectors.shape[0] * spectra.vectors.shape[2])
    penalties = jnp.asarray(grid, dtype) * jnp.where(scale > 0, scale, 1)
    return penalties[jnp.argmin(jax.vmap(error)(penalties))]


def prior_covariance(spectra: Spectra, penalty: Float[Array, ""]) -> Float[Array, "features features"]:
    """S of `truncated_ridge` in units of the noise's variance, by one step from the ridge, S = I/(N λ)."""
    clients, size, features = spectra.vectors.shape
    estimates = ridge(spectra, penalty)
    square, unused = residuals(spectra, penalty)
    floor = jnp.finfo(square.dtype).eps * jnp.sum(spectra.rest + jnp.sum(spectra.targets**2, 1))
    variance = jnp.maximum(jnp.sum(square), floor) / jnp.sum(unused)
    variance = jnp.where(variance > 0, variance, 1)

    # Posterior covariances: 1/(N (s_j² + λ)) along v_j and 1/(N λ) across all of them.
    along = 1 / (spectra.squares + penalty)
    if size < features:
        along = along - 1 / penalty
    spread = jnp.einsum("mj,mjd,mje->de", along, spectra.vectors, spectra.vectors, precision=HIGHEST)
    eye = jnp.eye(features, dtype=square.dtype)
    if size < features:
        spread = spread + clients / penalty * eye
    total = gram(estimates) / variance + spread / spectra.samples
    even = EVEN_SHARE * features
    return (total + even * jnp.trace(total) / (clients * features) * eye) / (clients + even)


def posterior(spectra: Spectra, covariance: Float[Array, "features features"]) -> Float[Array, "clients features"]:
    """Each client's posterior mean under a prior covariance in units of the noise's variance."""
    rows = spectra.vectors * jnp.sqrt(spectra.squares)[..., None]
    shaped = jnp.einsum("mjd,de->mje", rows, covariance, precision=HIGHEST)
    inner = jnp.einsum("mje,mle->mjl", shaped, rows, precision=HIGHEST)
    inner = inner + jnp.eye(inner.shape[1], dtype=inner.dtype)[None] / spectra.samples
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
