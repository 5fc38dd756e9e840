"""FLUTE for the linear model: gradient descent on B and the heads together, balanced by the server."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from .. import _validate
from .._compile import compiled
from .._precision import HIGHEST
from .._status import Status, worst
from .._typing import Key, ScalarLike
from ._data import ClientData, Counts, validate_linear, validate_truth
from ._initialise import largest_moment, random_start
from ._linear import (
    LinearClients,
    Representation,
    argument_status,
    coefficients,
    input_status,
    mean_distance,
)


# Theorem 5.1's bound Δ²/(228 λ1³), at the largest gap there can be, Δ = 2 λ1, is 1/(57 λ1); this many times that.
PRACTICAL_MULTIPLE = 17.1
# λ1 of C.1's model, where the inputs have unit variance: there the start is that of the paper's scale, 1/(10 d).
TYPICAL_MOMENT = 10.0
# A run has converged when a round of unit step would move the coefficients by this share of λ1 times themselves.
STATIONARY = 1e-4


def flute(
    inputs: ArrayLike | Sequence[Any],
    targets: ArrayLike | Sequence[Any],
    rank: int,
    *,
    key: Key,
    rounds: int = 2000,
    step_size: ScalarLike | None = None,
    gammas: tuple[ScalarLike, ScalarLike] = (1 / 4, 1 / 8),
    init_scale: ScalarLike | None = None,
    loss_scale: Literal["half", "printed"] = "half",
    true_coefficients: ArrayLike | Sequence[Any] | None = None,
    counts: Counts | None = None,
) -> Representation:
    """Federated learning of a representation that is too small for the clients: FLUTE, linear.

    Client i models y = xᵀ B w_i. With g_i the gradient of its half mean squared error in B w_i, a round is

    B ← B − η Σ_i g_i w_iᵀ + η (2γ₁ B WWᵀ − 4γ₂ B BᵀB),    w_i ← w_i − η Bᵀg_i + η (2γ₁ BᵀB w_i − 4γ₂ WWᵀ w_i),

    from small normal B and W. The server's terms keep BᵀB and WWᵀ equal; with γ₁ < 2γ₂ they shrink as well: the
    singular values of BW tend to λ_i/(1 + 2(2γ₂ − γ₁)/f), f = 1 for `loss_scale="half"` and 2 for `"printed"`.

    **Args:**

    - `inputs` [M, N, d] and `targets` [M, N], float32 or float64, arrays, NumPy arrays or lists.
    - `rank` (static): k ≤ min(d, M). `rounds` (static).
    - `step_size`: η; None takes 0.3/λ₁ with λ₁ the largest singular value of the matrix of moments X_iᵀy_i/N. It is
      divided by 4γ₂/v where the mean square v of the inputs is smaller than that.
    - `gammas`: (γ₁, γ₂), γ₁ ≤ 2γ₂, for inputs of unit variance. For others multiply both by v, or the server's terms
      are too strong (small v: slow) or too weak.
    - `init_scale`: α; None means √(λ₁/(10 v))/(10 d), so that B and W start in proportion to where they end at any
      scale of the data. On C.1 that is 1/(10 d) but for the noise in λ₁.
    - `loss_scale` (static): `"half"` is the half-squared loss, `"printed"` the squared loss.
    - `true_coefficients` [M, d], for the history `errors`.
    - `counts` [M], integers from 1 to N: client i's samples are its first `counts[i]`, and the others are not looked
      at. None: all N. The gradient g_i is a mean over the client's own samples: every client weighs the same.

    **Returns:** `Representation`. `errors[t]` is (1/M) Σ_i ‖B w_i − φ_i‖ after round t + 1. Targets that are all zero
    give zero. The status is

    - `converged` where a further round would hardly move B w_i;
    - `max_steps_reached` where it would: take more rounds, or a smaller step where the iterates oscillate;
    - `diverged` where the iterates grew: then every array holds NaN.

    **Raises:** `ValueError` naming the argument, and the client for non-finite values, outside a trace.

    **Source:** FLUTE, Algorithm 1, (5)-(6), in the convention of A.1. Departs from print: the loss of (4) would
    give the gradient a factor 2, which is `loss_scale="printed"`. The clients' gradients of B are summed, as in (5).
    The default step is 17.1 times Theorem 5.1's bound Δ²/(228 λ₁³) at the largest gap there can be, Δ = 2λ₁. With its
    true Δ the bound is 600 (k = 2) to 35,000 times (k = 8) smaller on C.1, and takes as many times more rounds.

    **Cost:** a round M d (d + 4k) multiplications where N > d (Gram matrices), M d (2N + 4k) elsewhere. In float32
    coefficients are right to about 1e-5.

    **When to choose something else:** where it is the error that counts, `truncated_ridge`. FLUTE's limit minimises
    the empirical risk over rank-k models. The components that rank k leaves out then act as noise on few samples. So
    one round of `truncated_ridge` is closer to the truth than 2,000 rounds of this: see the results page. Where the
    truth is not of rank k, `local_ridge` may be closer than both. FLUTE needs no client's Gram matrix, only gradients.

    >>> import jax
    >>> from clairjax.data import LinearTasks
    >>> from clairjax.representation import flute
    >>> problem = LinearTasks(clients=15, features=10, samples=200).generate(key=jax.random.key(0))
    >>> found = flute(
    ...     problem.inputs, problem.targets, 2, key=jax.random.key(1), true_coefficients=problem.truth
    ... )
    >>> found.basis.shape, found.heads.shape, found.errors.shape
    ((10, 2), (15, 2), (2000,))
    """
    data = validate_linear(inputs, targets, rank, counts)
    truth = validate_truth(true_coefficients, data.inputs)
    _validate.at_least(rounds, "rounds", 1)
    for value, name in ((step_size, "step_size"), (init_scale, "init_scale")):
        if value is not None:
            _validate.positive(value, name)
    _validate.choice(loss_scale, "loss_scale", ("half", "printed"))
    check_gammas(gammas)
    return _flute(data, key, _Options(step_size, gammas, init_scale, truth, rank, rounds, loss_scale))


def check_gammas(gammas: tuple[ScalarLike, ScalarLike]) -> None:
    try:
        first, second = gammas
    except (TypeError, ValueError):
        raise _validate.fail("gammas", "a pair of numbers (γ1, γ2)", gammas) from None
    for gamma in (first, second):
        _validate.one_number(gamma, "gammas: each")
    if not (_validate.concrete(first) and _validate.concrete(second)):
        return
    if not (float(second) >= 0 and -float("inf") < float(first) <= 2 * float(second) < float("inf")):
        expected = "finite (γ1, γ2) with γ2 ≥ 0 and γ1 ≤ 2 γ2 (above, BW grows without bound)"
        raise _validate.fail("gammas", expected, tuple(gammas))


class _Options(eqx.Module):
    """What `flute` was asked for; numbers and arrays are traced."""

    step_size: ScalarLike | None
    gammas: tuple[ScalarLike, ScalarLike]
    init_scale: ScalarLike | None
    truth: Float[Array, "clients features"] | None
    rank: int = eqx.field(static=True)
    rounds: int = eqx.field(static=True)
    loss_scale: str = eqx.field(static=True)

    def in_range(self, data: ClientData) -> Bool[Array, ""] | bool:
        first, second = (jnp.asarray(gamma, data.inputs.dtype) for gamma in self.gammas)
        balanced = jnp.isfinite(first) & jnp.isfinite(second) & (second >= 0) & (first <= 2 * second)
        positive = [self.step_size, self.init_scale]
        return _validate.traced_in_range(positive=positive, holds=[balanced, data.enough()])


class Rates(NamedTuple):
    step: Float[Array, ""]  # η
    loss: Float[Array, ""]  # f: the gradient is f times that of the half-squared loss
    grow: Float[Array, ""]  # 2γ1
    shrink: Float[Array, ""]  # 4γ2


@compiled
def _flute(data: ClientData, key: Key, options: _Options) -> Representation:
    clients, dtype = LinearClients.of(*data), data.inputs.dtype
    first, second = (jnp.asarray(gamma, dtype) for gamma in options.gammas)
    factor = jnp.asarray(2 if options.loss_scale == "printed" else 1, dtype)
    steepest = jnp.maximum(factor, 4 * second / mean_square(clients))
    step = practical_step(clients) / steepest if options.step_size is None else options.step_size
    rates = Rates(jnp.asarray(step, dtype), factor, 2 * first, 4 * second)
    scale = practical_scale(clients) if options.init_scale is None else options.init_scale
    number, features = clients.moment.shape
    start = random_start(number, features, options.rank, scale, key=key, dtype=dtype)
    (basis, heads), errors = descend(clients, rates, start, options.rounds, options.truth)
    ended = worst(input_status(clients), outcome(clients, start, (basis, heads), rates))
    status = worst(argument_status(options.in_range(data)), ended)
    return withheld(Representation(basis, heads, errors, status))


def practical_step(clients: LinearClients) -> Float[Array, ""]:
    """0.3/λ₁; see `PRACTICAL_MULTIPLE`."""
    return PRACTICAL_MULTIPLE * 4 / 228 / largest_moment(clients)


def practical_scale(clients: LinearClients) -> Float[Array, ""]:
    """1/(10 d) on C.1's model, and following √(σ₁(BW)): like it, it scales as the root of targets over inputs."""
    largest = jnp.where(jnp.any(clients.moment != 0), largest_moment(clients), 0)
    return jnp.sqrt(largest / (TYPICAL_MOMENT * mean_square(clients))) / (10 * clients.moment.shape[1])


