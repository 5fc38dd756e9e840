"""Claim: time grows no faster than the square of the number of clients and of the size of their matrices.

`solve` is `Factored` at given penalties to 1e-6, `clair` all of it with penalties tuned from the data; float64. The
steps are given because they vary from problem to problem; "per step" takes them out of the solve. Memory is the
compiled program's own count of its temporaries, from `clairjax.profile`; the clients themselves are not in it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import clairjax as cj

from . import _measure, _problems
from ._report import Check, Report


class Size(NamedTuple):
    clients: tuple[int, ...]
    at_inputs: int
    inputs: tuple[int, ...]
    at_clients: int
    repeats: int


FULL = Size((8, 16, 32, 64, 128), 32, (32, 64, 128, 256, 512), 16, 5)
QUICK = Size((4, 8), 8, (8, 16), 4, 1)
TARGET = 2.1


def measure(quick: bool) -> Report:
    size = QUICK if quick else FULL
    along_clients = [(clients, size.at_inputs) for clients in size.clients]
    along_inputs = [(size.at_clients, inputs) for inputs in size.inputs]
    rows, checks = [], []
    for what, function in (("solve", _solve), ("clair", _clair)):
        shapes = dict.fromkeys(along_clients + along_inputs)
        measured = {shape: _row(what, *shape, function, size.repeats) for shape in shapes}
        rows += measured.values()
        checks += _slopes(f"{what}, in K", list(size.clients), [measured[shape] for shape in along_clients])
        checks += _slopes(f"{what}, in p", list(size.inputs), [measured[shape] for shape in along_inputs])
    where = f"K at p = q = {size.at_inputs}, p = q at K = {size.at_clients}"
    return Report(f"growth of time and memory with {where}", rows, checks)


def _solve(weights: jax.Array, penalty: tuple[float, float]) -> cj.Decomposition:
    return cj.decompose(weights, cj.Penalty(*penalty), solver=cj.Factored(rtol=1e-6))


def _clair(weights: jax.Array, penalty: tuple[float, float]) -> cj.ClairResult:
    del penalty  # tuned instead
    return cj.clair(weights)


def _row(
    what: str,
    clients: int,
    inputs: int,
    function: Callable[[jax.Array, tuple[float, float]], cj.Decomposition | cj.ClairResult],
    repeats: int,
) -> dict[str, Any]:
    weights = _problems.planted(clients, inputs)[0].astype(np.float64)
    penalty = _problems.penalty(weights)
    profiled = cj.profile(function, jnp.asarray(weights), penalty, repeats=repeats)
    found = jax.jit(function)(jnp.asarray(weights), penalty)
    steps = None if isinstance(found, cj.ClairResult) else int(found.steps)
    return {
        "what": what,
        "K": clients,
        "p = q": inputs,
        "run s": profiled.run_seconds,
        "steps": steps,
        "per step s": None if steps is None else profiled.run_seconds / steps,
        "gap": None if isinstance(found, cj.ClairResult) else float(found.optimality),
        "memory MB": None if profiled.temporary_bytes is None else profiled.temporary_bytes / 1e6,
        "× clients": None if profiled.temporary_bytes is None else profiled.temporary_bytes / weights.nbytes,
        "compile s": profiled.trace_seconds + profiled.lower_seconds + profiled.compile_seconds,
    }


def _slopes(what: str, sizes: list[int], rows: list[dict[str, Any]]) -> list[Check]:
    columns = [name for name in ("run s", "per step s", "memory MB") if all(row[name] for row in rows)]
    return [
        Check(f"{what}: slope of {name}", _measure.slope(sizes, [row[name] for row in rows]), TARGET)
        for name in columns
    ]
