"""What the drivers ask of their arguments, and the forms the solvers take them in."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .. import _validate
from .._status import Status
from ._factored import Factored
from ._program import Penalty
from ._proximal_gradient import ProximalGradient


def input_status(weights: Array) -> Status:
    return Status.where(jnp.isfinite(8 * jnp.sum(weights**2)), Status.converged, Status.nonfinite_input)


def cast(penalty: Penalty, weights: Array) -> Penalty:
    return Penalty(jnp.asarray(penalty.low_rank, weights.dtype), jnp.asarray(penalty.sparse, weights.dtype))


def check_penalty(penalty: Penalty) -> None:
    _validate.positive(penalty.low_rank, "penalty.low_rank")
    _validate.positive(penalty.sparse, "penalty.sparse")


def check_rank(rank: int, bound: int, solver: Factored | ProximalGradient) -> None:
    if not 1 <= rank <= bound:
        raise _validate.fail("rank", f"between 1 and min(out, in) = {bound}", rank)
    if isinstance(solver, Factored) and rank > solver.max_rank:
        raise _validate.fail("rank", f"at most the solver's max_rank = {solver.max_rank}", rank)


def pair_weight_table(
    pair_weights: ArrayLike | Sequence[Any] | None, weights: Array
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
