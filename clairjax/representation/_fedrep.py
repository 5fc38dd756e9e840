"""FedRep for the linear model: exact heads, a gradient step on B, and QR."""

from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .. import _validate
from .._compile import compiled
from .._precision import HIGHEST
from .._status import Status, worst
from .._typing import Key, ScalarLike
from ..kernels import orthonormalize
from ._data import ClientData, Counts, validate_linear, validate_truth
from ._flute import is_stationary, withheld
from ._initialise import largest_moment, orthonormal_start
from ._linear import (
    LinearClients,
    Representation,
    argument_status,
    coefficients,
    input_status,
    least_squares_heads,
    mean_distance,
)


def fedrep(
    inputs: ArrayLike | Sequence[Any],
    targets: ArrayLike | Sequence[Any],
    rank: int,
    *,
    key: Key,
    rounds: int = 2000,
    step_size: ScalarLike | None = None,
    init: Literal["spectral", "random"] = "spectral",
    true_coefficients: ArrayLike | Sequence[Any] | None = None,
    counts: Counts | None = None,
) -> Representation:
    """Federated learning of a shared orthonormal basis with heads that are exact in every round: FedRep, linear.

    Client i models y = xᵀ B w_i, with w_i its least squares head in the basis B. Let g_i be the gradient of its half
    mean squared error in B w_i. A round is B ← QR(B − η (1/M) Σ_i g_i w_iᵀ), and the heads of the new basis.

    **Args:**

    - `inputs` [M, N, d] and `targets` [M, N], float32 or float64, arrays, NumPy arrays or lists; N ≥ k for heads that
      are unique.
    - `rank` (static): k ≤ min(d, M). `rounds` (static).
    - `step_size`: η; None takes M/(4 λ₁²) with λ₁ the largest singular value of the matrix of moments X_iᵀy_i/N.
    - `init` (static): `"spectral"` starts from `moment_basis`, which clients can report. `"random"` starts from the
      span that `flute` starts from with the same key.
    - `true_coefficients` [M, d], for the history `errors`.
    - `counts` [M], integers from 1 to N: client i's samples are its first `counts[i]`, and the others are not looked
      at. None: all N. The gradient g_i is a mean over the client's own samples: every client weighs the same in a
      round. In the spectral start every sample weighs the same.

    **Returns:** `Representation` with an orthonormal basis. `errors[t]` is (1/M) Σ_i ‖B w_i − φ_i‖ after round
    t + 1. The status is `converged` where a further round would hardly move B w_i, otherwise `max_steps_reached`:
    more rounds, or a smaller step where the iterates oscillate. They cannot grow.

    **Raises:** `ValueError` naming the argument, and the client for non-finite values, outside a trace.

    **Source:** Collins et al. (2021), Algorithm 1 and Theorem 1, whose step is at most 1/(4 σ²) with σ² = λ₁²/M; as
    compared with in FLUTE, section 7.1. Departs from print: all clients take part in every round, on the same
    samples. The gradient is the mean over clients; for the sum that FLUTE uses pass M times the step. On C.1 the sum
    at the step 0.03 oscillates and ends 5 to 10 % above FLUTE. The mean ends within 8 % of it.

    **Cost:** a round M d k (d + k) multiplications where N > d (Gram matrices), M N d k elsewhere, M Cholesky
    factors of k × k and one QR of d × k. In float32 coefficients are right to about 1e-5.

    >>> import jax
    >>> from clairjax.data import LinearTasks
    >>> from clairjax.representation import fedrep
    >>> problem = LinearTasks(clients=15, features=10, samples=200).generate(key=jax.random.key(0))
    >>> found = fedrep(problem.inputs, problem.targets, 2, key=jax.random.key(1))
    >>> abs(found.basis.T @ found.basis).round(3).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    data = validate_linear(inputs, targets, rank, counts)
    truth = validate_truth(true_coefficients, data.inputs)
    _validate.at_least(rounds, "rounds", 1)
    if step_size is not None:
        _validate.positive(step_size, "step_size")
    _validate.choice(init, "init", ("spectral", "random"))
    return _fedrep(data, key, _Options(step_size, truth, rank, rounds, init))


class _Options(eqx.Module):
    """What `fedrep` was asked for; numbers and arrays are traced."""

    step_size: ScalarLike | None
    truth: Float[Array, "clients features"] | None
    rank: int = eqx.field(static=True)
    rounds: int = eqx.field(static=True)
    init: Literal["spectral", "random"] = eqx.field(static=True)


@compiled
def _fedrep(data: ClientData, key: Key, options: _Options) -> Representation:
    clients, step_size = LinearClients.of(*data), options.step_size
    start = orthonormal_start(data.inputs, data.targets, options.rank, options.init, key=key)
    step = jnp.asarray(largest_safe_step(clients) if step_size is None else step_size, data.inputs.dtype)
    (basis, heads), errors = alternate(clients, step, start, options.rounds, options.truth)
    found = coefficients(basis, heads)
    # The heads being exact, the coefficients move along the gradient in B alone.
    stationary = is_stationary(clients, found, coefficients(basis_gradient(clients, basis, heads), heads))
    ended = Status.where(stationary, Status.converged, Status.max_steps_reached)
    in_range = _validate.traced_in_range(positive=[step_size], holds=[data.enough()])
    status = worst(argument_status(in_range), worst(input_status(clients), ended))
    return withheld(Representation(basis, heads, errors, status))


def largest_safe_step(clients: LinearClients) -> Float[Array, ""]:
    """Theorem 1's 1/(4 σ²) of Collins et al., σ² = λ₁²/M."""
    return clients.moment.shape[0] / 4 / largest_moment(clients) ** 2


def alternate(
    clients: LinearClients,
    step: Float[Array, ""],
    start: Float[Array, "features rank"],
    rounds: int,
    truth: Float[Array, "clients features"] | None,
) -> tuple[tuple[Float[Array, "features rank"], Float[Array, "clients rank"]], Float[Array, " rounds"] | None]:
    """`rounds` rounds of step, QR and heads, with the errors after each where there is a truth."""

    def body(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array | None]:
        basis = orthonormalize(state[0] - step * basis_gradient(clients, *state))
        state = basis, least_squares_heads(clients, basis)
        return state, None if truth is None else mean_distance(coefficients(*state), truth)

    return jax.lax.scan(body, (start, least_squares_heads(clients, start)), None, length=rounds)


def basis_gradient(
    clients: LinearClients, basis: Float[Array, "features rank"], heads: Float[Array, "clients rank"]
) -> Float[Array, "features rank"]:
    """The mean over clients of g_i w_iᵀ."""
    gradient = clients.gradient(coefficients(basis, heads))
    return jnp.matmul(gradient.T, heads, precision=HIGHEST) / heads.shape[0]
