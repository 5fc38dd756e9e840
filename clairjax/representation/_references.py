"""What the methods are to be compared with: each client alone, the best rank-k model, centralised least squares."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .. import _validate
from .._compile import compiled
from .._precision import HIGHEST
from .._status import Status, worst
from .._typing import ScalarLike
from ._data import ClientData, Counts, check_counts, check_rank, validate_linear, validate_truth
from ._flute import is_stationary, withheld
from ._linear import (
    LinearClients,
    Representation,
    argument_status,
    coefficients,
    input_status,
    least_squares_heads,
    mean_distance,
    solve_positive,
)
from ._ridge import Spectra, cross_validated, in_units, ridge, ridge_of_each, truncate


def local_least_squares(
    inputs: ArrayLike | Sequence[Any],
    targets: ArrayLike | Sequence[Any],
    *,
    counts: Counts | None = None,
) -> Float[Array, "clients features"]:
    """Each client's least squares coefficients from its own samples.

    **Args:**

    - `inputs` [M, N, d] and `targets` [M, N], float32 or float64, with N ≥ d.
    - `counts` [M], integers from d to N: client i's samples are its first `counts[i]`, and what stands beyond them is
      not looked at; None: all N.

    **Returns:** [M, d]. For a client whose inputs do not have full column rank finite, and one of many solutions.
    NaN for a client whose count is traced and out of range.

    **Raises:** `ValueError` naming the argument (fewer samples than features: `local_ridge` takes them), and the
    client for non-finite values, outside a trace.

    **Source:** no paper compares with it. **Cost:** M (N d² + d³).

    >>> import jax.numpy as jnp
    >>> from clairjax.representation import local_least_squares
    >>> local_least_squares(jnp.array([[[1.0], [1.0]]]), jnp.array([[2.0, 4.0]])).round(4).tolist()
    [[3.0]]
    """
    data = validate_linear(inputs, targets, counts=counts)
    _, samples, features = data.inputs.shape
    if samples < features:
        expected = f"at least as many as features = {features} for least squares (use local_ridge)"
        raise _validate.fail("samples", expected, samples)
    if counts is not None:
        check_counts(counts, data.targets.shape, features, "features = ")
    return _local_least_squares(data)


@compiled
def _local_least_squares(data: ClientData) -> Array:
    clients, features = LinearClients.of(*data), data.inputs.shape[2]
    estimates = solve_positive(clients.full_gram(), clients.moment)
    return jnp.where(data.enough(features)[:, None], estimates, jnp.nan)


def local_ridge(
    inputs: ArrayLike | Sequence[Any],
    targets: ArrayLike | Sequence[Any],
    *,
    penalty: ScalarLike | None = None,
    counts: Counts | None = None,
) -> Float[Array, "clients features"]:
    """Each client's ridge estimate, (X_iᵀX_i/N + λI)⁻¹ X_iᵀy_i/N, with one penalty for all clients.

    **Args:**

    - `inputs` [M, N, d] and `targets` [M, N], float32 or float64; N < d is allowed.
    - `penalty`: λ > 0; None minimises the generalised cross-validation error pooled over clients.
    - `counts` [M], integers from 1 to N: client i's samples are its first `counts[i]`, and what stands beyond them is
      not looked at; None: all N. A λ that is given is on each client's own scale, N_i for N. A λ that is found is on
      the scale of the mean count, as in `truncated_ridge`: a client with more samples is shrunk less. Every sample
      weighs the same in its choice.

    **Returns:** [M, d]; NaN for a traced penalty that is not positive and finite, or a traced count out of range.

    **Raises:** `ValueError` naming the argument, and the client for non-finite values, outside a trace.

    **Source:** no paper compares with it. Golub, Heath and Wahba (1979) for the criterion.

    **Cost:** M eigendecompositions of min(N, d)² and M N d min(N, d).

    >>> import jax.numpy as jnp
    >>> from clairjax.representation import local_ridge
    >>> local_ridge(jnp.array([[[1.0], [1.0]]]), jnp.array([[2.0, 4.0]]), penalty=0.5).round(4).tolist()
    [[2.0]]
    """
    data = validate_linear(inputs, targets, counts=counts)
    if penalty is not None:
        _validate.positive(penalty, "penalty")
    return _local_ridge(data, penalty)


@compiled
def _local_ridge(data: ClientData, penalty: ScalarLike | None) -> Array:
    in_range = _validate.traced_in_range(positive=[penalty], holds=[data.enough()])
    data, unit = in_units(data)
    spectra = Spectra.of(*data)
    if penalty is None:
        estimates = ridge(spectra, cross_validated(spectra))
    else:
        estimates = ridge_of_each(spectra, jnp.asarray(penalty, unit.dtype))
    return jnp.where(in_range, unit * estimates, jnp.nan)


def best_of_rank(truth: Float[Array, "clients features"], rank: int) -> Representation:
    """The rank-k model closest to the true coefficients: what no method can beat.

    **Args:**

    - `truth` [M, d], the true coefficients.
    - `rank` (static), at most min(M, d).

    **Returns:** `Representation` with an orthonormal basis, its one error the floor, (1/M) Σ_i ‖B w_i − φ_i‖.

    **Source:** FLUTE, (3); Eckart and Young (1936). It is the closest in the Frobenius norm, the root of the
    sum of squares over clients. The mean of norms that the figures plot is not minimised exactly.

    **Cost:** one eigendecomposition of min(M, d)².

    >>> import jax.numpy as jnp
    >>> from clairjax.representation import best_of_rank
    >>> best_of_rank(jnp.diag(jnp.array([3.0, 1.0])), 1).errors.tolist()
    [0.5]
    """
    clients, features = truth.shape
    check_rank(rank, clients, features)
    return _best_of_rank(truth, rank)


@partial(compiled, static_argnames=("rank",))
def _best_of_rank(truth: Array, rank: int) -> Representation:
    basis, heads = truncate(truth, rank)
    error = mean_distance(coefficients(basis, heads), truth)
    finite = jnp.isfinite(jnp.sum(truth**2))
    status = Status.where(finite, Status.converged, Status.nonfinite_input)
    return withheld(Representation(basis, heads, error[None], status))


def alternating_least_squares(
    inputs: ArrayLike | Sequence[Any],
    targets: ArrayLike | Sequence[Any],
    rank: int,
    *,
    rounds: int = 300,
    true_coefficients: ArrayLike | Sequence[Any] | None = None,
    counts: Counts | None = None,
) -> Representation:
    """Centralised least squares over rank-k models, Σ_i ‖X_i B w_i − y_i‖², by exact alternation between B and w_i.

    It is what `flute` and `fedrep` both descend to where all clients have as many samples. It starts from the
    truncation of the clients' ridge estimates, and no round raises the squared error.

    **Args:**

    - `inputs` [M, N, d] and `targets` [M, N], float32 or float64, N ≥ k for heads that are unique.
    - `rank` (static): k ≤ min(d, M).
    - `rounds` (static).
    - `true_coefficients` [M, d], for `errors`.
    - `counts` [M], integers from 1 to N: client i's samples are its first `counts[i]`, and what stands beyond them is
      not looked at; None: all N. Every sample weighs the same, so a client weighs as much as it has samples.

    **Returns:** `Representation`; its basis is not orthonormal. The status is `converged` where a step of `fedrep`
    would hardly move B w_i, otherwise `max_steps_reached`.

    **Raises:** `ValueError` naming the argument, and the client for non-finite values, outside a trace.

    **Source:** FLUTE, (2), the empirical risk; no paper compares with it. With d k > M N unknowns in B the solution
    is not unique. The problem is not convex: the end is a stationary point.

    **Cost:** a round M d² k² + (d k)³ multiplications and (d k)² memory; the data's Gram matrices are formed.

    >>> import jax
    >>> from clairjax.data import LinearTasks
    >>> from clairjax.representation import alternating_least_squares
    >>> problem = LinearTasks(clients=15, features=10, samples=200).generate(key=jax.random.key(0))
    >>> alternating_least_squares(problem.inputs, problem.targets, 2).basis.shape
    (10, 2)
    """
    data = validate_linear(inputs, targets, rank, counts)
    truth = validate_truth(true_coefficients, data.inputs)
    _validate.at_least(rounds, "rounds", 1)
    return _alternating(data, truth, rank, rounds)


@partial(compiled, static_argnames=("rank", "rounds"))
def _alternating(data: ClientData, truth: Array | None, rank: int, rounds: int) -> Representation:
    clients = LinearClients.of(*data).weighted(data.shares())
    table = clients.full_gram()
    spectra = Spectra.of(*data)
    basis, _ = truncate(ridge(spectra, cross_validated(spectra)), rank)

    def body(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array | None]:
        basis = least_squares_basis(table, clients.moment, state[1])
        state = basis, least_squares_heads(clients, basis)
        return state, None if truth is None else mean_distance(coefficients(*state), truth)

    start = basis, least_squares_heads(clients, basis)
    (basis, heads), errors = jax.lax.scan(body, start, None, length=rounds)
    found = coefficients(basis, heads)
    down = jnp.matmul(clients.gradient(found).T, heads, precision=HIGHEST)
    stationary = is_stationary(clients, found, coefficients(down, heads))
    ended = Status.where(stationary, Status.converged, Status.max_steps_reached)
    status = worst(argument_status(data.enough().all()), worst(input_status(clients), ended))
    return withheld(Representation(basis, heads, errors, status))


def least_squares_basis(
    table: Float[Array, "clients features features"],
    moment: Float[Array, "clients features"],
    heads: Float[Array, "clients rank"],
) -> Float[Array, "features rank"]:
    """The basis of least squared error with heads that are given: d · k equations."""
    features, rank = table.shape[1], heads.shape[1]
    normal = jnp.einsum("mde,mj,mk->djek", table, heads, heads, precision=HIGHEST)
    normal = normal.reshape(features * rank, features * rank)
    right = jnp.einsum("md,mj->dj", moment, heads, precision=HIGHEST).reshape(-1)
    return solve_positive(normal[None], right[None])[0].reshape(features, rank)
