"""Who belongs, module by module and client by client; and the refined factors of those who do."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _validate, alignment
from .._status import Status
from ..alignment import LowRankMatrices, RefinedFactors, elect, level_ranks
from ._adapters import LEAST, Adapters, too_few
from ._numbers import examine
from ._verdict import MEMBER, Finding, Verdict, judge


TOLERANCE = 0.05
AUTO, ROWS, COLUMNS = "auto", "rows", "columns"
NEAR = 0.1  # of the usual distance: honest clients, who trained on data of their own, are not that close


@dataclass(frozen=True)
class Refinement:
    """What `refine` found with its arguments; `save` writes it. `findings` by module, `verdicts` by client."""

    adapters: Adapters
    findings: dict[str, Finding]
    verdicts: dict[str, Verdict]
    rank: int | None
    tolerance: float
    shrink: bool
    shared: str
    notices: tuple[str, ...]
    shared_rank: int | None = None
    included: tuple[str, ...] = ()

    @property
    def members(self) -> list[str]:
        """By their verdicts, or because they were `included`."""
        return [name for name, verdict in self.verdicts.items() if verdict.verdict == MEMBER or name in self.included]

    def members_of(self, module: str) -> list[str]:
        """Clients refined in a module: members of it and on the whole."""
        found, members = self.findings[module], self.members
        return [name for name in found.clients if name in members and (name in found.members or name in self.included)]

    def refined(self, module: str, shared: str | None = None) -> tuple[LowRankMatrices, RefinedFactors]:
        """The reported factors of `members_of(module)`, and CLAIR's by rows or columns; None is as `refine` was told.

        **Raises:** `ValueError` for a module without members.
        """
        shared = shared or (ROWS if self.shared == AUTO else self.shared)
        members = self.members_of(module)
        if not members:
            raise ValueError(f"module {module} must have members to be refined, got none.")
        # Others make up the number where two are left; they are not counted, and not handed out.
        others = [name for name in self.findings[module].clients if name not in members]
        weights = self.adapters.factors(module, members + others[: max(0, LEAST - len(members))])
        counted = jnp.arange(weights.shape[0]) < len(members)
        refined = alignment.refine(weights, counted, rank=self.shared_rank, shared=shared, shrink=self.shrink)
        theirs = ("own_up", "own_down", "common_share")
        kept = replace(refined, **{part: getattr(refined, part)[: len(members)] for part in theirs})
        return _some(weights, slice(len(members))), kept


def refine(
    adapters: Adapters,
    *,
    rank: int | None = None,
    tolerance: float = TOLERANCE,
    shrink: bool = False,
    shared: str = AUTO,
    shared_rank: int | None = None,
    include: Collection[str] = (),
    progress: Callable[[str], Any] | None = None,
) -> Refinement:
    """Find the clients that share the others' row space by all modules together, and what the others can share.

    `clairjax.clair` votes in each module on its own. A client is contaminated if it is voted out of more than half of
    its modules (where there is no majority, nobody is), or if by all of them together it is far from the others: if
    its reach, the distance to the middle one of the others, pooled over modules, the geometric mean of the whole and
    what is outside the row spaces, is over 1.67 times the middle client's. In a module, those are refined that belong
    to it and to the whole. Where ranks differ, votes and distances are those of `clairjax.alignment.level_ranks`, and
    whole factors are refined. Clients that send the same matrix, or nearly, have one vote together. A client with NaN
    or infinite values, or too large for float32, takes no part; nor does one that `load` found at fault, nor one that
    is idle, having sent zeros.

    **Arguments:**

    - `adapters`, of `load`.
    - `rank`: of the factors that `save` writes; None is the smallest whose relative Frobenius error is at most
      `tolerance`, between 0 and 1, for all members of a module.
    - `shrink`: as in `clairjax.clair`.
    - `shared`: what members share, of rank `shared_rank` or as found: "rows", or "columns" for CLAIR's dual; or
      "auto", as `save` sees. Of adapters that started from one A the row space is that of the start, whatever was
      learned, and they keep nearly all of it; what they have in common is in B, and of that the columns tell.
    - `include`: names of clients that are members whatever the verdict, as long as their numbers can be used.
    - `progress`: called with a module's name before its turn.

    **Returns:** `Refinement`. Nothing is written.

    **Raises:** `ValueError` for arguments out of range, and when fewer than three clients can be used.

    **Source:** CLAIR, section 8, refines attention matrices one by one; the client-level rule is not in the paper.

    **Cost:** `clair` a module, in factors, compiled once for modules of one shape; memory of one module.

    >>> import clairjax as cj
    >>> cj.adapters.refine(cj.adapters.load(folders), rank=0)  # doctest: +SKIP
    Traceback (most recent call last):
    ValueError: rank must be an integer of at least 1, got 0.
    """
    if rank is not None:
        _validate.at_least(rank, "rank", 1)
        _check_fits(rank, adapters)
    _validate.between(tolerance, "tolerance", 0, 1)
    _validate.flag(shrink, "shrink")
    if shared not in (AUTO, ROWS, COLUMNS):
        raise _validate.fail("shared", "'auto', 'rows' or 'columns'", repr(shared))
    if shared_rank is not None:
        _validate.at_least(shared_rank, "shared_rank", 1)
    if unknown := [name for name in include if name not in adapters.clients]:
        raise _validate.fail("include", f"among the clients, {', '.join(adapters.clients)}", unknown[0])
    numbers = examine(adapters)
    if unusable := [name for name in include if name in numbers.apart]:
        raise _validate.fail("include", "clients that can be used", f"{unusable[0]}: {numbers.apart[unusable[0]]}")
    if (usable := len(adapters.clients) - len(numbers.apart)) < LEAST:
        raise too_few(usable, numbers.apart)
    findings, notices = {}, list(adapters.notices)
    for module, having in adapters.modules.items():
        voters = tuple(name for name in having if numbers.votes(name, module))
        if progress is not None:
            progress(module)
        if len(voters) < LEAST:
            notices.append(f"module {module}: fewer than {LEAST} usable clients adapt it, so it is kept as it is")
        else:
            findings[module] = _vote(adapters, module, voters)
    if shared == ROWS:
        notices += _one_start(adapters, findings)
    notices += [
        f"client {name}: zeros in {len(modules)} module(s), which count as not adapted, as {modules[0]}"
        for name, modules in numbers.zeros.items()
    ]
    verdicts = judge(list(adapters.clients), findings, numbers.unusable, numbers.idle, adapters.renamed)
    rank = None if rank is None else int(rank)
    shared_rank = None if shared_rank is None else int(shared_rank)
    arguments = rank, float(tolerance), bool(shrink), shared, tuple(notices), shared_rank, tuple(include)
    return Refinement(adapters, findings, verdicts, *arguments)


def _check_fits(rank: int, adapters: Adapters) -> None:
    for module, (first, *_) in adapters.modules.items():
        side = min(adapters.clients[first].modules[module].matrix)
        if rank > side:
            raise _validate.fail("rank", f"at most {side}, the smallest side of module {module}", rank)


def _one_start(adapters: Adapters, findings: dict[str, Finding]) -> list[str]:
    """A notice where most shared row spaces hold whole adapters."""
    whole = [
        each.module
        for each in findings.values()
        if each.decided and each.rank >= min(adapters.clients[name].modules[each.module].rank for name in each.members)
    ]
    if 2 * len(whole) <= len(findings):
        return []
    return [
        f"{len(whole)} of {len(findings)} modules: the shared row space has room for a whole adapter, as where all "
        "start from one A, so that hardly anything is averaged; the dual aligns their columns: shared='columns', "
        "--shared columns"
    ]


def _vote(adapters: Adapters, module: str, names: tuple[str, ...]) -> Finding:
    weights = adapters.factors(module, names)
    squares = _squared_distances(weights)
    first = _first_of_copies(squares)
    once = len(set(first)) >= LEAST
    # Too few for a vote of each once: all vote, each with the matrix that its group sent, bit for bit.
    voters = list(dict.fromkeys(first)) if once else first
    if voters != list(range(len(names))):
        weights = _some(weights, np.array(voters))
    levelled = level_ranks(weights)
    found = elect(levelled)
    off_subspace = np.asarray(found.off_subspace)
    others = ~np.eye(len(voters), dtype=bool)
    medians = np.median(off_subspace[others].reshape(len(voters), -1), axis=1)
    threshold = float(found.threshold)
    voter = [voters.index(k) for k in first]
    if levelled is not weights:
        squares = _squared_distances(levelled)[np.ix_(voter, voter)]
    distance, votes, belongs = (
        dict(zip(names, np.asarray(each)[voter].tolist(), strict=True))
        for each in (medians / threshold if threshold > 0 else medians, found.votes, found.members)
    )
    return Finding(
        module=module,
        shape=weights.shape[1:],
        clients=names,
        members=tuple(name for name in names if belongs[name]),
        votes=votes,
        distance=distance,
        copies={name: names[k] for name, k in zip(names, first, strict=True) if once and name != names[k]},
        threshold=threshold,
        rank=int(found.rank),
        whole=np.sqrt(squares),
        outside=off_subspace[np.ix_(voter, voter)],
        status=Status[found.status],  # type: ignore[misc]
    )


def _some(weights: LowRankMatrices, places: slice | np.ndarray) -> LowRankMatrices:
    return jax.tree.map(lambda leaf: leaf[places], weights)


def _first_of_copies(squares: np.ndarray) -> list[int]:
    """For each client the place of the first with the same matrix, however factored, or nearly the same. Copies vote
    once: otherwise a few parties that send one adapter would make its row space look shared."""
    pairs = np.sort(squares[np.triu_indices(len(squares), 1)])
    usual = pairs[len(pairs) // 5]  # within a majority, whatever the others are
    near = squares <= np.square(NEAR) * usual
    first: list[int] = []
    for k in range(len(squares)):
        earlier = np.flatnonzero(near[k, :k])
        first.append(first[earlier[0]] if earlier.size else k)
    return first


def _squared_distances(weights: LowRankMatrices) -> np.ndarray:
    """‖W_j − W_k‖², rounding cut off, by NumPy in float64: differences of nearly equal clients keep their digits."""
    up = np.asarray(weights.up, np.float64)
    down = np.asarray(weights.scaled_down(), np.float64)
    count, out, rank = up.shape
    columns, rows = up.transpose(1, 0, 2).reshape(out, -1), down.reshape(count * rank, -1)
    table = ((columns.T @ columns) * (rows @ rows.T)).reshape(count, rank, count, rank).sum((1, 3))
    own = np.diag(table)
    scale = own[:, None] + own[None, :]
    squares = scale - 2 * table
    return np.where(squares > 1e-12 * scale, squares, 0)
