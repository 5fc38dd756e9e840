"""The driver: from what clients report to refined matrices."""

from collections.abc import Sequence
from functools import partial
from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .. import _validate
from .._status import Status, worst
from .._typing import ScalarLike
from ..subspaces import projector
from ._arguments import (
    cast,
    check_penalty,
    check_rank,
    check_solver,
    input_status,
    pair_weight_table,
    reports,
    traced_in_range,
)
from ._clients import Clients
from ._contrasts import pair_squared_distances
from ._factored import Factored, after
from ._low_rank import LowRankMatrices
from ._low_rank_clients import centred, lifted
from ._low_rank_refine import RefinedFactors, keep, refine_factors
from ._program import Decomposition, Penalty, leading, with_status
from ._proximal_gradient import ProximalGradient
from ._refine import Refit, refine, refit
from ._tuning import tune
from ._vote import Ballot, identical_majority, largest_gap_threshold, majority_vote, vote


REFITS = 3


class ClairResult(eqx.Module):
    """What `clair` found.

    - `members` [clients]: the collaborative set;
    - `refined` [clients, out, in]: (9) for members; other clients' own matrices unless `shrink=True`;
    - `votes` [clients]: share of the other clients within `threshold`;
    - `threshold`: of the off-subspace distance of a pair, given or found;
    - `off_subspace` [clients, clients]: ‖(W_j − W_k)P⊥‖_F, the evidence;
    - `decomposition`: the solution of the convex program that started it;
    - `basis` [in, max_rank]: orthonormal basis of the shared row space, padded with exact zeros beyond `rank`;
    - `rank`: its dimension (traced integer);
    - `status`.
    """

    members: Bool[Array, " clients"]
    refined: Float[Array, "clients out in"]
    votes: Float[Array, " clients"]
    threshold: Float[Array, ""]
    off_subspace: Float[Array, "clients clients"]
    decomposition: Decomposition
    basis: Float[Array, " in max_rank"]
    rank: Int[Array, ""]
    status: Status

    @property
    def projector(self) -> Float[Array, " in in"]:
        """Projector onto the shared row space, [in, in]."""
        return projector(self.basis)


class LowRankClairResult(ClairResult):
    """What `clair` found in `LowRankMatrices`: `refined` is factored, too."""

    refined: RefinedFactors  # type: ignore[assignment]


@overload
def clair(
    weights: LowRankMatrices,
    *,
    penalty: Penalty | None = None,
    rank: int | None = None,
    solver: Factored | ProximalGradient = ...,
    pair_weights: ArrayLike | Sequence[Any] | None = None,
    threshold: ScalarLike | None = None,
    vote_share: ScalarLike = 0.5,
    refit: bool = True,
    shrink: bool = False,
) -> LowRankClairResult: ...


@overload
def clair(
    weights: ArrayLike | Sequence[Any],
    *,
    penalty: Penalty | None = None,
    rank: int | None = None,
    solver: Factored | ProximalGradient = ...,
    pair_weights: ArrayLike | Sequence[Any] | None = None,
    threshold: ScalarLike | None = None,
    vote_share: ScalarLike = 0.5,
    refit: bool = True,
    shrink: bool = False,
) -> ClairResult: ...


