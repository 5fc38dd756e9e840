"""One client's adapter, t · own + (1 − t) · shared: its tensors, and its folder."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ._config import CONFIG, refined_fields
from ._folder import WEIGHTS, Folder
from ._pool import scaled
from ._products import Pair, Tables, balanced, distance, in_type, rank_within, spectrum, summed, tables_beside
from ._refine import Refinement
from ._shared import LARGE, Shared, Theirs, check_finite, relative
from ._tensors import FLOATS, wide, write


CARD = "README.md"


@dataclass(frozen=True)
class Part:
    """One module's factors at scale 1, in the file's type; relative to the whole, what they lose and what changed."""

    factors: Pair
    error: float
    change: float

    @property
    def rank(self) -> int:
        return self.factors[0].shape[1]


@dataclass(frozen=True)
class Adapter:
    """A client's folder, and of its modules those that are not as they were."""

    folder: Folder
    parts: dict[str, Part] = field(default_factory=dict)

    def tensors(self) -> tuple[dict[str, np.ndarray], dict[str, int], dict[str, float]]:
        """All of them by the keys they came under, and the modules' ranks and scales."""
        tensors = self.folder.read(self.folder.carried)
        ranks, scales = {}, {}
        for module, place in self.folder.modules.items():
            if part := self.parts.get(module):
                tensors |= dict(zip((place.up_key, place.down_key), part.factors, strict=True))
                ranks[module], scales[module] = part.rank, 1.0
            else:
                tensors |= self.folder.read([place.up_key, place.down_key])
                ranks[module], scales[module] = place.rank, self.folder.settings.scale(module)
        return tensors, ranks, scales

    def state(self) -> dict[str, np.ndarray]:
        """All at scale 1, so that the update is B · A, factors in float32 (float64 stays)."""
        tensors, _, scales = self.tensors()
        for module, place in self.folder.modules.items():
            up, down = wide(tensors[place.up_key]), wide(tensors[place.down_key])
            tensors |= {place.up_key: up * up.dtype.type(scales[module]), place.down_key: down}
        return tensors

    def at_own_scale(self) -> dict[str, np.ndarray]:
        """All at the scales of the client's configuration, whose ranks they have: for one who goes on with it."""
        tensors, _, scales = self.tensors()
        for module, place in self.folder.modules.items():
            whole = tensors[place.up_key], tensors[place.down_key]
            if (scale := self.folder.settings.scale(module)) != scales[module]:
                pair = at_scale(whole, scale, self.folder.name, module, place.kind)
                tensors |= dict(zip((place.up_key, place.down_key), pair, strict=True))
        return tensors

    def facts(self) -> dict[str, dict[str, float]]:
        """For the report, by module."""
        return {
            module: {"rank": part.rank, "truncation_error": part.error, "relative_change": part.change}
            for module, part in self.parts.items()
        }

    def write(self, target: Path) -> None:
        tensors, ranks, scales = self.tensors()
        write_folder(target, tensors, refined_fields(self.folder.settings, ranks, scales), self.folder.path / CARD)


def at_scale(pair: Pair, scale: float, whose: str, module: str, kind: str) -> Pair:
    """Factors of scale 1 as an adapter of this scale has them.

    **Raises:** `ValueError` where they do not fit its type.
    """
    up, down = pair
    with np.errstate(over="ignore"):
        found = in_type((up.astype(np.float64) / scale, down.astype(np.float64)), FLOATS[kind])
    check_finite(found, whose, module, kind)
    return found


def write_folder(
    target: Path, tensors: Mapping[str, np.ndarray], fields: dict[str, Any], card: Path | None = None
) -> None:
    """As PEFT does, with a model card if there is one."""
    target.mkdir(parents=True)
    write(tensors, target / WEIGHTS, metadata={"format": "pt"})
    (target / CONFIG).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if card is not None and card.is_file():
        shutil.copyfile(card, target / CARD)


def blended(shared: Shared, name: str, t: float) -> Adapter:
    """**Raises:** `ValueError` for a rank too small to be worth writing."""
    folder = shared.refinement.adapters.clients[name]
    if t == 1:
        return Adapter(folder)
    parts = {}
    for module in folder.modules:
        if (theirs := shared.parts(name, module)) is not None:
            parts[module] = _part(shared.refinement, name, module, t, theirs)
    return Adapter(folder, parts)


def _part(refinement: Refinement, name: str, module: str, t: float, theirs: Theirs) -> Part:
    own = scaled(refinement, name, module)
    mine = own[0].shape[1]
    few = own if theirs.own is None else summed([(1, own), (1, theirs.own)])
    up, down = summed([(1, few), (1, theirs.common)])
    known = tables_beside(few, theirs.common, theirs.known)
    ranks = mine, few[0].shape[1] - mine, len(theirs.known.rows)
    shares = np.repeat([t, 1 - t, (1 - t) * theirs.share], ranks)
    length, change = known.norm(shares), known.norm(shares - np.repeat([1.0, 0, 0], ranks))
    if not t:  # then its own is no part of it
        up, down, shares = up[:, mine:], down[mine:], shares[mine:]
        known = Tables(*(table[mine:, mine:] for table in known))
    factors = up * shares, down
    # The median alone is cut already; what is large goes side by side, without loss.
    if (t or theirs.own) and (refinement.rank is not None or len(shares) <= LARGE):
        found = spectrum(factors, known.weighed(shares))
        needed = rank_within(found.values, refinement.tolerance * length)
        rank = refinement.rank_of(name, module) or needed
        factors = balanced(found, rank)
        lost = float(np.linalg.norm(found.values[rank:]))
        if rank < mine and lost > max(change, refinement.tolerance * length):
            why = f"at it module {module} of client {name} loses {lost / length:.0%}, more than refining changes"
            raise ValueError(f"rank must be at least {min(mine, needed)}, got {rank}: {why}.")
    kind = refinement.adapters.clients[name].modules[module].kind
    factors = in_type(factors, FLOATS[kind])
    check_finite(factors, f"client {name}", module, kind)
    error = distance(factors, (up, down), known, shares)
    return Part(factors, relative(error, length), relative(change, length))
