"""What the drivers ask of their arguments, and the forms the solvers take them in."""

from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .. import _validate
from .._status import Status, worst
from .._typing import ScalarLike
from ._low_rank import LowRankMatrices, client_factors
from ._program import Penalty
from ._reports import DenseReports, Reports
from ._samples import noise_variances
from ._solver import Solver


Matrices = TypeVar("Matrices", bound=Any)  # anything with .mT


def reported(weights: Any, shared: Any = "rows") -> Reports:
    """What clients report, of the shape and type that the drivers want, turned so that a row space is shared."""
    _validate.choice(shared, "shared", ("rows", "columns"))
    if isinstance(weights, LowRankMatrices):
        return turned(client_factors(weights), shared)
    return turned(DenseReports(_validate.client_matrices(weights)), shared)


def turned(matrices: Matrices, shared: str) -> Matrices:
    """Transposed where columns are shared; so are results, back."""
    return matrices.mT if shared == "columns" else matrices


def input_status(reports: Reports, in_range: Bool[Array, ""] | bool) -> Status:
    squares = jnp.sum(reports.squared_norms())
    finite = Status.where(jnp.isfinite(8 * squares), Status.converged, Status.nonfinite_input)
    return worst(finite, Status.where(in_range, Status.converged, Status.invalid_argument))


class Program(eqx.Module):
    """The convex program and its solver, as `decompose` and `elect` were asked for them.

    `in_range`: whether traced numbers, which the guards cannot look at, are as the guards want them.
    """

    penalty: Penalty | None
    solver: Solver
    pair_weights: Float[Array, "clients clients"]
    in_range: Bool[Array, ""] | bool

    @classmethod
    def of(
        cls, reports: Reports, penalty: Any, solver: Any, pair_weights: ArrayLike | Sequence[Any] | None
    ) -> "Program":
        if not isinstance(solver, Solver):
            raise _validate.fail("solver", "a Factored, ProximalGradient or Multipliers", repr(solver))
        in_range = [solver.check()]
        if penalty is not None:
            in_range.append(_checked(penalty))
            penalty = jax.tree.map(lambda number: _number(number, reports.dtype), penalty)
        table = pair_weight_table(pair_weights, reports)
        if not _validate.concrete(table):
            positive = ((table > 0) & jnp.isfinite(table)) | jnp.eye(len(table), dtype=bool)
            in_range.append((positive & (table == table.T)).all())
        return cls(penalty, solver, table, _validate.traced_in_range(holds=in_range))


class Voting(eqx.Module):
    """How `elect` was asked to vote. `variances` are those of the clients' noise, from their samples."""

    threshold: Float[Array, ""] | None
    vote_share: Float[Array, ""]
    variances: Float[Array, " clients"]
    in_range: Bool[Array, ""] | bool
    rank: int | None = eqx.field(static=True)
    refit: bool = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        reports: Reports,
        solver: Solver,
        threshold: Any,
        vote_share: ScalarLike,
        rank: Any,
        refit: Any,
        samples: Any,
    ) -> "Voting":
        if rank is not None:
            rank = checked_rank(rank, reports, solver.rank_bound(reports.shape[2]))
        if threshold is not None:
            _validate.one_number(threshold, "threshold")
            if _validate.concrete(threshold) and not float(threshold) >= 0:
                raise _validate.fail("threshold", "zero or positive", threshold)
        _validate.between(vote_share, "vote_share", 0, 1)
        _validate.flag(refit, "refit")
        at_least_zero = True if threshold is None else threshold >= 0
        variances, positive = noise_variances(samples, reports.shape[0], reports.dtype)
        in_range = _validate.traced_in_range(holds=[at_least_zero, vote_share > 0, vote_share < 1, positive])
        threshold = None if threshold is None else _number(threshold, reports.dtype)
        return cls(threshold, _number(vote_share, reports.dtype), variances, in_range, rank, bool(refit))


def _number(value: ScalarLike, dtype: jnp.dtype) -> Float[Array, ""]:
    """Converted on the host if it is there: otherwise that is a program of its own to compile."""
    return jnp.asarray(np.asarray(value, dtype) if _validate.concrete(value) else value, dtype)


def _checked(penalty: Any) -> Bool[Array, ""] | bool:
    if not isinstance(penalty, Penalty):
        raise _validate.fail("penalty", "a Penalty(low_rank, sparse)", repr(penalty))
    _validate.positive(penalty.low_rank, "penalty.low_rank")
    _validate.positive(penalty.sparse, "penalty.sparse")
    return _validate.traced_in_range(positive=[penalty.low_rank, penalty.sparse])


def checked_rank(rank: Any, reports: Reports, most: int) -> int:
    bound, name = reports.rank_bound
    if not _validate.is_integer(rank):
        raise _validate.fail("rank", "an integer, static inside a trace", rank)
    if not 1 <= rank <= bound:
        raise _validate.fail("rank", f"between 1 and {name} = {bound}", rank)
    if rank > most:
        raise _validate.fail("rank", f"at most the solver's max_rank = {most}", rank)
    return int(rank)


def pair_weight_table(
    pair_weights: ArrayLike | Sequence[Any] | None, reports: Reports
) -> Float[Array, "clients clients"]:
    count = reports.shape[0]
    own = np.eye(count, dtype=bool)
    given = 1 / count if pair_weights is None else pair_weights
    shape = np.shape(given)
    if shape not in ((), (count, count)):
        raise _validate.fail("pair_weights", f"a scalar or of shape ({count}, {count})", f"shape {shape}")
    if not _validate.concrete(given):
        return jnp.where(own, 0, jnp.broadcast_to(jnp.asarray(given, reports.dtype), (count, count)))
    # On the host: each operation outside a compiled program is a program of its own to compile.
    table = np.broadcast_to(np.asarray(given, reports.dtype), (count, count))
    _validate.positive(table[~own].min(), "pair_weights")
    _validate.positive(table[~own].max(), "pair_weights")
    if not np.array_equal(table, table.T):
        raise _validate.fail("pair_weights", "symmetric", "a table that differs from its transpose")
    return jnp.asarray(np.where(own, 0, table))
