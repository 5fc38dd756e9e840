"""Claim: the solvers find the optimum that a convex modelling library finds, on a case small enough for it.

The program is `convex_program` of `tests/reference.py`, written with CVXPY from the paper alone.
Needs the extra `dev`.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

import clairjax as cj

from . import _measure, _problems
from ._report import Check, Report


REFERENCE = Path(__file__).parent.parent / "tests" / "reference.py"
RTOL = 1e-7


def measure(quick: bool) -> Report:
    clients, size = (4, 5) if quick else (5, 6)
    repeats = 1 if quick else 5
    weights = _problems.planted(clients, size, rank=1)[0].astype(np.float64)
    penalty = _problems.penalty(weights)
    reference = _reference()
    solvers: dict[str, cj.Factored | cj.ProximalGradient] = {
        "ProximalGradient": cj.ProximalGradient(rtol=RTOL),
        "ProximalGradient, accelerated": cj.ProximalGradient(accelerate=True, rtol=RTOL),
        "Factored": cj.Factored(rtol=RTOL),
    }
    timing, modelled = _measure.plain(
        lambda: reference.convex_program(weights, penalty, pair_weights=1 / clients), repeats=1
    )
    expected = reference.projector(modelled.low_rank, 1e-3)
    rows: list[dict[str, Any]] = [{"solver": "CVXPY, Clarabel", "run s": timing.run, "value": modelled.objective}]
    for name, solver in solvers.items():
        solve = lambda weights, solver=solver: cj.decompose(weights, cj.Penalty(*penalty), solver=solver)
        timing, found = _measure.jitted(solve, jnp.asarray(weights), repeats=repeats)
        rows.append(
            {
                "solver": name,
                "run s": timing.run,
                "value": float(found.objective),
                "objective": abs(float(found.objective) / modelled.objective - 1),
                "projector": float(np.linalg.norm(np.asarray(found.projector) - expected)),
                "rank": int(found.rank),
                "steps": int(found.steps),
                "compile s": timing.compile,
            }
        )
    checks = [
        Check("largest objective difference", max(row["objective"] for row in rows[1:]), 1e-6),
        Check("largest projector distance", max(row["projector"] for row in rows[1:]), 1e-4),
    ]
    where = f"{clients} clients of {size} × {size}, float64"
    return Report(f"the solvers against a convex modelling library, {where}", rows, checks)


def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", REFERENCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
