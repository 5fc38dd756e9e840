"""Claim: a sweep computes more replicates a second than the same jitted replicate called one at a time.

A replicate draws section 7's data and runs `clair` on it. NumPy's replicate is handed data and penalties and only
runs the paper's procedure, Algorithm 1 to 1e-6 of the optimum (it is told at which step), vote and refinement.
"""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

import clairjax as cj
from clairjax import sweep

from . import _measure, _numpy, _problems
from ._report import Check, Report


class Cell(NamedTuple):
    clients: int
    inputs: int


class Size(NamedTuple):
    cells: tuple[Cell, ...]
    replicates: int
    widths: tuple[int | None, ...]  # lanes; None is what the sweep chooses


FULL = Size((Cell(10, 10), Cell(20, 50)), 96, (None, 1, 8, 32))
QUICK = Size((Cell(5, 10),), 4, (None, 2))
KEY = 3


def replicate(key: jax.Array, cell: Cell) -> dict[str, jax.Array]:
    problem = _problems.section_7(cell.clients, cell.inputs).generate(key=key)
    found = cj.clair(problem.estimates)
    error = ((found.refined - problem.weights) ** 2).sum((1, 2)).mean()
    return {"error": error, "correct": (found.members == problem.members).all()}


def measure(quick: bool) -> Report:
    size = QUICK if quick else FULL
    rows, checks = [], []
    for cell in size.cells:
        new = [_one_at_a_time(cell, size.replicates), _numpy_row(cell)]
        new += [_swept(cell, size.replicates, width) for width in size.widths]
        for row in new:
            row["× faster"] = row["replicates/s"] / new[0]["replicates/s"]
            row["differs"] = _difference(row.pop("errors"), new[0]["errors"]) if row is not new[0] else None
        del new[0]["errors"]
        rows += new
        name = f"K = {cell.clients}, p = q = {cell.inputs}"
        checks += [
            Check(f"{name}: sweep against one at a time", new[2]["× faster"], 1, at_least=True),
            Check(f"{name}: relative difference", max(row["differs"] for row in new[2:]), 1e-10),
        ]
    return Report("replicates a second of a sweep and of single calls, float64", rows, checks)


def _one_at_a_time(cell: Cell, replicates: int) -> dict[str, Any]:
    keys = [sweep.replicate_key(jax.random.key(KEY), cell, i) for i in range(replicates)]
    start = time.perf_counter()
    compiled = jax.jit(lambda key: replicate(key, cell)).lower(keys[0]).compile()
    seconds = time.perf_counter() - start
    jax.block_until_ready(compiled(keys[0]))
    run = lambda: [jax.block_until_ready(compiled(key)) for key in keys]
    timing, outputs = _measure.plain(run, repeats=1)
    errors = np.array([output["error"] for output in outputs])
    return _row(cell, "jitted, one at a time", replicates, timing.run, seconds) | {"errors": errors}


def _swept(cell: Cell, replicates: int, width: int | None) -> dict[str, Any]:
    results = sweep.run(
        replicate, [cell], key=jax.random.key(KEY), replicates=replicates, lane_width=width, progress=False
    )
    chosen = results.manifest["arguments"]["lane_width"]
    computed = -(-replicates // chosen) * chosen  # the last block is computed whole
    name = f"sweep, {chosen} lanes" + (" (its choice)" if width is None else "")
    row = _row(cell, name, computed, results.run_seconds[cell], results.compile_seconds[cell])
    return row | {"errors": results[cell]["error"]}


def _numpy_row(cell: Cell) -> dict[str, Any]:
    key = sweep.replicate_key(jax.random.key(KEY), cell, 0)
    weights = np.asarray(_problems.section_7(*cell).generate(key=key).estimates)
    penalty = _problems.penalty(weights)
    solution = cj.decompose(weights, cj.Penalty(*penalty), solver=cj.Factored(rtol=1e-9))
    rank, share = int(solution.rank), 1 / cell.clients
    steps = _numpy.steps_needed(weights, penalty, share, float(solution.objective) * (1 + 1e-6))

    def procedure() -> np.ndarray:
        low_rank = _numpy.low_rank_after(steps, weights, penalty, share, _numpy.svt_by_gram)
        return _numpy.vote_and_refine(weights, _numpy.projector(low_rank, rank))

    timing, _ = _measure.plain(procedure, repeats=3)
    return _row(cell, "NumPy", 1, timing.run, 0.0) | {"steps": steps, "errors": None}


def _row(cell: Cell, name: str, replicates: int, seconds: float, compile_seconds: float) -> dict[str, Any]:
    return {
        "K": cell.clients,
        "p = q": cell.inputs,
        "how": name,
        "replicates/s": replicates / seconds,
        "run s": seconds / replicates,
        "compile s": compile_seconds,
    }


def _difference(errors: np.ndarray | None, expected: np.ndarray) -> float | None:
    return None if errors is None else float(np.abs(errors / expected - 1).max())
