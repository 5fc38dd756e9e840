"""Refined factors of one module, in the types of the clients' files, and what they lose."""

from pathlib import Path
from typing import Any

import numpy as np

from ..alignment import LowRankMatrices
from ..alignment._compress import Spectra, balanced, change_norms, rank_within, spectra, truncation_errors
from ._refine import Refinement
from ._tensors import FLOATS, write


def write_part(refinement: Refinement, module: str, path: Path) -> dict[str, Any]:
    """All members in one file; names are numbers, not the clients' or the module's."""
    names = refinement.members_of(module)
    weights, refined = refinement.refined(module)
    found = spectra(refined)
    errors = np.asarray(truncation_errors(found.values))
    needed = max(1, int(rank_within(found.values, refinement.tolerance).max()))
    rank = needed if refinement.rank is None else refinement.rank
    at_rank = errors[:, min(rank, errors.shape[1] - 1)]
    lengths = np.linalg.norm(np.asarray(found.values), axis=1)
    changes = np.asarray(change_norms(refined, weights))
    for name, own, error, length, change in zip(names, weights.ranks.tolist(), at_rank, lengths, changes, strict=True):
        if rank < own and error * length > max(change, refinement.tolerance * length):
            why = f"at it module {module} of client {name} loses {error:.0%}, more than refining changes"
            raise ValueError(f"rank must be at least {min(own, needed)}, got {rank}: {why}.")
    factors = balanced(found, rank)
    kinds = [refinement.adapters.clients[name].modules[module].kind for name in names]
    ups, downs = _in_types(factors.up, kinds), _in_types(factors.down, kinds)
    for name, kind, up, down in zip(names, kinds, ups, downs, strict=True):
        if not (np.isfinite(up).all() and np.isfinite(down).all()):
            raise ValueError(f"client {name}: module {module} must fit its file's type, {kind}, got larger values.")
    lost = np.array([_lost(found, factors, k, up, down) for k, (up, down) in enumerate(zip(ups, downs, strict=True))])
    sides = {"up": ups, "down": downs}
    write({f"{side}.{k}": one for side, factor in sides.items() for k, one in enumerate(factor)}, path)
    return {
        "rank": rank,
        "places": {name: k for k, name in enumerate(names)},
        "error": dict(zip(names, _relative(lost, lengths), strict=True)),
        "change": dict(zip(names, _relative(changes, lengths), strict=True)),
    }


def _relative(sizes: np.ndarray, lengths: np.ndarray) -> list[float]:
    return np.where(lengths > 0, sizes / np.where(lengths > 0, lengths, 1), 0).tolist()


def _in_types(factors: Any, kinds: list[str]) -> list[np.ndarray]:
    with np.errstate(over="ignore"):  # looked at afterwards
        pairs = zip(np.asarray(factors), kinds, strict=True)
        return [np.ascontiguousarray(one).astype(FLOATS[kind]) for one, kind in pairs]


def _lost(found: Spectra, factors: LowRankMatrices, client: int, up: np.ndarray, down: np.ndarray) -> float:
    """‖B'A' − W̃‖_F of one client, B' and A' as written: with T what truncation cuts off and Δ = B'A' − BA, the root
    of ‖Δ‖² − 2⟨Δ, T⟩ + ‖T‖². Here ⟨Δ, T⟩ = ⟨B'A', T⟩, and Δ = δB·A' + B·δA loses no digits."""
    exact_up, exact_down, values, left, right = (
        np.asarray(part)[client] for part in (factors.up, factors.down, found.values, found.up, found.down)
    )
    up, down, kept = up.astype(exact_up.dtype), down.astype(exact_up.dtype), min(up.shape[1], len(values))
    along = np.sum((up.T @ left[:, kept:]) * (down @ right[kept:].T) * values[kept:])
    columns, rows = np.hstack([up - exact_up, exact_up]), np.vstack([down, down - exact_down])
    rounded = np.sum((columns.T @ columns) * (rows @ rows.T))
    return float(np.sqrt(max(rounded - 2 * along + np.sum(np.square(values[kept:])), 0)))