def mean_square(clients: LinearClients) -> Float[Array, ""]:
    """Of the inputs; 1 where all are zero."""
    if clients.gram is not None:
        total = jnp.sum(jnp.trace(clients.gram, axis1=1, axis2=2))
    else:
        total = jnp.sum(cast(Array, clients.inputs) ** 2)
    return jnp.where(total > 0, total / clients.moment.size, 1)


def descend(
    clients: LinearClients,
    rates: Rates,
    start: tuple[Float[Array, "features rank"], Float[Array, "clients rank"]],
    rounds: int,
    truth: Float[Array, "clients features"] | None,
) -> tuple[tuple[Float[Array, "features rank"], Float[Array, "clients rank"]], Float[Array, " rounds"] | None]:
    """`rounds` rounds of (5)-(6), with the errors after each where there is a truth."""

    def body(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array | None]:
        basis, heads = state
        down_basis, down_heads = directions(clients, basis, heads, rates)
        state = basis - rates.step * down_basis, heads - rates.step * down_heads
        return state, None if truth is None else mean_distance(coefficients(*state), truth)

    return jax.lax.scan(body, start, None, length=rounds)


@jax.named_scope("clairjax.flute_directions")
def directions(
    clients: LinearClients, basis: Float[Array, "features rank"], heads: Float[Array, "clients rank"], rates: Rates
) -> tuple[Float[Array, "features rank"], Float[Array, "clients rank"]]:
    """Gradients in B and W of the clients' losses and the server's terms.

    The clients' rows [g_i, w_i] go into two products: small ones are many to a round, and each costs its start.
    """
    product = partial(jnp.matmul, precision=HIGHEST)
    gradient = rates.loss * clients.gradient(coefficients(basis, heads))
    rows = jnp.concatenate([gradient, heads], axis=1)
    of_gradient, in_heads = jnp.split(product(heads.T, rows), [basis.shape[0]], axis=1)
    in_basis = product(basis.T, basis)
    of_basis = of_gradient.T + product(basis, rates.shrink * in_basis - rates.grow * in_heads)
    of_heads = product(rows, jnp.concatenate([basis, rates.shrink * in_heads - rates.grow * in_basis]))
    return of_basis, of_heads


