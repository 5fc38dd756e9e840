"""Sweeps of calls: what is stored, what is repeated, what a call is given."""

import threading
from typing import NamedTuple

import jax
import numpy as np
import pytest

from clairjax import sweep


class Cell(NamedTuple):
    size: int


CELLS = (Cell(2), Cell(3))


class Replicate:
    """Counts its calls; fails at one of them, with something left in its folder."""

    def __init__(self, fail_at=None):
        self.fail_at, self.calls, self.found = fail_at, [], []
        self._lock = threading.Lock()

    def __call__(self, number, cell, folder):
        with self._lock:
            self.calls.append((number, cell))
        if folder is not None:
            self.found += [path.name for path in folder.iterdir()]
            (folder / "halfway").touch()
        if (number, cell) == self.fail_at:
            raise RuntimeError("killed")
        return {"values": np.arange(cell.size) + 10.0 * number, "number": number}


def test_calls_are_stored_and_not_repeated(tmp_path):
    first, again, more = Replicate(), Replicate(), Replicate()
    results = sweep.run_calls(first, CELLS, replicates=2, out=tmp_path)
    assert sorted(first.calls) == sorted((number, cell) for number in range(2) for cell in CELLS)
    np.testing.assert_array_equal(results[Cell(3)]["values"], [[0, 1, 2], [10, 11, 12]])
    stored = sweep.run_calls(again, CELLS, replicates=2, out=tmp_path)
    assert not again.calls and stored[Cell(2)]["number"].tolist() == [0, 1]
    sweep.run_calls(more, (*CELLS, Cell(4)), replicates=3, out=tmp_path)
    assert sorted(more.calls) == [(0, Cell(4)), (1, Cell(4)), (2, Cell(2)), (2, Cell(3)), (2, Cell(4))]


def test_a_call_that_is_cut_off_finds_its_folder_again_and_no_other_is_repeated(tmp_path):
    cut, rest = Replicate(fail_at=(1, Cell(3))), Replicate()
    with pytest.raises(RuntimeError, match="killed"):
        sweep.run_calls(cut, CELLS, replicates=2, out=tmp_path)
    sweep.run_calls(rest, CELLS, replicates=2, out=tmp_path)
    assert rest.found == ["halfway"] and (1, Cell(3)) in rest.calls and (0, Cell(2)) not in rest.calls
    assert not list(tmp_path.rglob("unfinished*"))


@pytest.mark.parametrize("later", [{"other": 1.0}, {"value": np.float32(1)}, {"value": np.ones(2)}])
def test_replicates_of_other_names_types_or_shapes_as_of_another_version_are_refused(tmp_path, later):
    sweep.run_calls(lambda *_: {"value": 1.0}, CELLS, replicates=1, out=tmp_path)
    with pytest.raises(ValueError, match=r"^replicate: it must return the same names, types and shapes .* new folder"):
        sweep.run_calls(lambda *_: later, CELLS, replicates=2, out=tmp_path)


def test_another_argument_or_a_program_s_sweep_is_refused(tmp_path):
    sweep.run_calls(Replicate(), CELLS, replicates=1, out=tmp_path, arguments={"images": "a"})
    with pytest.raises(ValueError, match=r'holds another sweep: arguments must be \{"images": "a"\}'):
        sweep.run_calls(Replicate(), CELLS, replicates=1, out=tmp_path, arguments={"images": "b"})
    with pytest.raises(ValueError, match="replicates must be an integer of 1 or more, got 0"):
        sweep.run_calls(Replicate(), CELLS, replicates=0)


def test_nothing_finite_is_a_failure():
    bad = lambda number, cell, folder: {"loss": np.nan if number else 1.0}
    assert sweep.run_calls(bad, CELLS, replicates=2).failures == {cell: (1,) for cell in CELLS}


def test_a_call_sees_its_device():
    seen = sweep.run_calls(lambda number, cell, folder: {"id": jax.config.jax_default_device.id}, CELLS, replicates=1)
    known = [device.id for device in jax.local_devices()]
    assert all(seen[cell]["id"][0] in known for cell in CELLS)


def test_parts_of_calls_in_any_order_are_one_sweep(tmp_path):
    replicates = {i: Replicate() for i in (2, 0, 1)}
    computed = {
        i: sweep.run_calls_part(each, CELLS, part=(i, 3), replicates=4, out=tmp_path) for i, each in replicates.items()
    }
    assert computed == {2: 3, 0: 2, 1: 3} and all(len(each.calls) == computed[i] for i, each in replicates.items())
    assert sweep.run_calls_part(Replicate(), CELLS, part=(0, 1), replicates=4, out=tmp_path) == 0
    again = Replicate()
    collected = sweep.run_calls(again, CELLS, replicates=4, out=tmp_path)
    alone = sweep.run_calls(Replicate(), CELLS, replicates=4)
    assert again.calls == [] and collected.manifest["status"] == "complete"
    assert all(np.array_equal(collected[cell]["values"], alone[cell]["values"]) for cell in CELLS)
    with pytest.raises(ValueError, match="holds another sweep: arguments must be"):
        sweep.run_calls_part(again, CELLS, part=(0, 3), replicates=4, out=tmp_path, arguments={"images": "b"})
    with pytest.raises(ValueError, match=r"^part must be \(i, n\) with 0 <= i < n"):
        sweep.run_calls_part(again, CELLS, part=(3, 3), replicates=4, out=tmp_path)
