"""The drivers of the convex programs alone: (7) with noise, (24) without."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, ArrayLike, Bool

from .. import _validate
from .._typing import ScalarLike
from ._arguments import (
    cast,
    check_penalty,
    check_rtol,
    check_solver,
    input_status,
    pair_weight_table,
    reports,
    traced_in_range,
)
from ._clients import DenseClients
from ._factored import Factored
from ._low_rank import LowRankMatrices
from ._low_rank_clients import centred, lifted
from ._noiseless import solve_noiseless
from ._program import Decomposition, Penalty, with_status
from ._proximal_gradient import ProximalGradient


def decompose(
    weights: ArrayLike | Sequence[Any] | LowRankMatrices,
    penalty: Penalty,
    *,
    solver: Factored | ProximalGradient = Factored(),  # noqa: B008
    pair_weights: ArrayLike | Sequence[Any] | None = None,
) -> Decomposition:
    """Split pairwise contrasts into low rank plus block sparse: the convex program.

    min over L, S of ½ Σ_g ω_g ‖D_g − L_g − S_g‖² + λ_L ‖L‖_* + λ_S Σ_g ‖S_g‖_F, with D_g = W_j − W_k over pairs j < k.

    **Args:** `weights` [clients, out, in] or `LowRankMatrices`, float32 or float64, at least three clients; `penalty`;
    `solver`, `Factored` or, for an array, `ProximalGradient`; `pair_weights` (ω), a positive scalar or a symmetric
    [clients, clients] table; None is the paper's 1/clients.

    **Returns:** `Decomposition`, with a duality gap that certifies the objective.

    **Raises:** `ValueError` naming the argument, outside a trace; inside one the status tells.

    **Source:** CLAIR (5)-(7), Algorithm 1.

    **Cost:** see the solvers. In float32 the gap can be certified to about 1e-6, not further.

    >>> import jax.numpy as jnp
    >>> from clairjax import Penalty, decompose
    >>> weights = jnp.array([[[1.0, 0.0]], [[2.0, 0.0]], [[4.0, 0.0]]])
    >>> decompose(weights, Penalty(0.1, 0.5)).rank.item()
    1
    """
    weights = reports(weights)
    check_penalty(penalty)
    check_solver(solver, weights)
    pair_weights = pair_weight_table(pair_weights, weights)
    in_range = traced_in_range(penalty, pair_weights, rtol=solver.rtol, step=getattr(solver, "step", None))
    return _decompose(weights, cast(penalty, weights), solver, pair_weights, in_range)


def decompose_noiseless(
    weights: ArrayLike | Sequence[Any], penalty: Penalty, *, max_steps: int = 1000, rtol: ScalarLike | None = None
) -> Decomposition:
    """Split noiseless contrasts exactly: min λ_L ‖L‖_* + λ_S Σ_g ‖S_g‖_F subject to L_g + S_g = D_g.

    **Args:** `weights` [clients, out, in], float32 or float64, at least three clients; `penalty`, of which only the
    ratio matters to the minimiser: `penalty_ratio_interval` tells the ratios for which Theorem 1 promises the shared
    row space; `max_steps` (static); `rtol`, on the larger of the relative duality gap (told to √eps) and the relative
    violation of the constraint; None means eps^0.6.

    **Returns:** `Decomposition`; `residual_norms` are those of the sparse part, basis and values [in, in] and [in].

    **Raises:** `ValueError` naming the argument, outside a trace.

    **Source:** CLAIR (24), Theorem 1. Multipliers, not the penalty limit of (7), whose row space is off in proportion
    to the penalties.

    **Cost:** a step as `ProximalGradient`'s, on the stack of K²/2 contrasts; 20 to 100 steps.

    >>> import jax.numpy as jnp
    >>> from clairjax import Penalty
    >>> from clairjax.alignment import decompose_noiseless
    >>> weights = jnp.array([[[1.0, 0.0]], [[2.0, 0.0]], [[4.0, 0.0]]])
    >>> decompose_noiseless(weights, Penalty(1.0, 2.0)).singular_values.round(3).tolist()
    [3.742, 0.0]
    """
    weights = _validate.client_matrices(weights)
    check_penalty(penalty)
    _validate.at_least(max_steps, "max_steps", 1)
    check_rtol(rtol, "rtol")
    in_range = traced_in_range(penalty, rtol=rtol)
    return _decompose_noiseless(weights, cast(penalty, weights), max_steps, rtol, in_range)


@jax.jit
def _decompose(
    weights: Array | LowRankMatrices,
    penalty: Penalty,
    solver: Factored | ProximalGradient,
    pair_weights: Array,
    in_range: Bool[Array, ""] | bool,
) -> Decomposition:
    clients = centred(weights)
    solution = lifted(solver.solve(clients, penalty, pair_weights), clients)
    return with_status(solution, input_status(weights, in_range))


@partial(jax.jit, static_argnames="max_steps")
def _decompose_noiseless(
    weights: Array, penalty: Penalty, max_steps: int, rtol: ScalarLike | None, in_range: Bool[Array, ""] | bool
) -> Decomposition:
    solution = solve_noiseless(DenseClients.centred(weights).values, penalty, max_steps, rtol)
    return with_status(solution, input_status(weights, in_range))
