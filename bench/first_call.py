"""Claim: what a user waits for at the first call of `clair`, the compiler included, is 0.6 of what it was.

Each row is the median of new processes with JAX's persistent cache off, which take turns. Seconds are those of the
first eager call on 10 clients of 40 × 30 in float64, imports apart; the second call shows what of them is not work.
The library is compared with itself at an earlier commit, which git gives.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ._report import Check, Report


BEFORE = "3a0c745"
PAIRS = 5
CALL = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
from clairjax import clair
rng = np.random.default_rng(0)
weights = rng.normal(size=(10, 40, 2)) @ rng.normal(size=(2, 30)) + 0.1 * rng.normal(size=(10, 40, 30))
def timed():
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(clair(weights))
    return time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps([timed(), timed()]))
"""


def measure(quick: bool) -> Report:
    root = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        places = {"now": root} if quick else {"now": root, BEFORE: _checked_out(root, Path(folder))}
        calls: dict[str, list[Any]] = {how: [] for how in places}
        for _ in range(1 if quick else PAIRS):
            for how, place in places.items():
                calls[how].append(_call(place))
    rows = [_row(how, made) for how, made in calls.items()]
    ratios = {kind: rows[0][f"first {kind} s"] / rows[-1][f"first {kind} s"] for kind in ("run", "cpu")}
    checks = [Check(f"first call against {BEFORE}, {kind} time", ratio, 0.6) for kind, ratio in ratios.items()]
    return Report("the first call of clair takes 0.6 of what it did", rows, checks)


def _checked_out(root: Path, folder: Path) -> Path:
    archive = subprocess.run(["git", "archive", BEFORE, "clairjax"], cwd=root, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    return folder


def _call(place: Path) -> list[list[float]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    command = [sys.executable, "-c", CALL, str(place)]
    done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _row(how: str, calls: list[list[list[float]]]) -> dict[str, Any]:
    median = lambda call, clock: statistics.median(made[call][clock] for made in calls)
    return {"how": how, "first run s": median(0, 0), "first cpu s": median(0, 1), "second run s": median(1, 0)}
