"""Who shares a row space: contrasts, a first row space, the vote, and the row space of those who were elected."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._compile import compiled
from .._status import Status, worst
from .._typing import ScalarLike
from ..subspaces import projector
from ._arguments import Program, Voting, input_status, reported
from ._clients import Clients
from ._contrasts import pair_squared_distances, pair_variances
from ._factored import Factored
from ._low_rank import LowRankMatrices
from ._majority import identical_majority
from ._program import Decomposition, Penalty, leading, lifted, with_status
from ._refit import Refit, refit_members
from ._reports import Reports
from ._solver import Solver
from ._tuning import tune
from ._unequal import declining, member_weights
from ._vote import Ballot, largest_gap_threshold, majority_vote, vote


REFITS = 3
# Of numbers outside the row space. With fewer, it can take in a contaminated client, and the vote sees nothing.
LEAST_FREEDOM = 10


class Election(eqx.Module):
    """Who belongs, and the evidence.

    - `members` [clients]: the collaborative set;
    - `influence` [clients]: what a member counts in the mean, beside its samples. It is below 1 if the member is far
      out, or one of several that stand or move together;
    - `declined` [clients]: members whose own noise is far below the mean's, so that they keep what they reported;
    - `votes` [clients]: share of the other clients within `threshold`;
    - `threshold`: of the off-subspace distance of a pair, given or found;
    - `whole` [clients, clients]: ‖W_j − W_k‖_F;
    - `off_subspace` [clients, clients]: ‖(W_j − W_k)P⊥‖_F, what of it the shared row space leaves; with `samples`, in
      units of the noise of two clients in the middle;
    - `basis` [in, max_rank]: orthonormal basis of the shared row space, padded with exact zeros beyond `rank`. Where
      columns are shared it is of the column space, [out, max_rank];
    - `rank`: its dimension (traced integer);
    - `penalty`: of the convex program that began it, given or tuned;
    - `decomposition`: the program's solution, where the row space comes from it: with a penalty that was given or
      without refits. Otherwise None, and `decompose(weights, penalty)` solves it;
    - `status`.
    """

    members: Bool[Array, " clients"]
    influence: Float[Array, " clients"]
    declined: Bool[Array, " clients"]
    votes: Float[Array, " clients"]
    threshold: Float[Array, ""]
    whole: Float[Array, "clients clients"]
    off_subspace: Float[Array, "clients clients"]
    basis: Float[Array, " side max_rank"]
    rank: Int[Array, ""]
    penalty: Penalty
    decomposition: Decomposition | None
    status: Status

    @property
    def projector(self) -> Float[Array, " side side"]:
        """Projector onto the shared space."""
        return projector(self.basis)

    @property
    def converged(self) -> Bool[Array, "*batch"]:
        """Whether the status says nothing else."""
        return self.status == Status.converged


def elect(
    weights: ArrayLike | Sequence[Any] | LowRankMatrices,
    *,
    shared: str = "rows",
    samples: ArrayLike | Sequence[Any] | None = None,
    penalty: Penalty | None = None,
    rank: int | None = None,
    solver: Solver = Factored(),  # noqa: B008
    pair_weights: ArrayLike | Sequence[Any] | None = None,
    threshold: ScalarLike | None = None,
    vote_share: ScalarLike = 0.5,
    refit: bool = True,
) -> Election:
    """Find the clients that share a row space.

    Contrasts cancel the unknown backbone. The convex program, or its path of penalties, gives a first row space.
    Clients far from most others outside it are voted out. With `refit` the row space is then that of the members'
    principal components above their noise floor. The vote is taken again, up to three times.

    **Args:**

    - `weights` [clients, out, in] or `LowRankMatrices`, float32 or float64, at least three clients. Of several ranks
      pass `level_ranks` of them: a larger rank alone sets a client apart.
    - `shared` (static): `"rows"`, or `"columns"` for a shared left factor (end of CLAIR's Remark 1).
    - `samples` [clients]: how many each client learned from, above 0; only ratios matter. The variance of a client's
      noise is taken to be in proportion to 1/samples. For least squares pass n − p − 1. None takes the noise of all
      clients for equal. Samples are the clients' own claim: see the limits of `clair`.
    - `penalty`: None tunes it from the data, inside the trace.
    - `rank` (static): of the shared space; None finds it.
    - `solver`, `pair_weights`: as in `decompose`.
    - `threshold`: of the off-subspace distance. None finds it, by the first significant gap above a majority with
      `refit` and by the paper's largest gap without. Who is within one that is given counts in full.
    - `vote_share` (α): share of the other clients that must be within the threshold.
    - `refit` (static).

    **Returns:** `Election`. Without a majority nobody is a member and the status says so.

    **Raises:** `ValueError` naming the argument, and the client for non-finite values, outside a trace.

    **Source:** CLAIR, section 4, (5)-(8). Tuning and refitting are not in the paper.

    **Cost:** 60 solver steps, then up to three times (under `vmap` always) K·q·p² and an eigendecomposition of p × p.

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.alignment import elect
    >>> left, right, rest = jax.random.split(jax.random.key(0), 3)
    >>> weights = jax.random.normal(left, (6, 5, 2)) @ jax.random.normal(right, (2, 8))
    >>> weights = weights.at[4].add(jax.random.normal(rest, (5, 8)))
    >>> elect(weights).members.tolist()
    [True, True, True, True, False, True]
    """
    reports = reported(weights, shared)
    program = Program.of(reports, penalty, solver, pair_weights)
    return _elect(reports, program, Voting.of(reports, solver, threshold, vote_share, rank, refit, samples))


@compiled
def _elect(reports: Reports, program: Program, voting: Voting) -> Election:
    return elected(reports, program, voting)


@jax.named_scope("clairjax.elect")
def elected(reports: Reports, program: Program, voting: Voting) -> Election:
    clients = reports.clients()
    max_rank = program.solver.rank_bound(clients.shape[2])
    whole = jnp.sqrt(pair_squared_distances(clients.inner_products()))
    noise = pair_variances(voting.variances)
    first = _first_space(clients, program, voting, max_rank, whole)

    def ballot(space: Refit) -> tuple[Ballot, Array]:
        squares = pair_squared_distances(clients.project_out(space.basis).inner_products())
        off_subspace = jnp.sqrt(squares / noise)
        if voting.threshold is not None:
            return vote(off_subspace, voting.threshold, voting.vote_share), off_subspace
        if not voting.refit:
            return vote(off_subspace, largest_gap_threshold(off_subspace), voting.vote_share), off_subspace
        rest = (clients.freedom(space.rank), voting.vote_share, voting.variances)
        return majority_vote(off_subspace, whole, *rest), off_subspace

    Carry = tuple[Refit, Ballot, Array, Array]

    def again(carry: Carry, number: Array) -> tuple[Carry, None]:
        space, latest, _, before = carry
        weights = member_weights(latest.members, latest.influence, voting.variances)
        if voting.refit:
            # The same weights give the same space. Not a `while_loop` that ends there: of a batch, it never does on
            # CPU (jaxlib 0.10).
            anew = (number == 1) | jnp.any(weights != before)
            space = jax.lax.cond(anew, lambda: refit_members(clients, weights, max_rank, voting.rank), lambda: space)
        return (space, *ballot(space), weights), None

    # One loop and not a vote before it, so that the vote is compiled once.
    nobody = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(ballot, first.space))
    (space, final, off_subspace, _), _ = jax.lax.scan(
        again,
        (first.space, *nobody, jnp.zeros_like(nobody[0].influence)),
        jnp.arange(REFITS + 1 if voting.refit else 1),
    )

    input = input_status(reports, jnp.asarray(program.in_range) & voting.in_range)
    members, status = final.members & final.majority, Status.converged
    if voting.refit and voting.threshold is None:
        enough = final.exact | (clients.freedom(space.rank) >= LEAST_FREEDOM)
        members, status = members & enough, Status.where(enough, Status.converged, Status.too_small)
    status = worst(status, Status.where(final.majority, Status.converged, Status.no_majority))
    status = worst(status, first.status)
    if voting.rank is None and max_rank < clients.shape[2]:
        # Without refits the rank is that of the program's solution, which is not told from noise.
        cut_short = space.cut_short if voting.refit else space.rank == max_rank
        members = members & ~(cut_short & voting.refit)
        status = worst(status, Status.where(cut_short, Status.rank_at_bound, Status.converged))
    status = worst(status, Status.where(space.by_gap, Status.rank_by_gap, Status.converged))
    members = members & (input == Status.converged)
    declined = jnp.zeros_like(members)
    if voting.refit:
        weights = member_weights(members, final.influence, voting.variances)
        declined = declining(off_subspace**2 * noise, weights, clients.freedom(space.rank))
        status = worst(status, Status.where(declined.any(), Status.unequal_noise, Status.converged))
    return Election(
        members=members,
        influence=final.influence,
        declined=declined,
        votes=final.votes,
        threshold=final.threshold,
        whole=whole,
        off_subspace=off_subspace,
        basis=clients.lift(space.basis),
        rank=space.rank,
        penalty=first.penalty,
        decomposition=None if first.solution is None else with_status(lifted(first.solution, clients), input),
        status=worst(input, status),
    )


class _First(NamedTuple):
    space: Refit
    penalty: Penalty
    solution: Decomposition | None
    status: Status


def _first_space(
    clients: Clients, program: Program, voting: Voting, max_rank: int, whole: Float[Array, "clients clients"]
) -> _First:
    """The row space of the first vote: where the path of penalties ends if refits follow, else the solution's."""
    penalty, start, solution, status = program.penalty, None, None, Status.converged
    if penalty is None:
        penalty, basis, rank, start = tune(
            clients, program.pair_weights, max_rank, voting.rank, voting.vote_share, voting.variances
        )
    if start is None or not voting.refit:
        solution = program.solver.solve(clients, penalty, program.pair_weights, start)
        rank = solution.rank if voting.rank is None else jnp.minimum(solution.rank, voting.rank)
        basis, status = leading(solution.basis, rank), solution.status
    if voting.refit and voting.rank is None:
        # Copies of one matrix and any other share a row space, of their difference. What most agree in is enough here.
        same = identical_majority(whole)
        basis, rank = jnp.where(same, 0, basis), jnp.where(same, 0, rank)
    return _First(Refit(basis, rank, jnp.asarray(False), jnp.asarray(False)), penalty, solution, status)