def clair(
    weights: ArrayLike | Sequence[Any] | LowRankMatrices,
    *,
    penalty: Penalty | None = None,
    rank: int | None = None,
    solver: Factored | ProximalGradient = Factored(),  # noqa: B008
    pair_weights: ArrayLike | Sequence[Any] | None = None,
    threshold: ScalarLike | None = None,
    vote_share: ScalarLike = 0.5,
    refit: bool = True,
    shrink: bool = False,
) -> ClairResult:
    """Find the clients that share a row space, and refine each with the others' help.

    Contrasts cancel the unknown backbone; the convex program gives a first row space; clients far from most others
    outside it are voted out; what remains outside it is averaged over the members. With `refit` the row space is
    then estimated from the members by principal components, its rank against their noise floor, and the vote is
    taken again, up to three times. For a shared left factor (the dual, end of CLAIR's Remark 1) pass the transposes,
    `weights.swapaxes(1, 2)`, and transpose `refined` back.

    **Args:** `weights` [clients, out, in] or `LowRankMatrices`, float32 or float64, at least three clients.
    `penalty`: None tunes it from the data, inside the trace. `rank` (static): of the shared row space; None finds it.
    `solver`. `pair_weights`: as in `decompose`. `threshold`: of the off-subspace distance; None finds it, by the first
    significant gap above a majority with `refit` and by the paper's largest gap without. `vote_share` (α): share of
    the other clients that must be within the threshold. `refit`, `shrink` (static): see `ClairResult`; shrinkage
    pools each client's part outside the row space as far as a James–Stein estimate allows, for members and others.

    **Returns:** `ClairResult`, or `LowRankClairResult` of `LowRankMatrices`. Without a majority nobody is a member,
    nothing is refined and the status says so.

    **Limits:** what a client does inside the row space is never held against it. So strangers that share a row space
    of their own, small enough for both to fit into `max_rank`, may be taken for members, the rank found being that of
    the sum. In trials (10 clients, rank 2, theirs 1 or 2, noise) that happened always with five such strangers, in 52
    to 97 % of draws with four, 7 to 75 % with three, at most 3 % with two; without noise with one, too. With the true
    `rank` given it was at most 2 % with three, 23 % with four. A minority of strangers that each have a row space of
    their own is found.

    **Raises:** `ValueError` naming the argument, and the client for non-finite values, outside a trace.

    **Source:** CLAIR sections 3-4, (5)-(9), Algorithm 1. The paper's procedure to the letter is
    `clair(weights, penalty=…, refit=False, solver=ProximalGradient())`; tuning, refitting and shrinkage are not in
    the paper.

    **Cost:** some 100 solver steps, then up to three times (under `vmap` always) K·q·p² and an eigendecomposition of p
    × p. Integers and half precision are refused; float32 costs about 1e-6 of the largest contrast in `refined`, and
    entries below 1e-17 vanish in its squares: scale such data.

    >>> import jax, jax.numpy as jnp
    >>> import clairjax as cj
    >>> left, right, rest = jax.random.split(jax.random.key(0), 3)
    >>> weights = jax.random.normal(left, (6, 5, 2)) @ jax.random.normal(right, (2, 8))
    >>> weights = weights.at[4].add(jax.random.normal(rest, (5, 8)))
    >>> cj.clair(weights).members.tolist()
    [True, True, True, True, False, True]
    """
    weights = reports(weights)
    check_solver(solver, weights)
    if penalty is not None:
        check_penalty(penalty)
    if rank is not None:
        check_rank(rank, weights, solver)
        rank = int(rank)
    if threshold is not None:
        _validate.one_number(threshold, "threshold")
        if _validate.concrete(threshold) and not float(threshold) >= 0:
            raise _validate.fail("threshold", "zero or positive", threshold)
    _validate.between(vote_share, "vote_share", 0, 1)
    _validate.flag(refit, "refit")
    _validate.flag(shrink, "shrink")
    pair_weights = pair_weight_table(pair_weights, weights)
    in_range = traced_in_range(
        penalty,
        pair_weights,
        threshold=threshold,
        vote_share=vote_share,
        rtol=solver.rtol,
        step=getattr(solver, "step", None),
    )
    penalty = None if penalty is None else cast(penalty, weights)
    threshold = None if threshold is None else jnp.asarray(threshold, weights.dtype)
    vote_share = jnp.asarray(vote_share, weights.dtype)
    return _clair(weights, penalty, rank, solver, pair_weights, threshold, vote_share, in_range, refit, shrink)


