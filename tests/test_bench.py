"""Every benchmark runs at a toy size and produces its rows. Nothing here looks at a time."""

import importlib
import json
import math
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
    "scaling": [
        "solve K 4",
        "solve K 8",
        "solve p 8",
        "solve p 16",
        "clair K 4",
        "clair K 8",
        "clair p 8",
        "clair p 16",
    ],
    "memory": ["clair"],
    "sweep": ["jitted, one at a time", "NumPy", "sweep, 1 lanes (its choice)", "sweep, 2 lanes"],
}


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"bench.{name}")


def _label(name, row):
    match name:
        case "scaling":
            return f"{row['what']} {row['along']} {row['K' if row['along'] == 'K' else 'p = q']}"
        case "memory":
            return "clair"
        case "sweep":
            return (
                row["how"].split(" steps")[0].rstrip("0123456789").removesuffix(", ")
                if "NumPy" in row["how"]
                else row["how"]
            )
        case _:
            return row["solver"]


@pytest.mark.parametrize("name", ROWS)
def test_rows_at_a_toy_size(bench, name):
    report = bench(name).measure(quick=True)
    assert [_label(name, row) for row in report.rows] == ROWS[name]
    assert report.claim and report.checks
    for row in report.rows:
        times = [value for column, value in row.items() if column.split()[-1] == "s" and value is not None]
        assert times and all(math.isfinite(value) for value in times)
    figures = {check.what: check for check in report.checks if "faster" not in check.what}
    wrong = [what for what, check in figures.items() if "difference" in what or "wrong side" in what if not check.met]
    assert not wrong
    json.dumps(report.to_dict())