def outcome(
    clients: LinearClients,
    start: tuple[Float[Array, "features rank"], Float[Array, "clients rank"]],
    end: tuple[Float[Array, "features rank"], Float[Array, "clients rank"]],
    rates: Rates,
) -> Status:
    """Diverged if not finite or worse than both predicting zero and the start; else whether it still moves."""
    basis, heads = end
    down_basis, down_heads = directions(clients, basis, heads, rates)
    found = coefficients(basis, heads)
    stationary = is_stationary(clients, found, coefficients(basis, down_heads) + coefficients(down_basis, heads))
    worst_risk = jnp.maximum(jnp.sum(clients.square), jnp.sum(clients.risk(coefficients(*start))))
    sane = jnp.sum(clients.risk(found)) <= worst_risk * (1 + 1e-3)  # false for NaN
    return Status.where(sane, Status.where(stationary, Status.converged, Status.max_steps_reached), Status.diverged)


def is_stationary(
    clients: LinearClients, found: Float[Array, "clients features"], velocity: Float[Array, "clients features"]
) -> Array:
    """Whether the coefficients move slower than `STATIONARY` times their size and that of the moments."""
    size = jnp.sqrt(jnp.sum(found**2)) * jnp.sqrt(jnp.sum(clients.moment**2))
    return jnp.sqrt(jnp.sum(velocity**2)) <= STATIONARY * size


def withheld(found: Representation) -> Representation:
    """The same, with NaN for numbers where iterates diverged, input was not finite or an argument out of range."""
    refused = (found.status == Status.diverged) | (found.status == Status.nonfinite_input)
    refused = refused | (found.status == Status.invalid_argument)
    hide = lambda array: jnp.where(refused, jnp.nan, array)
    errors = None if found.errors is None else hide(found.errors)
    return Representation(hide(found.basis), hide(found.heads), errors, found.status)
