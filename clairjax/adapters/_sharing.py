"""How much of what members share each of them gets: one t for the fleet, by evidence or because it was asked for."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._validate import LEAST
from ._choose import CANDIDATES, check_loss, choose
from ._client import blended
from ._command import Command
from ._evidence import Evidence, evidence
from ._halves import Halves
from ._options import AUTO
from ._pool import Pool
from ._refine import Refinement
from ._shared import MEDIAN, Median, Shared
from ._store import Store


Evaluate = Callable[[str, dict[str, np.ndarray]], float]
NOTHING_SHOWS = "nothing shows that it helps a client"


@dataclass(frozen=True)
class Sharing:
    """A client gets t · own + (1 − t) · shared; None: no client's adapter is written.

    `by`: "validation", "halves", "evidence", "asked", "undecided" or "nothing"; `why`: a sentence.
    """

    space: str
    t: float | None
    by: str
    why: str
    evidence: dict[str, float] = field(default_factory=dict)
    rho: float | None = None
    losses: dict[str, dict[float, float]] = field(default_factory=dict)


def find_space(refinement: Refinement, pool: Pool) -> tuple[str, Evidence]:
    """CLAIR's rows or columns where they were asked for, or where most of the deviations lie in few directions."""
    if refinement.shared != AUTO:
        return refinement.shared, Evidence({})
    found = evidence(refinement, pool)
    return found.space or MEDIAN, found


def share(
    refinement: Refinement, pool: Pool, median: Median, store: Store, progress: Callable[[str], Any] | None
) -> tuple[Shared, Evidence]:
    """What members share, when the median lies in the store; and what their deviations tell of it."""
    space, seen = find_space(refinement, pool)
    places = {module: {name: k for k, name in enumerate(names)} for module, names in pool.clips.items()}
    shared = Shared(space, refinement, store, median.template, places)
    if space != MEDIAN:
        shared.write_parts(progress)
    return shared, seen


def undecided(refinement: Refinement) -> Sharing:
    return Sharing(
        MEDIAN, None, "undecided", "nobody is known to belong with others, so that each keeps its own adapter"
    )


def find_sharing(
    shared: Shared, seen: Evidence, blend: float | None, evaluate: Evaluate | Command | None, sent: Halves | None
) -> Sharing:
    """By what was asked for; or by validation; by halves; by what the deviations share."""
    space, shares = shared.space, seen.share
    if blend is not None:
        why = f"t = {blend:g} was asked for; {NOTHING_SHOWS}"
        return Sharing(space, float(blend), "asked", why, shares)
    if evaluate is not None:
        return _validated(shared, seen, evaluate)
    if sent is not None:
        t = 0.0 if sent.shared else 1.0
        found = f"halves of different clients agree {sent.rho:.2f} times as much as a client's own two"
        why = f"{found}; from {sent.least:g} on sharing helps: t = {t:g}"
        return Sharing(space, t, "halves", why, shares, rho=sent.rho)
    if shared.refinement.shared != AUTO:
        return Sharing(space, 0.0, "asked", f"{space} were asked for; {NOTHING_SHOWS}", shares)
    if space != MEDIAN:
        held = f"{shares[space]:.0%} of what is a client's own lies in few {space} that the others' spans, too"
        return Sharing(space, 0.0, "evidence", f"{held}: CLAIR by {space}", shares)
    why = "nothing was given that shows whether sharing helps a client; validation, or halves of its data, would"
    return Sharing(space, None, "nothing", why, shares)


def _validated(shared: Shared, seen: Evidence, evaluate: Evaluate | Command) -> Sharing:
    members = shared.refinement.members
    if len(members) < LEAST:
        why = f"of {len(members)} members no validation can speak for the others: t = 1"
        return Sharing(shared.space, 1.0, "validation", why, seen.share)
    losses = {name: {t: _loss(shared, name, t, evaluate) for t in CANDIDATES} for name in members}
    t = choose(losses)
    gains = {each: float(np.median([mine[1.0] - mine[each] for mine in losses.values()])) for each in CANDIDATES}
    best = max(CANDIDATES, key=gains.__getitem__)
    why = f"by {len(members)} clients' validation the best of {len(CANDIDATES)} candidates is t = {best:g}"
    why += f", a gain of {gains[best]:.3g} for the middle client"
    if t != best:
        why += f", within chance: t = {t:g}" + (f", a gain of {gains[t]:.3g} beyond it" if t < 1 else "")
    return Sharing(shared.space, t, "validation", why, seen.share, losses=losses)


def _loss(shared: Shared, name: str, t: float, evaluate: Evaluate | Command) -> float:
    adapter = blended(shared, name, t)
    if not isinstance(evaluate, Command):
        return check_loss(evaluate(name, adapter.state()), name, t)
    with tempfile.TemporaryDirectory() as folder:
        adapter.write(target := Path(folder) / "adapter")
        return check_loss(evaluate(name, target), name, t)
