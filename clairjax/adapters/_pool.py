"""What the members have in common: the geometric median of their updates, as weights of their matrices."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _validate
from ..alignment import NEAR_COPY
from ._products import Pair, inner_products, summed
from ._refine import CLIP, Refinement


STEPS, STILL = 1000, 1e-9  # Weiszfeld's, and the change of a weight at which he stops
CLOSEST = 1e-6  # of the usual distance: a matrix that is the median itself has a finite weight
Samples = Mapping[str, float]


@dataclass(frozen=True)
class Pool:
    """The median is Σ_k w_k c_mk W_mk in module m, with `weights` w (of those who have m, to sum 1) and `clips` c.

    - `samples`: of each member, 1 if nothing was said; `votes`: their parts of the votes, of sum 1;
    - `agreement`: of each member, the cosine with the median of the others; `lengths`: usual norms by module.
    """

    samples: dict[str, float]
    votes: dict[str, float]
    weights: dict[str, float]
    clips: dict[str, dict[str, float]]
    agreement: dict[str, float]
    lengths: dict[str, float]

    @property
    def modules(self) -> list[str]:
        return list(self.clips)

    def median(self, refinement: Refinement, module: str) -> Pair:
        """Of one module, as a product of the members' factors side by side."""
        clips = self.clips[module]
        total = sum(self.weights[name] for name in clips)
        shares = {name: self.weights[name] * clip / total for name, clip in clips.items()}
        return summed((share, scaled(refinement, name, module)) for name, share in shares.items())


def scaled(refinement: Refinement, name: str, module: str) -> Pair:
    """A client's factors of a module, at scale 1."""
    return refinement.adapters.clients[name].product(module)


def pool(refinement: Refinement, samples: Samples | None = None, progress: Callable[[str], Any] | None = None) -> Pool:
    """Read every module of the members once. Nothing is in common where no module has two of them."""
    members = refinement.members
    counts = checked_samples(samples, refinement)
    tables, clips, lengths = {}, {}, {}
    for module in refinement.findings:
        names = refinement.members_of(module)
        if len(names) < 2:
            continue
        if progress is not None:
            progress(module)
        table = inner_products([scaled(refinement, name, module) for name in names])
        norms = np.sqrt(np.maximum(np.diag(table), 0))
        lengths[module] = float(np.median(norms))
        clip = np.minimum(1, CLIP * lengths[module] / np.where(norms > 0, norms, 1))
        clips[module] = dict(zip(names, clip.tolist(), strict=True))
        tables[module] = table * np.outer(clip, clip)
    if not clips:
        return Pool({name: counts[name] for name in members}, {}, {}, {}, {}, {})
    groups = _groups(members, clips, tables)
    votes = _votes(np.array([counts[name] for name in members]), groups)
    weights = _weiszfeld(votes, groups)
    found = (votes, weights, _agreement(weights, groups))
    by_name = [dict(zip(members, each.tolist(), strict=True)) for each in found]
    return Pool({name: counts[name] for name in members}, by_name[0], by_name[1], clips, by_name[2], lengths)


def checked_samples(samples: Samples | None, refinement: Refinement) -> dict[str, float]:
    """A number of samples for every client."""
    clients = refinement.adapters.clients
    if samples is None:
        return dict.fromkeys(clients, 1.0)
    if not isinstance(samples, Mapping):
        raise _validate.fail("samples", "a mapping of clients' names to numbers", repr(samples))
    if unknown := [name for name in samples if name not in clients]:
        raise _validate.fail("samples", f"of the clients, {', '.join(clients)}", f"{unknown[0]!r}")
    if missing := [name for name in refinement.members if name not in samples]:
        raise _validate.fail("samples", "of every member", f"none of client {missing[0]}")
    for name, count in samples.items():
        if not isinstance(count, int | float) or not 0 < count < float("inf"):
            raise _validate.fail(f"samples of client {name}", "a positive number", repr(count))
    return {name: float(count) for name, count in samples.items()}


