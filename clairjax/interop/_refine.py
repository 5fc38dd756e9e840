"""Who belongs, module by module and client by client; and the refined factors of those who do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _validate
from .._status import Status
from ..alignment import LowRankMatrices, RefinedFactors, clair, refine_members
from ._adapters import LEAST, Adapters


TOLERANCE = 0.05
NEAR = 0.1  # of the usual distance: honest clients, who trained on data of their own, are not that close
RULE = "contaminated: voted out of at least half of the modules it takes part in that have a majority"
MEMBER, CONTAMINATED, UNUSABLE, UNDECIDED = "member", "contaminated", "unusable", "undecided"


@dataclass(frozen=True)
class Finding:
    """One module: who took part and who belongs, and the evidence.

    `distance` of a client is the median of its off-subspace distances to the others, in units of the threshold;
    `copies` names, of clients that sent what another did or nearly, that other: they have one vote together.
    """

    module: str
    shape: tuple[int, int]
    clients: tuple[str, ...]
    members: tuple[str, ...]
    votes: dict[str, float]
    distance: dict[str, float]
    copies: dict[str, str]
    threshold: float
    rank: int
    status: str

    @property
    def decided(self) -> bool:
        return bool(self.members)


@dataclass(frozen=True)
class Verdict:
    """One client: `member`, `contaminated`, `unusable` (with the reason) or `undecided`, and in how many modules."""

    client: str
    verdict: str
    modules: int
    voted_out: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True)
class Refinement:
    """What `refine` found; `save` writes it. `findings` by module, `verdicts` by client."""

    adapters: Adapters
    findings: dict[str, Finding]
    verdicts: dict[str, Verdict]
    rank: int | None
    tolerance: float
    shrink: bool
    notices: tuple[str, ...]

    @property
    def members(self) -> list[str]:
        return [name for name, verdict in self.verdicts.items() if verdict.verdict == MEMBER]

    def members_of(self, module: str) -> list[str]:
        """Clients refined in a module: members of it and on the whole."""
        return [name for name in self.findings[module].members if name in self.members]

    def refined(self, module: str) -> tuple[LowRankMatrices, RefinedFactors]:
        """The reported and the refined factors of `members_of(module)`.

        **Raises:** `ValueError` for a module without members.
        """
        members = self.members_of(module)
        if not members:
            raise ValueError(f"module {module} must have members to be refined, got none.")
        # Others make up the number where two are left; they are not counted, and not handed out.
        others = [name for name in self.findings[module].clients if name not in members]
        weights = self.adapters.factors(module, members + others[: max(0, LEAST - len(members))])
        counted = jnp.arange(weights.shape[0]) < len(members)
        refined = refine_members(weights, counted, shrink=self.shrink)
        theirs = (refined.own_up, refined.own_down, refined.common_share)
        up, down, share = (part[: len(members)] for part in theirs)
        kept = RefinedFactors(up, down, refined.common_up, refined.common_down, share)
        return _some(weights, slice(len(members))), kept


def refine(
    adapters: Adapters,
    *,
    rank: int | None = None,
    tolerance: float = TOLERANCE,
    shrink: bool = False,
    progress: Callable[[str], Any] | None = None,
) -> Refinement:
    """Find the clients that share the others' row space in most modules.

    `clairjax.clair` votes in each module on its own. A client is contaminated if it is voted out of at least half of
    the modules that have a majority, each counting the same; in a module, those are refined that belong to it and
    to the whole. Clients that send the same matrix, or nearly, have one vote together. A client with NaN or infinite
    values, or too large for float32, takes no part.

    **Arguments:**

    - `adapters`, of `load`.
    - `rank`: of the factors that `save` writes; None is the smallest whose relative Frobenius error is at most
      `tolerance`, between 0 and 1, for all members of a module.
    - `shrink`: as in `clairjax.clair`.
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
    unusable = _unusable(adapters)
    if len(adapters.clients) - len(unusable) < LEAST:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unusable.items())
        raise ValueError(
            f"at least {LEAST} clients must be usable, got {len(adapters.clients) - len(unusable)} ({reasons})."
        )
    findings, notices = {}, list(adapters.notices)
    for module, having in adapters.modules.items():
        usable = tuple(name for name in having if name not in unusable)
        if progress is not None:
            progress(module)
        if len(usable) < LEAST:
            notices.append(f"module {module}: fewer than {LEAST} usable clients adapt it, so it is kept as it is")
        else:
            findings[module] = _vote(adapters, module, usable)
    verdicts = {name: _verdict(name, findings, unusable.get(name)) for name in adapters.clients}
    return Refinement(adapters, findings, verdicts, rank, float(tolerance), shrink, tuple(notices))


def _check_fits(rank: int, adapters: Adapters) -> None:
    for module, (first, *_) in adapters.modules.items():
        side = min(adapters.clients[first].modules[module].matrix)
        if rank > side:
            raise _validate.fail("rank", f"at most {side}, the smallest side of module {module}", rank)


def _vote(adapters: Adapters, module: str, names: tuple[str, ...]) -> Finding:
    weights = adapters.factors(module, names)
    first = _first_of_copies(weights)
    once = len(set(first)) >= LEAST
    # Too few for a vote of each once: all vote, each with the matrix that its group sent, bit for bit.
    voters = list(dict.fromkeys(first)) if once else first
    if voters != list(range(len(names))):
        weights = _some(weights, np.array(voters))
    found = clair(weights)
    off_subspace = np.asarray(found.off_subspace)
    others = ~np.eye(len(voters), dtype=bool)
    medians = np.median(off_subspace[others].reshape(len(voters), -1), axis=1)
    threshold = float(found.threshold)
    distance, votes, belongs = (
        dict(zip(names, np.asarray(each)[[voters.index(k) for k in first]].tolist(), strict=True))
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
        status=Status[found.status],  # type: ignore[misc]
    )


def _some(weights: LowRankMatrices, places: slice | np.ndarray) -> LowRankMatrices:
    return jax.tree.map(lambda leaf: leaf[places], weights)


def _first_of_copies(weights: LowRankMatrices) -> list[int]:
    """For each client the place of the first with the same matrix, however factored, or nearly the same. Copies vote
    once: otherwise a few parties that send one adapter would make its row space look shared."""
    squares = _squared_distances(weights)
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


def _verdict(client: str, findings: dict[str, Finding], reason: str | None) -> Verdict:
    if reason is not None:
        return Verdict(client, UNUSABLE, 0, (), reason)
    taking_part = [each for each in findings.values() if each.decided and client in each.clients]
    out = tuple(each.module for each in taking_part if client not in each.members)
    if not taking_part:
        return Verdict(client, UNDECIDED, 0, ())
    verdict = CONTAMINATED if 2 * len(out) >= len(taking_part) else MEMBER
    return Verdict(client, verdict, len(taking_part), out)


def _unusable(adapters: Adapters) -> dict[str, str]:
    """Why clients cannot take part: the first module whose numbers are not finite or too large, of each."""
    bound = np.sqrt(np.finfo(np.float32).max / (64 * len(adapters.clients) ** 2))
    reasons = {}
    for name, folder in adapters.clients.items():
        for module in folder.modules:
            up, down, scale = folder.factors(module)
            if not (np.isfinite(up).all() and np.isfinite(down).all()):
                reasons[name] = f"NaN or infinite values in module {module}"
                break
            if not abs(scale) * float(np.linalg.norm(up)) * float(np.linalg.norm(down)) < bound:
                reasons[name] = f"values too large for float32 in module {module}"
                break
    return reasons
