"""`python -m bench --quick` runs every benchmark at a toy size and writes its rows. Nothing here looks at a time."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parent.parent
ROWS = {
    "correctness": ["CVXPY, Clarabel", "ProximalGradient", "ProximalGradient, accelerated", "Factored"],
    "program": [
        "NumPy, SVD",
        "NumPy, Gram",
        "ProximalGradient",
        "ProximalGradient, accelerated",
        "Factored",
        "Factored, vmap of 2",
    ],
    "sweep": ["jitted, one at a time", "NumPy", "sweep, 1 lanes (its choice)", "sweep, 2 lanes"],
    "scaling": ["solve 4 8", "solve 8 8", "solve 4 16", "clair 4 8", "clair 8 8", "clair 4 16"],
    "memory": ["Converged"],
}
LABELS = {
    "correctness": "{solver}",
    "program": "{solver}",
    "sweep": "{how}",
    "scaling": "{what} {K} {p = q}",
    "memory": "{status}",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "bench.json"
    done = _run("--quick", "--out", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in file.parent.iterdir()] == ["bench.json"]
    return json.loads(file.read_text()) | {"printed": done.stdout}


def _run(*arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("name", ROWS)
def test_rows_at_a_toy_size(written, name):
    report = written["benchmarks"][name]
    assert [LABELS[name].format_map(row) for row in report["rows"]] == ROWS[name]
    for row in report["rows"]:
        times = [value for column, value in row.items() if column.split()[-1] == "s" and value is not None]
        assert times and all(math.isfinite(value) for value in times)
    assert report["claim"] in " ".join(written["printed"].split())
    assert report["checks"] and all(math.isfinite(check["value"]) for check in report["checks"])


@pytest.mark.parametrize("name", ["correctness", "program", "sweep", "memory"])
def test_figures_that_are_not_times_meet_their_targets(written, name):
    timeless = ("objective difference", "optimality", "relative difference", "wrong side")
    checks = [
        check for check in written["benchmarks"][name]["checks"] if any(word in check["what"] for word in timeless)
    ]
    assert checks and all(check["met"] for check in checks)


def test_the_machine_is_named(written):
    assert written["quick"] is True
    assert {"cores", "device", "jax", "numpy", "load", "blas_threads"} <= written["machine"].keys()
    assert all(len(report["load"]) == 2 for report in written["benchmarks"].values())


def test_an_unknown_name_is_refused():
    done = _run("sped")
    assert done.returncode == 2
    assert "got sped" in done.stderr
