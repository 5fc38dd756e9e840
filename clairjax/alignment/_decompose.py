"""The driver of the convex programs alone: (7) with noise, (24) without."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import ArrayLike

from .. import _validate
from .._compile import compiled
from ._arguments import Program, input_status, reported
from ._factored import Factored
from ._low_rank import LowRankMatrices
from ._program import Decomposition, Penalty, lifted, with_status
from ._reports import Reports
from ._solver import Solver


def decompose(
    weights: ArrayLike | Sequence[Any] | LowRankMatrices,
    penalty: Penalty,
    *,
    solver: Solver = Factored(),  # noqa: B008
    pair_weights: ArrayLike | Sequence[Any] | None = None,
) -> Decomposition:
    """Split pairwise contrasts into low rank plus block sparse: the convex program.

    min over L, S of ½ Σ_g ω_g ‖D_g − L_g − S_g‖² + λ_L ‖L‖_* + λ_S Σ_g ‖S_g‖_F, with D_g = W_j − W_k over pairs j < k.

    **Args:**

    - `weights` [clients, out, in] or `LowRankMatrices`, float32 or float64, at least three clients.
    - `penalty`: a `Penalty`.
    - `solver`: `Factored` or `ProximalGradient`, or `Multipliers` for the noiseless program.
    - `pair_weights` (ω): a positive scalar or a symmetric [clients, clients] table; None is the paper's 1/clients.

    **Returns:** `Decomposition`, with a duality gap that certifies the objective.

    **Raises:** `ValueError` naming the argument, outside a trace; inside one the status tells.

    **Source:** CLAIR (5)-(7), Algorithm 1; (24) for `Multipliers`.

    **Cost:** see the solvers. In float32 the gap can be certified to about 1e-6, not further.

    >>> import jax.numpy as jnp
    >>> from clairjax import Penalty, decompose
    >>> weights = jnp.array([[[1.0, 0.0]], [[2.0, 0.0]], [[4.0, 0.0]]])
    >>> decompose(weights, Penalty(0.1, 0.5)).rank.item()
    1
    """
    reports = reported(weights)
    if penalty is None:
        raise _validate.fail("penalty", "a Penalty(low_rank, sparse)", None)
    return _decompose(reports, Program.of(reports, penalty, solver, pair_weights))


@compiled
def _decompose(reports: Reports, program: Program) -> Decomposition:
    clients = reports.clients()
    assert program.penalty is not None
    solution = lifted(program.solver.solve(clients, program.penalty, program.pair_weights), clients)
    return with_status(solution, input_status(reports, program.in_range))
