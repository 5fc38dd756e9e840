"""Who belongs, by all modules together; and the refined factors of those who do."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _validate, alignment
from .._validate import LEAST
from ..alignment import LowRankMatrices, RefinedFactors
from ._adapters import Adapters, too_few
from ._numbers import Numbers, examine
from ._options import AUTO, ROWS, check_options
from ._verdict import IDLE, UNUSABLE, ClientVerdict, Finding, judge


TOLERANCE = 0.05
OWN = "own"  # rank, of what is handed out to clients who go on with it
ONE_START = 0.5  # overlap of row spaces, of adapters that started from one A
CLIP = 1.5  # times the usual size of a module, the most of a client that enters what is shared


@dataclass(frozen=True)
class Refinement:
    """What `refine` found with its arguments; `save` writes it. `findings` by module, `verdicts` by client."""

    adapters: Adapters
    findings: dict[str, Finding]
    verdicts: dict[str, ClientVerdict]
    rank: int | str | None
    tolerance: float
    shrink: bool
    shared: str
    notices: tuple[str, ...]
    shared_rank: int | None = None
    included: tuple[str, ...] = ()

    @property
    def members(self) -> list[str]:
        """By their verdicts, or because they were `included`."""
        return [name for name, verdict in self.verdicts.items() if verdict.member or name in self.included]

    def members_of(self, module: str) -> list[str]:
        """Clients refined in a module: the members that have it."""
        members = self.members
        return [name for name in self.findings[module].clients if name in members]

    def rank_of(self, name: str, module: str) -> int | None:
        """The rank of what a client gets, where it was said."""
        if isinstance(self.rank, str):
            return self.adapters.clients[name].modules[module].rank
        return self.rank

    def refined(self, module: str, shared: str | None = None) -> tuple[LowRankMatrices, RefinedFactors]:
        """The reported factors of `members_of(module)`, and CLAIR's by rows or columns; None is as `refine` was told.

        CLAIR takes of each at most 1.5 times the middle one's size. Compiles.

        **Raises:** `ValueError` for a module without members.
        """
        shared = shared or (ROWS if self.shared == AUTO else self.shared)
        members = self.members_of(module)
        if not members:
            raise ValueError(f"module {module} must have members to be refined, got none.")
        weights = self.adapters.factors(module, members, filled(len(members)))
        counted = np.arange(weights.shape[0]) < len(members)
        clipped = _clipped(weights, len(members))
        refined = alignment.refine(clipped, counted, rank=self.shared_rank, shared=shared, shrink=self.shrink)
        return jax.tree.map(lambda leaf: _some(leaf, len(members)), weights), _first(refined, len(members))


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
    """Say of each client how its adapter stands to the others', by direction, size and row space.

    The verdict is `clairjax.alignment.pool`'s, by all modules together. It is *member*, *rescaled*, *sign-flipped*,
    *unrelated*, *other rows* or *undecided*, relative to what is usual in the fleet, with a sentence that says why.
    Ranks may differ, and clients may lack modules. A client with NaN or infinite values, or too large for float32, is
    *unusable*, and so is a client that `load` found at fault. A client that sent zeros is *idle*. Members are those
    who agree with the others as is usual, also where they are rescaled.

    No verdict from factors can tell a task of one's own from a wrong task. Nor can it tell a backdoor in a part of
    the data, or whether sharing helps. If half of the clients collude, theirs is what is usual.

    **Args:**

    - `adapters`, of `load`.
    - `rank`: of the factors that `save` writes. None is the smallest whose relative Frobenius error is at most
      `tolerance` for all members of a module. `tolerance`: between 0 and 1.
    - `shrink`: as in `clairjax.clair`.
    - `shared`: what members share, "rows" or "columns", of rank `shared_rank` or as found; or "auto", as `save` sees.
      Adapters that started from one A keep nearly all of its row space, whatever they learned. What they have in
      common is in B, and the columns tell of it.
    - `include`: names of clients that are members whatever the verdict, as long as their numbers can be used.
    - `progress`: called with a module's name before its turn.

    **Returns:** `Refinement`. Nothing is written.

    **Raises:** `ValueError` for arguments out of range, and when fewer than three clients can be used.

    **Source:** CLAIR, section 8, refines attention matrices one by one; this verdict is not in the paper.

    **Cost:** reads every module twice; as `pool`, and nothing is compiled. Memory of one module.

    >>> import clairjax as cj
    >>> cj.adapters.refine(cj.adapters.load(folders), rank=0)  # doctest: +SKIP
    Traceback (most recent call last):
    ValueError: rank must be an integer of at least 1, got 0.
    """
    if rank is not None:
        _validate.at_least(rank, "rank", 1)
        _check_fits(rank, adapters)
    _validate.between(tolerance, "tolerance", 0, 1)
    check_options(shared=shared, shared_rank=shared_rank, shrink=shrink)
    if unknown := [name for name in include if name not in adapters.clients]:
        raise _validate.fail("include", f"among the clients, {', '.join(adapters.clients)}", unknown[0])
    numbers = examine(adapters)
    if unusable := [name for name in include if name in numbers.apart]:
        raise _validate.fail("include", "clients that can be used", f"{unusable[0]}: {numbers.apart[unusable[0]]}")
    if (usable := len(adapters.clients) - len(numbers.apart)) < LEAST:
        raise too_few(usable, numbers.apart)
    notices, voters = list(adapters.notices), {}
    for module, having in adapters.modules.items():
        mine = tuple(name for name in having if numbers.votes(name, module))
        if len(mine) < LEAST:
            notices.append(f"module {module}: fewer than {LEAST} usable clients adapt it, so it is kept as it is")
        else:
            voters[module] = mine
    notices += [
        f"client {name}: zeros in {len(modules)} module(s), which count as not adapted, as {modules[0]}"
        for name, modules in numbers.zeros.items()
    ]
    findings, verdicts, overlap = judge(adapters, voters, _apart(numbers), progress)
    if shared == ROWS and overlap >= ONE_START:
        notices.append(
            f"clients' row spaces overlap by {overlap:.0%}, as where all start from one A, so that by rows hardly "
            "anything is averaged; what was learned is in the columns: shared='columns', --shared columns"
        )
    rank = None if rank is None else int(rank)
    shared_rank = None if shared_rank is None else int(shared_rank)
    arguments = rank, float(tolerance), bool(shrink), shared, tuple(notices), shared_rank, tuple(include)
    return Refinement(adapters, findings, verdicts, *arguments)


def _check_fits(rank: int, adapters: Adapters) -> None:
    for module, (first, *_) in adapters.modules.items():
        side = min(adapters.clients[first].modules[module].matrix)
        if rank > side:
            raise _validate.fail("rank", f"at most {side}, the smallest side of module {module}", rank)


def _apart(numbers: Numbers) -> dict[str, tuple[str, str]]:
    kinds = ((UNUSABLE, numbers.unusable), (IDLE, numbers.idle))
    return {name: (kind, why) for kind, whys in kinds for name, why in whys.items()}


def filled(clients: int) -> int:
    """The next of 4, 6, 8, 12, 16, 24, …: with clients of zeros, who do not count, few numbers are compiled for."""
    power = 2 ** max(2, (clients - 1).bit_length())
    return power * 3 // 4 if power > 4 and clients <= power * 3 // 4 else power


def _some(each: Array, members: int) -> Array:
    """By NumPy: a slice would be compiled."""
    return jax.device_put(np.asarray(each)[:members])


def _first(refined: RefinedFactors, members: int) -> RefinedFactors:
    """Of the clients who count; without the zeros of the others in what is common."""
    up, down = np.asarray(refined.common_up), np.asarray(refined.common_down)
    kept = np.any(up != 0, axis=0)
    return RefinedFactors(
        own_up=_some(refined.own_up, members),
        own_down=_some(refined.own_down, members),
        common_up=jax.device_put(up[:, kept]),
        common_down=jax.device_put(down[kept]),
        common_share=_some(refined.common_share, members),
    )


def _clipped(weights: LowRankMatrices, members: int) -> LowRankMatrices:
    """A client that sent ten times its update would be most of the mean."""
    sizes = np.sqrt(np.asarray(weights.squared_norms(), np.float64))
    most = CLIP * np.median(sizes[:members])
    share = np.minimum(1, most / np.where(sizes > 0, sizes, 1))
    return eqx.tree_at(lambda each: each.scale, weights, weights.scale * jnp.asarray(share, weights.dtype))
