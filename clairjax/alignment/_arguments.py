"""What the drivers ask of their arguments, and the forms the solvers take them in."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .. import _validate
from .._status import Status, worst
from .._typing import ScalarLike
from ._factored import Factored
from ._low_rank import LowRankMatrices, client_factors
from ._program import Penalty
from ._proximal_gradient import ProximalGradient


def reports(weights: Any) -> Array | LowRankMatrices:
    """What clients report, dense or in factors, of the shape and type that the drivers want."""
    return client_factors(weights) if isinstance(weights, LowRankMatrices) else _validate.client_matrices(weights)


def input_status(weights: Array | LowRankMatrices, in_range: Bool[Array, ""] | bool) -> Status:
    squares = weights.squared_norms() if isinstance(weights, LowRankMatrices) else weights**2
    finite = Status.where(jnp.isfinite(8 * jnp.sum(squares)), Status.converged, Status.nonfinite_input)
    return worst(finite, Status.where(in_range, Status.converged, Status.invalid_argument))


def traced_in_range(
    penalty: Penalty | None,
    pair_weights: Float[Array, "clients clients"] | None = None,
    *,
    threshold: ScalarLike | None = None,
    vote_share: ScalarLike = 0.5,
    rtol: ScalarLike | None = None,
    step: ScalarLike | None = None,
) -> Bool[Array, ""] | bool:
    """Whether all that the guards below could not look at, because it is traced, is as they want it."""
    penalties = () if penalty is None else (penalty.low_rank, penalty.sparse)
    holds: list[Any] = [True if threshold is None else threshold >= 0, (vote_share > 0) & (vote_share < 1)]
    if pair_weights is not None and not _validate.concrete(pair_weights):
        positive = (pair_weights > 0) & jnp.isfinite(pair_weights)
        holds.append((positive | jnp.eye(len(pair_weights), dtype=bool)) & (pair_weights == pair_weights.T))
    return _validate.traced_in_range(positive=[*penalties, step], not_negative=[rtol], holds=holds)


def cast(penalty: Penalty, weights: Array | LowRankMatrices) -> Penalty:
    return Penalty(jnp.asarray(penalty.low_rank, weights.dtype), jnp.asarray(penalty.sparse, weights.dtype))


def check_penalty(penalty: Any) -> None:
    if not isinstance(penalty, Penalty):
        raise _validate.fail("penalty", "a Penalty(low_rank, sparse)", repr(penalty))
    _validate.positive(penalty.low_rank, "penalty.low_rank")
    _validate.positive(penalty.sparse, "penalty.sparse")


def check_solver(solver: Any, weights: Array | LowRankMatrices) -> None:
    if not isinstance(solver, (Factored, ProximalGradient)):
        raise _validate.fail("solver", "a Factored or a ProximalGradient", repr(solver))
    if isinstance(solver, ProximalGradient) and isinstance(weights, LowRankMatrices):
        raise _validate.fail(
            "solver", "a Factored for LowRankMatrices, whose contrasts are never formed", repr(solver)
        )
    check_rtol(solver.rtol, "solver.rtol")
    if isinstance(solver, ProximalGradient) and solver.step is not None:
        _validate.positive(solver.step, "solver.step")


def check_rtol(rtol: ScalarLike | None, name: str) -> None:
    if rtol is not None:
        _validate.not_negative(rtol, name)


def check_rank(rank: Any, weights: Array | LowRankMatrices, solver: Factored | ProximalGradient) -> None:
    _, out, in_ = weights.shape
    bound, name = min(out, in_), "min(out, in)"
    if isinstance(weights, LowRankMatrices) and weights.rows < bound:
        bound, name = weights.rows, "the sum of the clients' ranks"
    if not _validate.is_integer(rank):
        raise _validate.fail("rank", "an integer, static inside a trace", rank)
    if not 1 <= rank <= bound:
        raise _validate.fail("rank", f"between 1 and {name} = {bound}", rank)
    if isinstance(solver, Factored) and rank > solver.max_rank:
        raise _validate.fail("rank", f"at most the solver's max_rank = {solver.max_rank}", rank)


def pair_weight_table(
    pair_weights: ArrayLike | Sequence[Any] | None, weights: Array | LowRankMatrices
) -> Float[Array, "clients clients"]:
    count = weights.shape[0]
    table = jnp.asarray(1 / count if pair_weights is None else pair_weights, weights.dtype)
    if table.shape not in ((), (count, count)):
        raise _validate.fail("pair_weights", f"a scalar or of shape ({count}, {count})", f"shape {table.shape}")
    if _validate.concrete(table):
        host = np.broadcast_to(np.asarray(table), (count, count))
        off_diagonal = host[~np.eye(count, dtype=bool)]
        _validate.positive(off_diagonal.min(), "pair_weights")
        _validate.positive(off_diagonal.max(), "pair_weights")
        if not np.array_equal(host, host.T):
            raise _validate.fail("pair_weights", "symmetric", "a table that differs from its transpose")
    return jnp.where(jnp.eye(count, dtype=bool), 0, jnp.broadcast_to(table, (count, count)))
