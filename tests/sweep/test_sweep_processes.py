"""Whole processes: killed and resumed, on one device and on eight, at another lane width."""

import functools
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import CELLS

from clairjax.sweep._plan import cell_id


REPLICATES, LANE_WIDTH = 118, 3
BLOCKS = 2 * 40


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a sweep in a new process; compiled programs are shared between the processes, to save time."""
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or tmp_path_factory.mktemp("compiled")
    return functools.partial(_start, cache)


def _start(cache, out, *, devices=1, lane_width=LANE_WIDTH, seed=7):
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_ENABLE_X64": "1",
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
    }
    command = [sys.executable, str(Path(__file__).with_name("sweep_cases.py"))]
    return subprocess.Popen(
        [*command, str(out), str(REPLICATES), str(lane_width), str(seed)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return json.loads(out)


def blocks(out):
    return {
        str(path.relative_to(out)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in out.glob("*/block-*.npz")
    }


def stored(out):
    """All replicates of both cells, as the files hold them."""
    arrays = {}
    for cell in CELLS:
        paths = sorted((out / cell_id(cell)).glob("block-*.npz"))
        for name in ("error", "spectrum", "heads", "steps"):
            arrays[cell, name] = np.concatenate([np.load(path)[name] for path in paths])[:REPLICATES]
    return arrays


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, start):
    out = tmp_path_factory.mktemp("unbroken")
    return out, finish(start(out))


@pytest.mark.parametrize("devices", [1, 8])
def test_killed_and_resumed_is_bit_identical_and_recomputes_only_what_is_missing(tmp_path, start, unbroken, devices):
    chance = random.Random(os.environ.get("CLAIRJAX_TEST_SEED", "") + str(devices))
    process = start(tmp_path, devices=devices)
    wanted = chance.randrange(1, 60)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("*/block-*.npz"))) < wanted and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.01))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = blocks(tmp_path)
    assert wanted <= len(kept) < BLOCKS
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "running"
    assert finish(start(tmp_path)) == unbroken[1]
    after = blocks(tmp_path)
    assert len(after) == BLOCKS
    assert {name: after[name] for name in kept} == kept
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "complete"


def test_lanes_are_computed_in_turn_where_one_leaves_the_cache_and_the_manifest_says_so(unbroken):
    cells = json.loads((unbroken[0] / "manifest.json").read_text())["cells"]
    assert [cells[cell_id(cell)]["lanes"] for cell in CELLS] == ["at once", "in turn"]


def test_eight_devices_and_any_grouping_of_blocks_give_the_same_bits(tmp_path, start, unbroken):
    assert finish(start(tmp_path, devices=8)) == unbroken[1]
    for path in random.Random(0).sample(sorted(tmp_path.glob("*/block-*.npz")), 33):
        path.unlink()  # the rest is computed in other chunks and on other devices than before
    assert finish(start(tmp_path, devices=8)) == unbroken[1]


def test_another_lane_width_changes_last_digits_only(tmp_path, start, unbroken):
    finish(start(tmp_path, lane_width=16))
    other, reference = stored(tmp_path), stored(unbroken[0])
    for (cell, name), values in reference.items():
        if name == "steps":
            assert np.array_equal(values, other[cell, name])
        else:
            scale = np.abs(values).max(axis=tuple(range(1, values.ndim)), keepdims=True)
            assert (np.abs(other[cell, name] - values) / scale).max() < 1e-10, name


def test_of_processes_that_start_together_one_sweep_has_the_folder(tmp_path, start, unbroken):
    """The other is refused; the same may go on side by side."""
    processes = [(seed, start(tmp_path / "new", seed=seed)) for seed in (7, 8, 7)]
    while not (tmp_path / "new" / "manifest.json").exists():
        time.sleep(0.001)
    first = json.loads((tmp_path / "new" / "manifest.json").read_text())["arguments"]["key"]["data"][1]
    for seed, process in processes:
        if seed == first:
            assert finish(process) == unbroken[1] or seed == 8
        else:
            error = process.communicate(timeout=120)[1].splitlines()[-1]
            assert process.returncode == 1 and error.startswith(f"ValueError: out: {tmp_path / 'new'} holds another")
    manifest = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert manifest["arguments"]["key"]["data"] == [0, first] and manifest["status"] == "complete"
    found, same = stored(tmp_path / "new"), stored(unbroken[0])
    assert len(blocks(tmp_path / "new")) == BLOCKS
    assert all(np.array_equal(found[name], same[name]) for name in found) == (first == 7)


def test_import_brings_in_no_extra():
    code = "import sys, clairjax.sweep, clairjax.profiling; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert not {"xarray", "rich", "pandas", "matplotlib", "typer"} & set(done.stdout.split())
