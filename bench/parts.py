"""Claim: two parts of a sweep, each bound to a core, take at most 1 / 1.7 of one process bound to one core.

Seconds are those of whole processes, imports and compiler included, JAX's persistent cache off; one process and two
parts take turns. With two cells each part compiles its own. With one cell both compile it: that is for comparison.
Arrays of the parts' blocks are compared with those of one process.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from clairjax import sweep

from . import sweep as one_process
from ._measure import cores
from ._report import Check, Report


class Cell(NamedTuple):
    clients: int
    inputs: int
    copy: int  # cells of equal cost


class Size(NamedTuple):
    clients: int
    inputs: int
    replicates: int  # over all cells
    turns: int


FULL = Size(20, 50, 480, 3)
QUICK = Size(5, 10, 4, 1)
PART = """
import os, sys
core, cells, *rest = map(int, sys.argv[2:])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
import jax
jax.config.update("jax_enable_x64", True)
from bench import parts
parts.compute(sys.argv[1], cells, *rest)
"""


def replicate(key: jax.Array, cell: Cell) -> dict[str, jax.Array]:
    return one_process.replicate(key, one_process.Cell(cell.clients, cell.inputs))


def compute(out: str, cells: int, clients: int, inputs: int, replicates: int, i: int, n: int) -> None:
    """Part i of n, or with n = 0 all of it as one process."""
    what = _asked(out, cells, clients, inputs, replicates)
    if n:
        sweep.run_part(part=(i, n), **what)
    else:
        sweep.run(**what)


def measure(quick: bool) -> Report:
    size = QUICK if quick else FULL
    rows = [_row(cells, size) for cells in (2, 1)]
    checks = [
        Check("two parts, a cell each: times faster", rows[0]["× faster"], 1.7, at_least=True),
        Check("relative difference", max(row["differs"] for row in rows), 0),
    ]
    return Report("two parts on two cores against one process on one core, one sweep in float64", rows, checks)


def _row(cells: int, size: Size) -> dict[str, Any]:
    alone, parts, differences = [], [], []
    for _ in range(size.turns):
        with tempfile.TemporaryDirectory() as folder:
            one, two = Path(folder) / "one", Path(folder) / "two"
            alone.append(_seconds(one, cells, size, [(0, 0, 0)]))
            parts.append(_seconds(two, cells, size, [(0, 0, 2), (1, 1, 2)]))
            differences.append(_difference(one, two))
    seconds = {"one process s": float(np.median(alone)), "two parts s": float(np.median(parts))}
    return {
        "cells": cells,
        "parts compile": "a cell each" if cells == 2 else "the same cell",
        **seconds,
        "× faster": seconds["one process s"] / seconds["two parts s"],
        "differs": max(differences),
    }


def _seconds(out: Path, cells: int, size: Size, processes: list[tuple[int, int, int]]) -> float:
    """Until the last has ended. Each is the place of its core among those at hand, and its part."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    root = Path(__file__).parent.parent
    numbers = (size.clients, size.inputs, size.replicates // cells)
    commands = [
        [sys.executable, "-c", PART, str(out), *map(str, (core % cores(), cells, *numbers, i, n))]
        for core, i, n in processes
    ]
    start = time.perf_counter()
    running = [subprocess.Popen(command, env=environment, cwd=root) for command in commands]
    statuses = [process.wait() for process in running]
    seconds = time.perf_counter() - start
    if any(statuses):
        raise RuntimeError(f"Processes ended with {statuses}.")
    return seconds


def _difference(one: Path, two: Path) -> float:
    """The largest relative one between blocks of the same name."""
    largest = 0.0
    blocks = sorted(path.relative_to(one) for path in one.glob("*/block-*.npz"))
    if blocks != sorted(path.relative_to(two) for path in two.glob("*/block-*.npz")):
        return float("inf")
    for block in blocks:
        with np.load(one / block) as first, np.load(two / block) as second:
            largest = max(largest, float(np.abs(second["error"] / first["error"] - 1).max()))
    return largest


def _asked(out: str, cells: int, clients: int, inputs: int, replicates: int) -> dict[str, Any]:
    return {
        "replicate": replicate,
        "cells": [Cell(clients, inputs, copy) for copy in range(cells)],
        "key": jax.random.key(one_process.KEY),
        "replicates": replicates,
        "out": out,
    }
