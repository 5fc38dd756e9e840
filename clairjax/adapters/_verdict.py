"""The verdict on each client by all modules together, in words; and what each module tells of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..alignment import VERDICTS, Evidence, evidence, pool
from ..alignment import Verdict as Pooled
from ._adapters import Adapters


MEMBER, RESCALED, FLIPPED, UNRELATED, OTHER_ROWS, UNDECIDED, _ = VERDICTS
UNUSABLE, IDLE = "unusable", "idle"
LITTLE = 0.5  # of the usual agreement; a member may have less
RULE = (
    "by all modules together, relative to what is usual among the clients. sign-flipped, unrelated: its update agrees "
    "with the others' less than half as much as is usual, beyond the spread, and neither what it has of its own nor "
    "its agreement with any member is as of members. other rows: its row spaces agree less than half as much as is "
    "usual. rescaled: over twice the usual size, or under half of it. undecided: too little in common to tell"
)


@dataclass(frozen=True)
class Finding:
    """One module: who takes part, each one's agreement with the others, and its size over the usual one."""

    module: str
    shape: tuple[int, int]
    clients: tuple[str, ...]
    agreement: dict[str, float] = field(default_factory=dict)
    size: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientVerdict:
    """One client: `member`, `rescaled`, `sign-flipped`, `unrelated`, `other rows` or `undecided`, by all its modules
    together; or `idle` or `unusable`. `reason` says why, in a sentence.

    - `member`: whether it agrees with the others as is usual; of a `rescaled` client it can be true.
    - `modules`: how many it takes part in.
    - `agreement`: the cosine with the middle one of the others, over the overlap of their row spaces; `usual` and
      `spread`, of the fleet. `relative`: over the usual, by this cosine or the plain one, whichever is more.
    - `size`: over the usual size; `rows`: agreement of row spaces, over the usual one.
    - `agrees_with`: of an unrelated client, the other unrelated ones that it agrees with: a group with another task,
      or a collusion; of a member that agrees little with most, the members it agrees with.
    - `copies`: clients that sent the same, up to scale, or nearly: they have one vote together.

    Numbers are None of a client that was not compared.
    """

    client: str
    verdict: str
    reason: str
    member: bool = False
    modules: int = 0
    agreement: float | None = None
    usual: float | None = None
    spread: float | None = None
    relative: float | None = None
    size: float | None = None
    rows: float | None = None
    agrees_with: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()


def judge(
    adapters: Adapters,
    voters: Mapping[str, tuple[str, ...]],
    apart: Mapping[str, tuple[str, str]],
    progress: Callable[[str], Any] | None = None,
) -> tuple[dict[str, Finding], dict[str, ClientVerdict], float]:
    """`clairjax.alignment.pool` of all modules: findings, verdicts, and the usual overlap of two clients' row spaces.

    `voters`: of each module its clients, three or more; `apart`: verdict and reason of clients that take no part.
    """
    names = [name for name in adapters.clients if any(name in mine for mine in voters.values())]
    findings, verdicts, found = {}, {}, None
    if voters:
        places = [[names.index(name) for name in mine] for mine in voters.values()]
        found = pool((_module(adapters, *each, progress) for each in voters.items()), places)
        for layer, (module, mine) in enumerate(voters.items()):
            tables = (dict(zip(names, each[layer].tolist(), strict=True)) for each in _by_layer(found))
            here = ({name: table[name] for name in mine} for table in tables)
            findings[module] = Finding(module, _shape(adapters, module), mine, *here)
    for name in adapters.clients:
        if name in names and found is not None:
            number = sum(name in mine for mine in voters.values())
            verdicts[name] = _verdict(names, names.index(name), number, found)
        else:
            word, why = apart.get(name, (UNDECIDED, adapters.renamed.get(name, "too few others have its modules")))
            verdicts[name] = ClientVerdict(name, word, why)
    return findings, verdicts, 0.0 if found is None else float(found.overlap)


def _module(
    adapters: Adapters, module: str, names: tuple[str, ...], progress: Callable[[str], Any] | None
) -> Evidence:
    """By NumPy: nothing is compiled."""
    if progress is not None:
        progress(module)
    factors = [adapters.clients[name].factors(module) for name in names]
    rank = max(up.shape[1] for up, _, _ in factors)
    out, in_ = _shape(adapters, module)
    ups, downs = np.zeros((len(names), out, rank)), np.zeros((len(names), rank, in_))
    for k, (up, down, scale) in enumerate(factors):
        ups[k, :, : up.shape[1]] = up
        downs[k, : len(down)] = scale * down.astype(np.float64)
    return evidence((ups, downs))


def _shape(adapters: Adapters, module: str) -> tuple[int, int]:
    return adapters.clients[adapters.modules[module][0]].modules[module].matrix


def _by_layer(found: Pooled) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(found.layer_agreement), np.asarray(found.layer_size)


def _verdict(names: list[str], k: int, modules: int, found: Pooled) -> ClientVerdict:
    others = {
        name: tuple(names[j] for j in np.flatnonzero(table[k]))
        for name, table in (("agrees_with", found.together), ("copies", found.copies))
    }
    mine = ClientVerdict(
        client=names[k],
        verdict=found.words[k],
        reason="",
        member=bool(found.members[k]),
        modules=modules,
        agreement=float(found.agreement[k]),
        usual=float(found.usual),
        spread=float(found.spread),
        relative=float(found.relative[k]),
        size=float(found.size[k]),
        rows=float(found.rows[k]),
        **others,
    )
    return said(mine, bool(found.decided))


def said(mine: ClientVerdict, decided: bool) -> ClientVerdict:
    """With its reason, in a sentence."""
    agrees = (
        f"its agreement with the others is {mine.agreement:.2f}, and {mine.usual:.2f} ± {mine.spread:.2f} is usual"
    )
    little = "the clients have too little in common, or differ too much among themselves, for directions to tell"
    size = f"its update has {mine.size:.3g} times the usual size"
    group = f"; it agrees with {', '.join(mine.agrees_with)}" if mine.agrees_with else ""
    direction = "its direction is a member's" if mine.member else agrees if decided else little
    weak = mine.relative is not None and mine.relative < LITTLE
    own = "; what it has of its own is as large as is usual" if weak else ""
    rows = "" if mine.rows is None else f"{mine.rows:.2f} times as much as is usual"
    said = {
        MEMBER: f"{agrees}{group} as members do" if group else f"{agrees}{own}",
        RESCALED: f"{size}; {direction}",
        FLIPPED: f"it points against the others: {agrees}",
        UNRELATED: f"{agrees}{group}",
        OTHER_ROWS: f"its row spaces agree with the others' {rows}",
        UNDECIDED: f"between a member and a stranger: {agrees}" if decided else little,
    }
    same = (
        f"; it sent what {', '.join(mine.copies)} sent, up to scale, so that they have one vote" if mine.copies else ""
    )
    return ClientVerdict(**{**vars(mine), "reason": said[mine.verdict] + same})
