"""Claim: `Factored` reaches the optimum of the convex program 150 times faster than NumPy's Algorithm 1.

Section 7 data at p = q = 50, K = 20 in float64. Every solver gets the same clients and penalties and must come within
1e-6 of the optimal objective. `Factored` and `ProximalGradient` pay for the duality gap that tells them so; NumPy is
told beforehand at which step it gets there and runs exactly so many, see `_numpy.py`. The SVD row times a few steps
and multiplies. Times are per replicate; "× cpu" compares processor time, summed over threads: what is left of the
ratio if NumPy computed a replicate on each core at no loss. The batch that counts runs in turn, as a sweep of lanes
of this size does on a CPU.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

import clairjax as cj

from . import _measure, _numpy, _problems
from ._report import Check, Report


RTOL = 1e-6


class Size(NamedTuple):
    clients: int
    inputs: int
    lanes: int
    repeats: int
    scales: tuple[float, ...]  # of both penalties


FULL = Size(20, 50, 16, 5, (1.0, 0.25))
QUICK = Size(5, 10, 2, 1, (1.0,))


def measure(quick: bool) -> Report:
    size = QUICK if quick else FULL
    batch = _problems.estimates(size.clients, size.inputs, size.lanes)
    first = _problems.penalty(np.asarray(batch[0]))
    rows, checks = [], []
    for scale in size.scales:
        new_rows, new_checks = _at_penalty(size, batch, (scale * first[0], scale * first[1]), f"{scale:g}")
        rows += new_rows
        checks += new_checks
    where = f"p = q = {size.inputs}, K = {size.clients}, objective within {RTOL:g}, float64"
    return Report(f"Factored against NumPy's Algorithm 1, {where}", rows, checks)


def _at_penalty(
    size: Size, batch: jax.Array, penalty: tuple[float, float], label: str
) -> tuple[list[dict[str, Any]], list[Check]]:
    tight = cj.decompose(batch[0], cj.Penalty(*penalty), solver=cj.Factored(max_steps=2000, rtol=1e-10))
    best = {"objective": float(tight.objective), "projector": np.asarray(tight.projector), "rank": int(tight.rank)}
    numpy_rows = _numpy_rows(size, np.asarray(batch[0]), penalty, best)
    solvers = {  # with how many lanes, how often
        "ProximalGradient": (cj.ProximalGradient(rtol=RTOL), 1, 1),
        "ProximalGradient, accelerated": (cj.ProximalGradient(accelerate=True, rtol=RTOL), 1, 1),
        "Factored": (cj.Factored(rtol=RTOL), 1, size.repeats),
        f"Factored, {size.lanes} at once": (cj.Factored(rtol=RTOL), size.lanes, size.repeats),
        f"Factored, {size.lanes} in turn": (cj.Factored(rtol=RTOL), size.lanes, size.repeats),
    }
    solver_rows = [
        _solver_row(name, solver, batch[:lanes], penalty, repeats, best)
        for name, (solver, lanes, repeats) in solvers.items()
    ]
    rows = numpy_rows + solver_rows
    fastest, least = (min(row[column] for row in numpy_rows) for column in ("run s", "cpu s"))
    for row in rows:
        row["× faster"] = fastest / row["run s"]
        row["× cpu"] = least / row["cpu s"]
    checks = [
        Check(f"penalty × {label}: faster than NumPy, in the batch", rows[-1]["× faster"], 150, at_least=True),
        Check(f"penalty × {label}: largest objective difference", max(abs(row["objective"]) for row in rows), RTOL),
        Check(f"penalty × {label}: largest projector distance", max(row["projector"] for row in rows), 1e-4),
        Check(f"penalty × {label}: optimality of the objective compared with", float(tight.optimality), 1e-9),
    ]
    return [{"penalty ×": label, **row} for row in rows], checks


def _numpy_rows(
    size: Size, weights: np.ndarray, penalty: tuple[float, float], best: dict[str, Any]
) -> list[dict[str, Any]]:
    pair_weight = 1 / size.clients
    steps = _numpy.steps_needed(weights, penalty, pair_weight, best["objective"] * (1 + RTOL))
    few = min(steps, 5)
    by_gram = lambda: _numpy.low_rank_after(steps, weights, penalty, pair_weight, _numpy.svt_by_gram)
    by_svd = lambda: _numpy.low_rank_after(few, weights, penalty, pair_weight, _numpy.svt_by_svd)
    timing, low_rank = _measure.plain(by_gram, repeats=min(size.repeats, 3))
    svd_timing, _ = _measure.plain(by_svd, repeats=1)
    times = steps / few
    reached = _numpy.objective(_numpy.contrasts(weights), low_rank, penalty, pair_weight)
    found = {
        "steps": steps,
        "objective": reached / best["objective"] - 1,
        "projector": float(np.linalg.norm(_numpy.projector(low_rank, best["rank"]) - best["projector"])),
    }
    return [
        {"solver": "NumPy, SVD", "run s": svd_timing.run * times, "cpu s": svd_timing.cpu * times, **found},
        {"solver": "NumPy, Gram", "run s": timing.run, "cpu s": timing.cpu, **found},
    ]


def _solver_row(
    name: str,
    solver: cj.Factored | cj.ProximalGradient,
    batch: jax.Array,
    penalty: tuple[float, float],
    repeats: int,
    best: dict[str, Any],
) -> dict[str, Any]:
    lanes = len(batch)
    solve = lambda weights: cj.decompose(weights, cj.Penalty(*penalty), solver=solver)
    if lanes == 1:
        timing, found = _measure.jitted(solve, batch[0], repeats=repeats)
        found = jax.tree.map(lambda leaf: leaf[None], found)
    else:
        batched = jax.vmap(solve) if name.endswith("at once") else lambda batch: jax.lax.map(solve, batch)
        timing, found = _measure.jitted(batched, batch, repeats=repeats)
    projector = np.asarray(found.basis[0] @ found.basis[0].T)
    return {
        "solver": name,
        "run s": timing.run / lanes,
        "cpu s": timing.cpu / lanes,
        "steps": int(found.steps.max()),
        "objective": float(found.objective[0]) / best["objective"] - 1,
        "projector": float(np.linalg.norm(projector - best["projector"])),
        "gap": float(found.optimality.max()),
        "compile s": timing.compile,
    }
