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
        "Factored, 2 at once",
        "Factored, 2 in turn",
    ],
    "first-call": ["now"],
    "sweep": ["jitted, one at a time", "NumPy", "sweep, 1 lanes (its choice)", "sweep, 2 lanes"],
    "parts": ["2 cells, a cell each", "1 cells, the same cell"],
    "scaling": ["solve 4 8", "solve 8 8", "solve 4 16", "clair 4 8", "clair 8 8", "clair 4 16"],
    "memory": ["Converged"],
    "adapters": [
        "clair, 12 clients, rank 6, 96 × 96",
        "verdict, 12 clients, rank 6, 96 × 96",
        "refine, 12 clients × 2 modules, rank 6, 80 × 80",
        "refine, 4 clients × 2 modules, rank 6, 32 × 32",
        "refine, 12 clients × 2 modules, rank 6, 80 × 80",
    ],
    "federated": [
        "FLUTE, 2 clients × 20 images",
        "CENTAUR, 2 clients × 20 images",
        "two blocks, 16 steps of 10",
    ],
    "verdict": ["1 of 11", "1 of 5", "4 of 11 flips", "honest", "a task each, 1 of 10", "a task each, honest"],
    "representation": [
        *(f"FLUTE, 3 × 20 rounds: {how}" for how in ("NumPy", "vmap", "10 lanes")),
        *(f"CENTAUR, 2 × 5 rounds: {how}" for how in ("vmap", "lax.map", "NumPy")),
        *(f"{what}, one round: " for what in ("FLUTE", "CENTAUR")),
        *(f"CENTAUR, one round: {how}" for how in ("floats", "whole numbers")),
    ],
}
LABELS = {
    "correctness": "{solver}",
    "program": "{solver}",
    "first-call": "{how}",
    "sweep": "{how}",
    "parts": "{cells} cells, {parts compile}",
    "scaling": "{what} {K} {p = q}",
    "memory": "{status}",
    "adapters": "{what}",
    "federated": "{what}",
    "verdict": "{fleet}",
    "representation": "{what}: {how}",
}


TIMELESS = ("objective difference", "optimality", "relative difference", "wrong side", "share", "compiled")


def _run(*arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_rows_at_a_toy_size(name, tmp_path):
    done = _run(name, "--quick", "--out", str(tmp_path / "bench.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["quick"] is True and list(written["benchmarks"]) == [name]
    assert {"cores", "device", "jax", "numpy", "load", "blas_threads"} <= written["machine"].keys()

    report = written["benchmarks"][name]
    assert [LABELS[name].format_map(row) for row in report["rows"]] == ROWS[name]
    assert report["claim"] in " ".join(done.stdout.split())
    for row in report["rows"]:
        times = [value for column, value in row.items() if column.split()[-1] == "s" and value is not None]
        assert times and all(math.isfinite(value) for value in times)
    assert report["checks"] and all(math.isfinite(check["value"]) for check in report["checks"])
    timeless = [check for check in report["checks"] if any(word in check["what"] for word in TIMELESS)]
    assert all(check["met"] for check in timeless)
    assert timeless or name in ("scaling", "first-call")


def test_an_unknown_name_is_refused():
    done = _run("sped")
    assert done.returncode == 2
    assert "got sped" in " ".join(done.stderr.replace("│", " ").split())  # typer's box folds long lines
