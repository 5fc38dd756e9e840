"""Whether members' deviations share a row or column space that is not that of the start."""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from ._options import COLUMNS, ROWS
from ._pool import Pool, scaled
from ._products import Pair, _roots
from ._refine import Refinement


MODULES, CLIENTS = 12, 24  # that are looked at
FEW = 3  # of a client's directions it is a third that must hold most: with one A all of them together do
MOST = 0.7  # of the energy of the deviations


@dataclass(frozen=True)
class Evidence:
    """`share`: of the energy of a half's deviations, in the other half's leading directions, by space."""

    share: dict[str, float]

    @property
    def space(self) -> str | None:
        best = max(self.share, key=self.share.__getitem__, default=None)
        return best if best is not None and self.share[best] >= MOST else None


def evidence(refinement: Refinement, pool: Pool) -> Evidence:
    """Of at most twelve modules; of fewer than four members, or of rank 1, there is none."""
    modules = pool.modules[:: max(1, -(-len(pool.modules) // MODULES))]
    found: dict[str, list[float]] = {ROWS: [], COLUMNS: []}
    for module in modules:
        names = list(islice(pool.clips[module], CLIENTS))
        pairs = [scaled(refinement, name, module) for name in names]
        rank = int(np.median([up.shape[1] for up, _ in pairs]))
        if len(names) < 4 or rank < 2:
            continue
        cores = _cores(pairs)
        for space, stack in ((ROWS, cores), (COLUMNS, cores.transpose(0, 2, 1))):
            found[space].append(_held(stack, max(1, rank // FEW)))
    return Evidence({space: float(np.mean(shares)) for space, shares in found.items() if shares})


def _cores(pairs: list[Pair]) -> np.ndarray:
    """The matrices in orthonormal coordinates of all their columns and rows: as large as the sum of the ranks."""
    left = _coordinates([up for up, _ in pairs])
    right = _coordinates([down.T for _, down in pairs])
    return np.stack([one @ other.T for one, other in zip(left, right, strict=True)])


def _coordinates(factors: list[np.ndarray]) -> list[np.ndarray]:
    columns = np.hstack(factors)
    values, turn = _roots(columns.T @ columns)
    return np.split(values[:, None] * turn.T, np.cumsum([factor.shape[1] for factor in factors[:-1]]), axis=1)


def _held(stack: np.ndarray, rank: int) -> float:
    """Rows of each half in the leading directions of the other half's, deviations from the half's mean."""
    halves = [each - each.mean(0) for each in (stack[::2], stack[1::2])]
    shares = []
    for mine, others in (halves, halves[::-1]):
        _, vectors = np.linalg.eigh(np.einsum("kij,kil->jl", others, others))
        held = np.sum(np.square(mine @ vectors[:, -rank:]), axis=(1, 2))
        whole = np.sum(np.square(mine), axis=(1, 2))
        shares += (held / np.where(whole > 0, whole, 1)).tolist()
    return float(np.median(shares))