Groups = list[tuple[np.ndarray, np.ndarray, float]]  # places of clients, inner products, usual square of a norm


def _groups(members: list[str], clips: Mapping[str, Collection[str]], tables: Mapping[str, np.ndarray]) -> Groups:
    """Modules that the same members have count together."""
    places = {module: tuple(members.index(name) for name in names) for module, names in clips.items()}
    groups: Groups = []
    for group in dict.fromkeys(places.values()):
        mine = [tables[module] for module, own in places.items() if own == group]
        usual = sum(float(np.median(np.diag(table))) for table in mine)
        groups.append((np.array(group), np.sum(mine, axis=0), usual))
    return groups


def _votes(samples: np.ndarray, groups: Groups) -> np.ndarray:
    """In proportion to the samples, which are claims: nobody has more than a third, and near copies have one vote."""
    copies = np.ones(len(samples))
    squares = np.full((len(samples), len(samples)), np.nan)
    for group, table, _ in groups:
        own = np.diag(table)
        mine = np.maximum(own[:, None] + own[None, :] - 2 * table, 0)
        both = np.ix_(group, group)
        squares[both] = np.where(np.isnan(squares[both]), 0, squares[both]) + mine
    pairs = np.sort(squares[np.triu_indices(len(samples), 1)])
    if len(pairs := pairs[~np.isnan(pairs)]):
        copies = (squares <= NEAR_COPY**2 * pairs[len(pairs) // 5]).sum(1)
    return bounded(samples / np.maximum(copies, 1))


def bounded(samples: np.ndarray) -> np.ndarray:
    """Parts of a whole in proportion to the samples, but nobody's over a third where there are three."""
    most = max(1 / 3, 1 / len(samples))
    samples, free = samples / samples.max(), np.ones(len(samples), bool)  # whose sum is finite
    parts = samples / samples.sum()
    while np.any(over := free & (parts > most * (1 + 1e-12))):
        free &= ~over
        parts = np.where(free, samples / max(samples[free].sum(), 1e-300) * (1 - most * np.sum(~free)), most)
    return parts


def _weiszfeld(votes: np.ndarray, groups: Groups) -> np.ndarray:
    """Weights of the point x least Σ_k votes_k ‖x − W_k‖, the norm over a client's modules taken up to all of them."""
    weights = votes
    for _ in range(STEPS):
        squares = _squares(weights, groups)
        new = votes / np.sqrt(np.maximum(squares, CLOSEST**2 * max(np.median(squares), 1e-300)))
        new /= new.sum()
        if np.abs(new - weights).max() < STILL:
            return new
        weights = new
    return weights


def _squares(weights: np.ndarray, groups: Groups) -> np.ndarray:
    squares, sizes = np.zeros((2, len(weights)))
    for group, table, usual in groups:
        share = weights[group] / weights[group].sum()
        squares[group] += np.maximum(np.diag(table) - 2 * table @ share + share @ table @ share, 0)
        sizes[group] += usual
    whole = sum(usual for *_, usual in groups)
    return squares * whole / np.where(sizes > 0, sizes, 1)


def _agreement(weights: np.ndarray, groups: Groups) -> np.ndarray:
    """Of each with the others' median, all modules together."""
    inner, own, others = np.zeros((3, len(weights)))
    for group, table, _ in groups:
        rest = np.where(np.eye(len(group), dtype=bool), 0, weights[group])
        rest /= np.maximum(rest.sum(1, keepdims=True), 1e-300)
        inner[group] += np.sum(rest * table, axis=1)
        own[group] += np.diag(table)
        others[group] += np.einsum("kj,jl,kl->k", rest, table, rest)
    size = np.sqrt(np.maximum(own * others, 0))
    return np.where(size > 0, inner / np.where(size > 0, size, 1), 0)
