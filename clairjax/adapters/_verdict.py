"""What a module's vote found, and the verdict on each client by all modules together."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ..alignment._reach import FAR, pooled_verdict
from ._adapters import LEAST


RULE = (
    "contaminated: voted out of more than half of the modules it takes part in, or of a reach over "
    f"{FAR} (the distance to the middle one of the others by all modules, whole and outside the shared row spaces, "
    "the middle client's being 1)"
)
MEMBER, CONTAMINATED, UNUSABLE, UNDECIDED = "member", "contaminated", "unusable", "undecided"
IDLE = "idle"  # sent zeros


@dataclass(frozen=True)
class Finding:
    """One module: who took part and who belongs, and the evidence.

    `distance` of a client is the median of its off-subspace distances to the others, in units of the threshold;
    `copies` names, of clients that sent what another did or nearly, that other: they have one vote together.
    `whole` and `outside` are tables of ‖D_jk‖_F and ‖D_jk P⊥‖_F over `clients`.
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
    whole: np.ndarray = field(repr=False)
    outside: np.ndarray = field(repr=False)

    @property
    def decided(self) -> bool:
        return bool(self.members)


@dataclass(frozen=True)
class Verdict:
    """One client: `member`, `contaminated`, or with the `reason` `unusable`, `idle` or `undecided`; and the grounds.

    `modules`: how many it takes part in, and which of them have `voted_out` it; `reach`: how far it is from the others
    by all of them, the middle client's being 1, or None of one without a verdict.
    """

    client: str
    verdict: str
    modules: int
    voted_out: tuple[str, ...]
    reach: float | None = None
    reason: str = ""


def judge(
    clients: list[str],
    findings: dict[str, Finding],
    unusable: Mapping[str, str],
    idle: Mapping[str, str] = MappingProxyType({}),
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Verdict]:
    """`pooled_verdict` of all modules. Copies stand and fall with the client that they copy.

    `unusable`, `idle`: why clients take no part; `renamed`: why some share no module with the others.
    """
    modules = {name: [each for each in findings.values() if name in each.clients] for name in clients}
    originals = {name: _original(name, each) for name, each in modules.items()}
    judged = [name for name in clients if modules[name] and originals[name] == name]
    if len(judged) < LEAST:
        judged = [name for name in clients if modules[name]]
        originals = {name: name for name in clients}
    reaches, belongs = _pooled(judged, list(findings.values()))
    verdicts = {}
    for name, taken in modules.items():
        if name in unusable:
            verdicts[name] = Verdict(name, UNUSABLE, 0, (), reason=unusable[name])
            continue
        if name in idle:
            verdicts[name] = Verdict(name, IDLE, 0, (), reason=idle[name])
            continue
        if not any(each.decided for each in taken):
            why = "none of its modules has a majority" if taken else "too few others have any of its modules"
            verdicts[name] = Verdict(name, UNDECIDED, len(taken), (), reason=renamed.get(name, why))
            continue
        verdict = MEMBER if belongs[originals[name]] else CONTAMINATED
        out = tuple(each.module for each in taken if each.decided and name not in each.members)
        reach = reaches[originals[name]]
        verdicts[name] = Verdict(name, verdict, len(taken), out, None if np.isnan(reach) else reach)
    return verdicts


def _pooled(names: list[str], findings: list[Finding]) -> tuple[dict[str, float], dict[str, bool]]:
    """In a module without a majority nobody is voted out; its distances count."""
    if not names:
        return {}, {}
    shape = (len(findings), len(names))
    whole, outside = np.zeros((2, *shape, len(names)))
    members, present = np.zeros((2, *shape), bool)
    for layer, each in enumerate(findings):
        here = [place for place, name in enumerate(names) if name in each.clients]
        there = [each.clients.index(names[place]) for place in here]
        # In this module copies are not compared: near each other they are no evidence.
        first = np.array([each.copies.get(name, name) for name in each.clients])
        whole[layer][np.ix_(here, here)] = np.where(first[:, None] == first, np.nan, each.whole)[np.ix_(there, there)]
        outside[layer][np.ix_(here, here)] = each.outside[np.ix_(there, there)]
        present[layer, here] = True
        members[layer, here] = [not each.decided or names[place] in each.members for place in here]
    found = (np.asarray(each).tolist() for each in pooled_verdict(whole, outside, members, present))
    reaches, belongs = (dict(zip(names, each, strict=True)) for each in found)
    return reaches, belongs


def _original(name: str, modules: list[Finding]) -> str:
    """Whom a client copies in most of its modules; or itself."""
    copied = Counter(each.copies.get(name, name) for each in modules)
    return next((other for other, times in copied.items() if 2 * times > len(modules)), name)
