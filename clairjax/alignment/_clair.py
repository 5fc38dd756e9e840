"""The driver: from what clients report to refined matrices."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
from jaxtyping import Array, ArrayLike

from .. import _validate
from .._compile import compiled
from .._status import Status
from .._typing import ScalarLike
from ._arguments import Program, Voting, reported, turned
from ._elect import Election, elected
from ._factored import Factored
from ._low_rank import LowRankMatrices
from ._program import Decomposition, Penalty
from ._refine import refined
from ._reports import Reports
from ._solver import Solver
from ._unequal import member_weights


class ClairResult(eqx.Module):
    """What `clair` found: `elect`, then `refine`.

    - `election`: who belongs, and the evidence; its fields are this result's, too;
    - `refined` [clients, out, in], or `RefinedFactors` of `LowRankMatrices`: (9) for members; other clients' own
      matrices unless `shrink=True`.
    """

    election: Election
    refined: Any  # an array or RefinedFactors, as `weights`

    @property
    def members(self) -> Array:
        """See `Election` for shapes, as for all below; of a batch, with its axes first."""
        return self.election.members

    @property
    def influence(self) -> Array:
        return self.election.influence

    @property
    def declined(self) -> Array:
        return self.election.declined

    @property
    def votes(self) -> Array:
        return self.election.votes

    @property
    def threshold(self) -> Array:
        return self.election.threshold

    @property
    def off_subspace(self) -> Array:
        return self.election.off_subspace

    @property
    def basis(self) -> Array:
        return self.election.basis

    @property
    def rank(self) -> Array:
        return self.election.rank

    @property
    def penalty(self) -> Penalty:
        return self.election.penalty

    @property
    def decomposition(self) -> Decomposition | None:
        return self.election.decomposition

    @property
    def status(self) -> Status:
        return self.election.status

    @property
    def projector(self) -> Array:
        return self.election.projector

    @property
    def converged(self) -> Array:
        return self.election.converged


def clair(
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
    shrink: bool = False,
) -> ClairResult:
    """Find the clients that share a row space, and refine each with the others' help.

    `elect` finds the members and their row space; `refine` averages over the members what remains outside it.

    **Args:** as `elect`, and `shrink` (static) of `refine`: shrinkage pools each client's part outside the row space
    as far as a James–Stein estimate allows, for members and others.

    **Returns:** `ClairResult`. Without a majority nobody is a member, nothing is refined and the status says so. So it
    is where the rank found is the solver's bound and more may follow, and where too few numbers are left to tell.

    **Limits**, with figures under "Limits of clair" on the results page:

    - Colluders who know all reports cost the benign clients little, as long as they are a minority.
    - A tight group of half of the clients, apart from the others, denies a majority, whoever is in it.
    - A client is never judged by its part inside the row space. So contaminated clients that share a row space of
      their own may be members, and the rank found is that of the sum. Give `rank` if you know it.
    - `samples` are claims, and a false claim is trusted.
    - Without `samples` a client of little noise is left alone, not helped. A noisy minority may be voted out. Of
      halves that differ in noise nobody is a member.
    - Noise without a variance hides the rank.

    **Raises:** `ValueError` naming the argument, and the client for non-finite values, outside a trace.

    **Source:** CLAIR sections 3-4, (5)-(9), Algorithm 1. The paper's procedure to the letter is
    `clair(weights, penalty=…, refit=False, solver=ProximalGradient())`; tuning, refitting and shrinkage are not in
    the paper.

    **Cost:** that of `elect` and `refine`. Integers and half precision are refused; float32 costs about 1e-6 of the
    largest contrast in `refined`, and entries below 1e-17 vanish in its squares: scale such data.

    >>> import jax, jax.numpy as jnp
    >>> import clairjax as cj
    >>> left, right, rest = jax.random.split(jax.random.key(0), 3)
    >>> weights = jax.random.normal(left, (6, 5, 2)) @ jax.random.normal(right, (2, 8))
    >>> weights = weights.at[4].add(jax.random.normal(rest, (5, 8)))
    >>> cj.clair(weights).members.tolist()
    [True, True, True, True, False, True]
    """
    reports = reported(weights, shared)
    program = Program.of(reports, penalty, solver, pair_weights)
    voting = Voting.of(reports, solver, threshold, vote_share, rank, refit, samples)
    _validate.flag(shrink, "shrink")
    return _clair(reports, program, voting, shared, bool(shrink))


@partial(compiled, static_argnames=("shared", "shrink"))
def _clair(reports: Reports, program: Program, voting: Voting, shared: str, shrink: bool) -> ClairResult:
    election = elected(reports, program, voting)
    weights = member_weights(election.members, election.influence, voting.variances)
    kept = ~election.members | election.declined
    found = refined(reports, weights, kept, voting.variances, election.basis, election.rank, shrink=shrink)
    return ClairResult(election, turned(found, shared))