@partial(jax.jit, static_argnames=("rank", "refit_members", "shrink"))
def _clair(
    weights: Array | LowRankMatrices,
    penalty: Penalty | None,
    rank: int | None,
    solver: Factored | ProximalGradient,
    pair_weights: Array,
    threshold: Array | None,
    vote_share: Array,
    in_range: Bool[Array, ""] | bool,
    refit_members: bool,
    shrink: bool,
) -> ClairResult:
    clients = centred(weights)
    max_rank = _max_rank(solver, clients)
    separations = jnp.sqrt(pair_squared_distances(clients.inner_products()))

    def elect(basis: Array, found: Array) -> tuple[Ballot, Array]:
        off_subspace = jnp.sqrt(pair_squared_distances(clients.project_out(basis).inner_products()))
        if threshold is not None:
            return vote(off_subspace, threshold, vote_share), off_subspace
        if not refit_members:
            return vote(off_subspace, largest_gap_threshold(off_subspace), vote_share), off_subspace
        return majority_vote(off_subspace, separations, clients.freedom(found), vote_share), off_subspace

    start = None
    if penalty is None:
        penalty, basis, found, start = tune(clients, pair_weights, max_rank, rank, vote_share)
        status = Status.converged
    if start is None or not refit_members:
        solution = solver.solve(clients, penalty, pair_weights, start)
        found = solution.rank if rank is None else jnp.minimum(solution.rank, rank)
        basis = leading(solution.basis, found)
        status = solution.status

    if refit_members and rank is None:
        # One matrix and a stranger's always share a row space, of their difference: here what most agree in is enough.
        same = identical_majority(separations)
        basis, found = jnp.where(same, 0, basis), jnp.where(same, 0, found)

    Carry = tuple[Refit, Ballot, Array, Array]

    def again(carry: Carry, number: Array) -> tuple[Carry, None]:
        space, ballot, _, before = carry
        if refit_members:
            # The same members give the same space. Not a `while_loop` that ends there: of a batch, it never does on
            # CPU (jaxlib 0.10).
            anew = (number == 1) | jnp.any(ballot.members != before)
            space = jax.lax.cond(anew, lambda: refit(clients, ballot.members, max_rank, rank), lambda: space)
        return (space, *elect(space.basis, space.rank), ballot.members), None

    # One loop and not a vote before it, so that the vote is compiled once.
    nobody = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(elect, basis, found))
    (space, ballot, off_subspace, _), _ = jax.lax.scan(
        again,
        (Refit(basis, found, jnp.asarray(False)), *nobody, nobody[0].members),
        jnp.arange(REFITS + 1 if refit_members else 1),
    )
    basis, found = space.basis, space.rank

    if start is not None and refit_members:
        # The path gave the row space to start from. The solution at its penalty is reported and decides nothing, so
        # it comes last, and not at all where a compiled caller does not look at it.
        solution = solver.solve(clients, penalty, pair_weights, start._replace(factor=after(start.factor, basis)))

    input = input_status(weights, in_range)
    counts = ballot.majority & (input == Status.converged)
    members = ballot.members & counts
    refined: Any
    if isinstance(weights, LowRankMatrices):
        refined = keep(counts, refine_factors(weights, clients, members, basis, found, shrink=shrink), weights)
    else:
        refined = jnp.where(counts, refine(weights, members, basis, found, shrink=shrink), weights)
    status = worst(Status.where(ballot.majority, Status.converged, Status.no_majority), status)
    status = worst(status, Status.where(space.by_gap, Status.rank_by_gap, Status.converged))
    if rank is None and max_rank < clients.shape[2]:
        status = worst(status, Status.where(found < max_rank, Status.converged, Status.rank_at_bound))
    return (LowRankClairResult if isinstance(weights, LowRankMatrices) else ClairResult)(
        members=members,
        refined=refined,
        votes=ballot.votes,
        threshold=ballot.threshold,
        off_subspace=off_subspace,
        decomposition=with_status(lifted(solution, clients), input),
        basis=clients.lift(basis),
        rank=found,
        status=worst(input, status),
    )


def _max_rank(solver: Factored | ProximalGradient, clients: Clients) -> int:
    in_ = clients.shape[2]
    return min(solver.max_rank, in_) if isinstance(solver, Factored) else in_
