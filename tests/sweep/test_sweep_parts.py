"""Parts of a sweep: whatever their number and order they give one process's bits, and none touches another's files."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import part_cases
import pytest
from compilations import EVENTS
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import digest
from test_sweep_run import KEY, SMALL, draws, files, run
from test_sweep_writers import OTHERS, manifest, meanwhile  # noqa: F401

from clairjax import sweep
from clairjax.sweep import _execute, _store
from clairjax.sweep._begin import check_part
from clairjax.sweep._plan import part_of
from clairjax.sweep._store import Store


def run_part(out, part, *, fn=draws, cells=SMALL, key=KEY, replicates=10, lane_width=4, **options):
    """Of the sweep that `run` runs: 2 cells of 3 blocks."""
    return sweep.run_part(
        fn, cells, part=part, key=key, replicates=replicates, lane_width=lane_width, out=out, **options
    )


@pytest.fixture(scope="module")
def unbroken():
    return digest(run())


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 500))
def test_parts_are_stretches_of_all_blocks_in_order_and_as_long_as_each_other(cells, blocks, count):
    parts = [part_of(cells, blocks, (i, count)) for i in range(count)]
    in_order = [(cell, b) for part in parts for cell, stretch in enumerate(part) for b in stretch]
    assert in_order == [(cell, b) for cell in range(cells) for b in range(blocks)]
    lengths = {sum(map(len, part)) for part in parts}
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("count", [1, 2, 8])
def test_any_number_of_parts_in_any_order_give_the_bits_of_one_process(tmp_path, unbroken, count):
    order = random.Random(os.environ.get("CLAIRJAX_TEST_SEED", "") + str(count)).sample(range(count), count)
    computed, written, said = 0, {}, None
    for i in order:
        computed += run_part(tmp_path, (i, count))
        found, text = files(tmp_path), (tmp_path / "manifest.json").read_bytes()
        assert written.items() <= found.items() and len(found) == computed and said in (None, text)
        written, said = found, text
    assert computed == 6 and manifest(tmp_path)["status"] == "in parts"
    before = len(EVENTS)
    results = run(tmp_path)
    assert not [event for event in EVENTS[before:] if "backend_compile" in event]
    assert digest(results) == unbroken and files(tmp_path) == written
    assert manifest(tmp_path)["status"] == "complete"
    assert sum(kind["blocks"] for kind in results.manifest["processors"]) == 6


def test_another_number_of_parts_and_one_process_go_on_from_what_is_there(tmp_path, unbroken):
    assert run_part(tmp_path, (1, 2)) == 3 and run_part(tmp_path, (1, 2)) == 0
    before = files(tmp_path)
    assert [run_part(tmp_path, (i, 3)) for i in range(2)] == [2, 1]
    next(iter(before)).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is not used and its replicates are computed again"):
        assert run_part(tmp_path, (1, 2)) == 1
    assert digest(run(tmp_path)) == unbroken
    assert len(files(tmp_path)) == 6


def test_parts_of_a_new_folder_find_the_lane_width_of_one_process(tmp_path):
    """Which needs all cells' programs; once it is known a part traces its own alone."""
    traced = []

    def counted(key, cell):
        traced.append(cell)
        return draws(key, cell)

    assert run_part(tmp_path, (0, 2), fn=counted, replicates=20, lane_width=None) == 7 and traced == list(SMALL)
    assert run_part(tmp_path, (1, 2), fn=counted, replicates=20, lane_width=None) == 7 and traced == [*SMALL, SMALL[1]]
    assert digest(run(tmp_path, replicates=20, lane_width=None)) == digest(run(replicates=20, lane_width=None))


@pytest.mark.parametrize("name", OTHERS)
def test_a_part_of_another_sweep_is_refused_and_leaves_nothing(tmp_path, meanwhile, name):  # noqa: F811
    """Also where both have found a folder without a manifest."""
    options, message = OTHERS[name]
    kept = {}

    def first():
        run_part(tmp_path, (0, 2), cells=SMALL[:1])
        kept.update({path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()})

    meanwhile(_store, "create_file", first)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"^out: {tmp_path} holds another sweep: .*{message}"):
            run_part(tmp_path, (1, 2), **{"cells": SMALL[:1], **options})
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept != {}


