"""What the members share of each module: their median, one for all, or CLAIR's part for each."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..alignment import Factored
from ._folder import Folder
from ._names import GLOBAL
from ._pool import Pool
from ._products import Pair, Spectrum, Tables, balanced, distance, in_type, norm, rank_within, spectrum, tables
from ._refine import Refinement
from ._store import Store
from ._tensors import FLOATS


MEDIAN = "median"
LARGE = 256  # the rank from which what all share is cut where that costs a client little
LITTLE = 0.25  # of the tolerance
HALF = 0.5  # of the tolerance is for the median, from which clients' adapters are made


class Theirs(NamedTuple):
    """What a client shares of a module: `own`, none of the median, and `share` · `common`, whose tables are known."""

    own: Pair | None
    share: float
    common: Pair
    known: Tables


@dataclass(frozen=True)
class Shared:
    """`space`: "median", or CLAIR's "rows" or "columns"; `ranks` of CLAIR's spaces, and whether at the bound."""

    space: str
    refinement: Refinement
    store: Store
    template: Folder
    places: dict[str, dict[str, int]] = field(default_factory=dict)
    ranks: dict[str, tuple[int, bool]] = field(default_factory=dict)
    coefficients: dict[tuple[str, str], float] = field(default_factory=dict)

    def parts(self, name: str, module: str) -> Theirs | None:
        """None of a module that a client does not share."""
        if name not in self.places.get(module, ()):
            return None
        if self.space == MEDIAN:
            place = self.template.modules[module]
            up, down = self.store.get(GLOBAL, [place.up_key, place.down_key])
            rank = self.refinement.rank_of(name, module)  # the best approximations of smaller ranks are its parts
            median = up[:, :rank].astype(np.float64), down[:rank].astype(np.float64)
            return Theirs(None, 1.0, median, tables(median))
        number = self.places[module][name]
        keys = [f"up.{number}", f"down.{number}", "up", "down", "columns", "rows"]
        own_up, own_down, up, down, *known = (
            each.astype(np.float64) for each in self.store.get(self._part(module), keys)
        )
        return Theirs((own_up, own_down), self.coefficients[name, module], (up, down), Tables(*known))

    def _part(self, module: str) -> str:
        return f"{list(self.places).index(module)}"

    def write_parts(self, progress: Callable[[str], Any] | None) -> None:
        """CLAIR's, module by module."""
        for module, places in self.places.items():
            if progress is not None:
                progress(module)
            weights, refined = self.refinement.refined(module, self.space)
            common: Pair = (np.asarray(refined.common_up, np.float64), np.asarray(refined.common_down, np.float64))
            if (rank := common[0].shape[1]) > min(LARGE, *refined.shape[1:]):
                found = spectrum(common)
                least = min(norm(pair) for pair in zip(*_both(weights), strict=True)) if rank > LARGE else 0
                common = balanced(found, rank_within(found.values, LITTLE * self.refinement.tolerance * least))
            ups, downs = (np.asarray(side) for side in (refined.own_up, refined.own_down))
            own = {f"up.{k}": up for k, up in enumerate(ups)} | {f"down.{k}": one for k, one in enumerate(downs)}
            sides = {"up": common[0].astype(ups.dtype), "down": common[1].astype(ups.dtype)}
            known = tables((sides["up"].astype(np.float64), sides["down"].astype(np.float64)))._asdict()
            whole = {key: np.ascontiguousarray(one) for key, one in (own | sides | known).items()}
            self.store.put(self._part(module), whole)
            for name, share in zip(places, np.asarray(refined.common_share).tolist(), strict=True):
                self.coefficients[name, module] = share
            self.ranks[module] = self._rank(module, refined)

    def _rank(self, module: str, refined: Any) -> tuple[int, bool]:
        """Of the space that was used, and whether the search for it ended at its bound."""
        if self.refinement.shared_rank is not None:
            return self.refinement.shared_rank, False
        down, up = (np.asarray(side, np.float64) for side in (refined.own_down, refined.own_up))
        rows = np.concatenate(down if self.space == "rows" else up.swapaxes(1, 2))
        values = np.linalg.eigvalsh(rows.T @ rows if len(rows) > rows.shape[1] else rows @ rows.T)
        rank = int(np.sum(values > 1e-9 * values[-1]))
        return rank, rank >= Factored().max_rank


def _both(weights: Any) -> tuple[np.ndarray, np.ndarray]:
    up, down, scale = (np.asarray(part, np.float64) for part in (weights.up, weights.down, weights.scale))
    return up, scale[:, None, None] * down


@dataclass(frozen=True)
class Median:
    """The median's factors as written: by module their rank and relative error; whose configuration they have.

    `adapted`: the modules that this client has.
    """

    template: Folder
    adapted: tuple[str, ...]
    ranks: dict[str, int]
    errors: dict[str, float]


def median_tensors(
    refinement: Refinement, pool: Pool, progress: Callable[[str], Any] | None
) -> tuple[Median, dict[str, np.ndarray]]:
    """Under the keys of the clients, of the type that most of them have."""
    clients = refinement.adapters.clients
    first = max(pool.samples, key=lambda name: len(clients[name].modules))
    modules = {
        module: clients[first if first in names else next(iter(names))].modules[module]
        for module, names in pool.clips.items()
    }
    template = Folder(GLOBAL, clients[first].path, clients[first].settings, modules, ())
    tensors: dict[str, np.ndarray] = {}
    ranks, errors = {}, {}
    for module, place in modules.items():
        if progress is not None:
            progress(module)
        whole = pool.median(refinement, module)
        found = spectrum(whole, known := tables(whole))
        length = float(np.linalg.norm(found.values))
        rank = _rank(refinement, module, pool.clips[module], found, length)
        kind = Counter(clients[name].modules[module].kind for name in pool.clips[module]).most_common(1)[0][0]
        factors = in_type(balanced(found, rank), FLOATS[kind])
        check_finite(factors, GLOBAL, module, kind)
        tensors |= dict(zip((place.up_key, place.down_key), factors, strict=True))
        ranks[module], errors[module] = rank, relative(distance(factors, whole, known), length)
    return Median(template, tuple(clients[first].modules), ranks, errors), tensors


def _rank(refinement: Refinement, module: str, names: Iterable[str], found: Spectrum, length: float) -> int:
    said = [rank for name in names if (rank := refinement.rank_of(name, module)) is not None]
    return max(said) if said else rank_within(found.values, HALF * refinement.tolerance * length)


def check_finite(factors: Pair, whose: str, module: str, kind: str) -> None:
    if not all(np.isfinite(factor.astype(np.float64)).all() for factor in factors):
        raise ValueError(f"{whose}: module {module} must fit its file's type, {kind}, got larger values.")


def relative(size: float, length: float) -> float:
    return size / length if length > 0 else 0.0
