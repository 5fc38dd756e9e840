"""Whether clients share a task, from adapters that they trained on halves of their data."""

from dataclasses import dataclass

import numpy as np

from .. import _validate
from .._validate import LEAST
from ._folder import Folder, read_folder
from ._pool import Pool
from ._products import Pair, inner_products
from ._refine import Refinement


HALVES = ("half-a", "half-b")
SAME_START, OWN_STARTS = 0.7, 1.4  # ρ from which sharing helps; where starts differ, the correction doubles it
ONE_START = 0.5  # overlap of row spaces, of adapters that started from one A


@dataclass(frozen=True)
class Halves:
    """ρ: how much halves of different clients agree, where a client's own two are 1."""

    clients: tuple[str, ...]
    rho: float
    least: float

    @property
    def shared(self) -> bool:
        return self.rho >= self.least


def halves(refinement: Refinement, pool: Pool) -> tuple[Halves | None, list[str]]:
    """Of the members who sent both, in `CLIENT/half-a` and `CLIENT/half-b`, and why others' halves are not used.

    Agreement is the cosine of the updates, all modules together, over the overlap of their row spaces.
    """
    found: dict[str, tuple[Folder, ...]] = {}
    notices = []
    for name in refinement.members:
        path = refinement.adapters.clients[name].path
        if any((path / half).is_dir() for half in HALVES):
            try:
                found[name] = tuple(read_folder(path / half, f"{name}, {half}") for half in HALVES)
            except (ValueError, OSError) as error:
                notices.append(f"client {name}: its halves are not used: {error}")
    if len(found) < LEAST:
        return None, notices
    folders = [half for both in found.values() for half in both]
    cosines, overlaps = np.zeros((2, len(folders), len(folders)))
    for module in pool.modules:
        having = [place for place, folder in enumerate(folders) if module in folder.modules]
        pairs = [_usable(folders[place], module) for place in having]
        if len(having) < 2 or {(up.shape[0], down.shape[1]) for up, down in pairs} != {
            refinement.findings[module].shape
        }:
            continue
        both = np.ix_(having, having)
        table = inner_products(pairs)
        sizes = np.sqrt(np.maximum(np.diag(table), 1e-300))
        cosines[both] += table / np.outer(sizes, sizes)
        overlaps[both] += _overlaps([down for _, down in pairs])
    agreement = cosines / np.where(overlaps > 0, overlaps, 1)
    client = np.arange(len(folders)) // 2
    own, others = client[:, None] == client, client[:, None] != client
    np.fill_diagonal(own, False)
    start = (overlaps / np.max(np.diag(overlaps)))[others].mean()
    within = agreement[own].mean()
    rho = agreement[others].mean() / within if within > 0 else 0.0  # a client that disagrees with itself tells nothing
    least = SAME_START if start >= ONE_START else OWN_STARTS
    return Halves(tuple(found), float(rho), least), notices


def _usable(folder: Folder, module: str) -> Pair:
    pair = folder.product(module)
    if not all(np.isfinite(factor).all() for factor in pair):
        raise _validate.fail(f"client {folder.name}: module {module}", "finite", "NaN or infinite values")
    return pair


def _overlaps(downs: list[np.ndarray]) -> np.ndarray:
    """tr(P_j P_k) / √(r_j r_k) of the projectors on the row spaces."""
    bases = [np.linalg.qr(down.T)[0] for down in downs]
    together = np.hstack(bases)
    starts = np.cumsum([0, *(basis.shape[1] for basis in bases[:-1])])
    squares = np.square(together.T @ together)
    table = np.add.reduceat(np.add.reduceat(squares, starts, 0), starts, 1)
    ranks = np.sqrt([basis.shape[1] for basis in bases])
    return table / np.outer(ranks, ranks)