def test_a_part_says_if_its_folder_was_taken_by_another_sweep_meanwhile(tmp_path, monkeypatch):
    compute = _execute.Executor.compute

    def taken(self, prepared):
        path = tmp_path / "manifest.json"
        path.write_text(path.read_text().replace('"lane_width": 4', '"lane_width": 5'))
        return compute(self, prepared)

    monkeypatch.setattr(_execute.Executor, "compute", taken)
    with pytest.raises(ValueError, match="holds another sweep: lane_width must be 5, got 4"):
        run_part(tmp_path, (0, 6))


@pytest.mark.parametrize("whole", [True, False])
def test_a_block_that_another_process_stores_first_stays_and_is_used(tmp_path, monkeypatch, whole):
    """It may be another processor's, of other last digits: results are those of the files."""
    write, other = Store.write, {}

    def late(self, cell, block, content):
        theirs = content._replace(arrays={**content.arrays, "mean": content.arrays["mean"] + 1})
        assert write(self, cell, block, theirs)
        other.update(files(tmp_path))
        return write(self, cell, block, content)

    monkeypatch.setattr(Store, "write", late)
    found = run(tmp_path)[SMALL[0]]["mean"] if whole else run_part(tmp_path, (0, 1))
    assert files(tmp_path) == other and len(other) == 6
    monkeypatch.undo()
    again = run(tmp_path)[SMALL[0]]["mean"]
    assert np.array_equal(again, run()[SMALL[0]]["mean"] + 1)
    assert np.array_equal(found, again) if whole else found == 6


@pytest.mark.parametrize("part", [(3, 3), (-1, 2), (0, 0), (True, 2)])
def test_what_is_no_part_is_refused_before_anything_is_made(tmp_path, part):
    with pytest.raises(ValueError, match=rf"^part must be \(i, n\) with 0 <= i < n, got {re.escape(str(part))}\.$"):
        run_part(tmp_path / "new", part)
    assert not (tmp_path / "new").exists()


def test_a_part_without_a_folder_is_refused():
    with pytest.raises(ValueError, match=r"^out must be a folder that all parts see, got None\.$"):
        check_part((0, 2), None)


def start(out, seed, part):
    """A process that has everything ready and waits for a line."""
    command = [sys.executable, part_cases.__file__, str(out), str(seed), *map(str, part)]
    environment = os.environ | {"JAX_ENABLE_X64": str(int(jax.config.jax_enable_x64))}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_of_two_seeds_released_together_one_is_refused_and_a_kill_loses_what_was_in_flight(tmp_path):
    """The winner is killed once it has begun to store; parts of another number, at once, do the rest."""
    out = tmp_path / "new"
    processes = {seed: start(out, seed, (0, 2)) for seed in (7, 8)}
    for process in processes.values():
        assert process.stdout.readline() == "ready\n"
    for process in processes.values():
        process.stdin.write("go\n")
        process.stdin.flush()
    deadline = time.monotonic() + 120
    while len(files(out)) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    (seed,) = (seed for seed in processes if manifest(out)["arguments"]["key"]["data"][1] == seed)
    processes[seed].send_signal(signal.SIGKILL)
    errors = {each: process.communicate(timeout=120)[1] for each, process in processes.items()}
    assert processes[15 - seed].returncode == 1
    assert errors[15 - seed].splitlines()[-1].startswith(f"ValueError: out: {out} holds another sweep: key must be")
    kept = files(out)
    assert 5 <= len(kept) < 100
    what = part_cases.asked(out, seed)
    with ThreadPoolExecutor(3) as pool:
        others = list(pool.map(lambda i: sweep.run_part(part=(i, 3), **what), range(3)))
    assert sum(others) == 200 - len(kept) and kept.items() <= files(out).items()
    alone = sweep.run(**(what | {"out": None}))
    assert digest(sweep.run(**what)) == digest(alone) and len(files(out)) == 200
    assert {json.dumps(kind) for kind in manifest(out)["processors"]} == {
        json.dumps(kind) for kind in alone.manifest["processors"]
    }
