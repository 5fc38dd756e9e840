"""Two sweeps, one folder: who comes first has it, and its manifest and blocks stay together."""

import json
import shutil

import jax
import pytest
from sweep_cases import digest
from test_sweep_run import SMALL, draws, files, run

from clairjax.sweep import _store
from clairjax.sweep._execute import Executor
from clairjax.sweep._store import Store


@pytest.fixture
def meanwhile(monkeypatch):
    """Lets another process do something just before this one's first call of a function."""

    def arrange(owner, name, other):
        real, waiting = getattr(owner, name), [other]

        def late(*arguments):
            if waiting:
                waiting.pop()()
            return real(*arguments)

        monkeypatch.setattr(owner, name, late)

    return arrange


def manifest(out):
    return json.loads((out / "manifest.json").read_text(encoding="utf-8"))


OTHERS = {
    "key": ({"key": jax.random.key(4)}, r"key must be .*\[0, 3\].*, got .*\[0, 4\]"),
    "lane_width": ({"lane_width": 5}, "lane_width must be 4, got 5"),
    "arguments": ({"arguments": {"seed": 1}}, r'arguments must be \{\}, got \{"seed": 1\}'),
    "program": ({"fn": lambda key, cell: {"mean": 2 * draws(key, cell)["mean"]}}, "computes something else in cell"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_sweep_that_comes_second_is_refused_at_its_claim(tmp_path, meanwhile, name):
    """Both have found a folder without a manifest."""
    options, message = OTHERS[name]
    kept = {}

    def first():
        run(tmp_path, cells=SMALL[:1])
        kept.update({path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()})

    meanwhile(_store, "create_file", first)
    with pytest.raises(ValueError, match=rf"^out: {tmp_path} holds another sweep: .*{message}"):
        run(tmp_path, **{"cells": SMALL[:1], **options})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept != {}


def test_the_same_sweep_that_comes_second_goes_on_from_the_first(tmp_path, meanwhile):
    """Its lanes are the first's, though its own number of replicates would have given others."""
    meanwhile(_store, "create_file", lambda: run(tmp_path, cells=SMALL[:1], replicates=8))
    found = run(tmp_path, cells=SMALL[:1], replicates=16, lane_width=None)
    assert digest(found) == digest(run(cells=SMALL[:1], replicates=16))
    assert manifest(tmp_path)["arguments"]["lane_width"] == found.manifest["arguments"]["lane_width"] == 4
    assert len(files(tmp_path)) == 4


def test_what_others_add_to_a_sweep_stays(tmp_path, meanwhile):
    meanwhile(Store, "write", lambda: run(tmp_path, cells=SMALL[1:]))
    run(tmp_path, cells=SMALL[:1])
    cells = manifest(tmp_path)["cells"].values()
    assert {entry["fields"]["size"] for entry in cells} == {3, 5}
    assert all(entry["failures"] == [] and entry["compile_seconds"] > 0 for entry in cells)


def test_a_folder_that_another_sweep_has_taken_is_not_taken_back(tmp_path, meanwhile):
    """As after somebody deleted it, and started anew."""

    def replaced():
        shutil.rmtree(tmp_path / "out")
        run(tmp_path / "out", cells=SMALL[:1], key=jax.random.key(4))

    meanwhile(Executor, "run", replaced)
    with pytest.raises(ValueError, match="holds another sweep: key must be"):
        run(tmp_path / "out", cells=SMALL[:1])
    assert manifest(tmp_path / "out")["status"] == "complete"
    assert manifest(tmp_path / "out")["arguments"]["key"]["data"] == [0, 4]
