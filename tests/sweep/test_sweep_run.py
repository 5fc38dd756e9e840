"""A sweep in one process: the replicates it computes, what it stores, what it resumes, what it refuses."""

import json
import os
import re
import shutil
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import CELLS, digest, replicate

from clairjax import sweep
from clairjax.sweep._execute import lower_blocks
from clairjax.sweep._plan import blocks_for, cell_id, cell_key, lane_indices
from clairjax.sweep._store import Store
from clairjax.sweep._trace import trace


KEY = jax.random.key(3)
WIDTH = 3  # of the cells that take long to compile


class Small(NamedTuple):
    size: int
    label: str = "a"


def draws(key, cell):
    words = jax.random.key_data(key) % 1009  # cheaper to compile than a generator of normals
    x = jnp.sin(jnp.sum(words).astype(float) * jnp.arange(1.0, cell.size + 1))
    return {"mean": x.mean(), "draws": x, "count": jnp.sum(x > 0), "any": jnp.any(x > 0.9)}


SMALL = (Small(3), Small(5))


def run(out=None, *, fn=draws, cells=SMALL, key=KEY, replicates=10, lane_width=4, **options):
    return sweep.run(fn, cells, key=key, replicates=replicates, lane_width=lane_width, out=out, **options)


def files(out):
    return {path: path.stat().st_mtime_ns for path in sorted(out.glob("*/block-*.npz"))}


def one_at_a_time(fn, cell, replicates):
    alone = jax.jit(fn, static_argnums=1)
    found = [alone(sweep.replicate_key(KEY, cell, i), cell) for i in range(replicates)]
    return {name: np.stack([np.asarray(outputs[name]) for outputs in found]) for name in found[0]}


def test_replicates_equal_those_computed_one_at_a_time():
    results = sweep.run(replicate, CELLS, key=KEY, replicates=7, lane_width=WIDTH)
    wide = jax.config.jax_enable_x64
    for cell in results.cells:
        alone = one_at_a_time(replicate, cell, 7)
        assert set(alone) == set(results[cell])
        for name in ("error", "spectrum", "heads"):
            scale = abs(alone[name]).max()
            np.testing.assert_allclose(
                results[cell][name],
                alone[name],
                rtol=1e-10 if wide else 1e-3,
                atol=scale * (1e-12 if wide else 1e-4),
            )
            assert results[cell][name].dtype == alone[name].dtype


def test_cells_replicates_and_position_change_no_other_result():
    alone = run(cells=[Small(5)], replicates=6)
    more = run(cells=[Small(9), Small(5), Small(3)], replicates=11)
    for name, values in alone[Small(5)].items():
        assert np.array_equal(values, more[Small(5)][name][:6])


@pytest.fixture(scope="module")
def blocks():
    """Computes a block of the first cell, with the program of the test above where compiled programs are kept."""
    program = trace(replicate, KEY, CELLS[0])
    compute = lower_blocks(program, jax.local_devices()[:1], cell_key(KEY, CELLS[0]), WIDTH)()
    return lambda block: compute(lane_indices([block], 1, WIDTH))


@settings(max_examples=5)
@given(order=st.permutations(range(5)))
def test_order_of_blocks_changes_no_bit(blocks, order):
    expected = list(map(blocks, range(5)))
    for b in order:
        again = blocks(b)
        assert all(np.array_equal(again[name], expected[b][name]) for name in again)


def test_compiled_once_a_cell():
    traces = []

    def counted(key, cell):
        traces.append(cell)
        return draws(key, cell)

    run(fn=counted, replicates=30)
    assert traces == [Small(3), Small(5)]


def test_same_arguments_again_compute_nothing(tmp_path, monkeypatch):
    first = run(tmp_path)
    before = files(tmp_path)
    monkeypatch.setattr("clairjax.sweep._execute.lower_blocks", None)
    assert digest(run(tmp_path)) == digest(first)
    assert files(tmp_path) == before and len(before) == 2 * 3
    assert digest(run(tmp_path, lane_width=None)) == digest(first)  # the recorded width
    fewer = run(tmp_path, replicates=5)
    assert np.array_equal(fewer[Small(3)]["draws"], first[Small(3)]["draws"][:5])


def test_more_replicates_and_more_cells_extend(tmp_path):
    run(tmp_path)
    before = files(tmp_path)
    more = run(tmp_path, replicates=17, cells=[Small(2), *SMALL])
    after = files(tmp_path)
    assert {path: after[path] for path in before} == before  # even the block that was partly beyond the request
    assert len(after) == 3 * 5
    assert digest(more) == digest(run(replicates=17, cells=[Small(2), *SMALL]))


def test_interrupt_loses_only_the_chunk_in_flight(tmp_path, monkeypatch):
    write, count = Store.write, []

    def interrupted(self, *arguments):
        count.append(1)
        if len(count) == 4:
            raise KeyboardInterrupt
        write(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "write", interrupted)
        run(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "interrupted"
    before = files(tmp_path)
    assert len(before) == 3
    assert digest(run(tmp_path)) == digest(run())
    assert before.items() <= files(tmp_path).items()
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "complete"


def test_an_error_while_running_is_recorded_and_raised(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Store, "write", broken)
    with pytest.raises(OSError, match="disk full"):
        run(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "failed"


DIFFERENT = {
    "key": ({"key": jax.random.key(4)}, r"key must be .*\[0, 3\].*, got .*\[0, 4\]"),
    "lane width": ({"lane_width": 5}, "lane_width must be 4, got 5"),
    "arguments": ({"arguments": {"dtype": "float32"}}, r'arguments must be \{\}, got \{"dtype": "float32"\}'),
    "program": (
        {"fn": lambda key, cell: {name: 2 * value for name, value in draws(key, cell).items() if name == "mean"}},
        r'computes something else in cell \{"size": 3, "label": "a"\}',
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_arguments_in_the_same_folder_are_named(tmp_path, name):
    options, message = DIFFERENT[name]
    run(tmp_path)
    before = files(tmp_path)
    with pytest.raises(ValueError, match=message):
        run(tmp_path, **options)
    assert files(tmp_path) == before
    run(tmp_path)


@pytest.mark.parametrize("name", ["jax", "jaxlib", "compiler_options", "device", "jax_enable_x64"])
def test_a_folder_from_another_machine_is_refused_by_name(tmp_path, name):
    run(tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["arguments"][name] = "other"
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=f'holds another sweep: {name} must be "other", got'):
        run(tmp_path)


def truncate(path, _):
    os.truncate(path, path.stat().st_size // 2)


def empty(path, _):
    os.truncate(path, 0)


def link_to_nothing(path, _):
    path.unlink()
    path.symlink_to("nothing")


def flip(path, _):
    data = bytearray(path.read_bytes())
    at = data.index(b"draws.npy") + 200
    data[at] ^= 1
    path.write_bytes(data)


def other_block(path, others):
    shutil.copy(next(p for p in others if p.parent == path.parent and p != path), path)


def other_cell(path, others):
    shutil.copy(next(p for p in others if p.parent != path.parent), path)


def other_arrays(path, _):
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "mean"}
    np.savez(path, **arrays)


def foreign(path, _):
    np.savez(path, mean=np.ones(4))


def pickled(path, _):
    np.savez(path, mean=np.array([{}], object))


@pytest.mark.parametrize(
    "damage",
    [truncate, empty, link_to_nothing, flip, other_block, other_cell, other_arrays, foreign, pickled],
    ids=lambda f: f.__name__,
)
def test_damaged_and_foreign_blocks_are_reported_and_computed_again(tmp_path, damage):
    first = run(tmp_path)
    before = files(tmp_path)
    victim = list(before)[1]
    damage(victim, list(before))
    with pytest.warns(
        UserWarning, match=f"{re.escape(str(victim))} is not used and its replicates are computed again"
    ):
        assert digest(run(tmp_path)) == digest(first)
    after = files(tmp_path)
    assert {path for path in after if after[path] != before[path]} == {victim}
    run(tmp_path)


@settings(max_examples=40)
@given(st.data())
def test_no_flipped_bit_in_a_block_changes_a_result(tmp_path_factory, data):
    out = FLIPPED.setdefault("out", None) or tmp_path_factory.mktemp("flipped")
    if FLIPPED["out"] is None:
        FLIPPED.update(out=out, results=run(out, cells=[Small(3)], replicates=4))
        FLIPPED["path"] = next(iter(files(out)))
        FLIPPED["bytes"] = FLIPPED["path"].read_bytes()
    store = Store(out)
    damaged = bytearray(FLIPPED["bytes"])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    FLIPPED["path"].write_bytes(damaged)
    shapes = trace(draws, KEY, Small(3)).outputs
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        block = store.read(cell_id(Small(3)), 0, shapes, 4)
    if block is not None:
        assert all(np.array_equal(block.arrays[name], FLIPPED["results"][Small(3)][name]) for name in shapes)


FLIPPED: dict = {}


def without(*path):
    def change(manifest):
        *way, last = path
        for name in way:
            manifest = manifest[name]
        del manifest[last]

    return change


def with_value(value, *path):
    def change(manifest):
        *way, last = path
        for name in way:
            manifest = manifest[name]
        manifest[last] = value

    return change


FIRST = cell_id(Small(3))
LANES = "arguments.lane_width must be an integer of 1 or more, got"
DAMAGED = {
    "no_format": (without("format"), 'format must be "clairjax sweep 1"'),
    "other_format": (with_value("npm", "format"), 'format must be "clairjax sweep 1"'),
    "no_arguments": (without("arguments"), "arguments and cells must be objects"),
    "arguments": (with_value([1], "arguments"), "arguments and cells must be objects"),
    "no_cells": (without("cells"), "arguments and cells must be objects"),
    "cells": (with_value([1], "cells"), "arguments and cells must be objects"),
    "no_lanes": (without("arguments", "lane_width"), f"{LANES} null"),
    "lanes": (with_value("4", "arguments", "lane_width"), f'{LANES} "4"'),
    "zero_lanes": (with_value(0, "arguments", "lane_width"), f"{LANES} 0"),
    "cell": (with_value(None, "cells", FIRST), f"cells.{FIRST}.fields must be an object"),
    "no_fields": (without("cells", FIRST, "fields"), f"cells.{FIRST}.fields must be an object"),
    "no_program": (without("cells", FIRST, "program"), f"cells.{FIRST}.program must be a string"),
    "program": (with_value(3, "cells", FIRST, "program"), f"cells.{FIRST}.program must be a string"),
    "seconds": (with_value("1", "wall_seconds"), 'wall_seconds must be a number, got "1"'),
    "compiling": (
        with_value([], "cells", FIRST, "compile_seconds"),
        f"cells.{FIRST}.compile_seconds must be a number, got []",
    ),
}
TEXTS = ["", '{"format"', "hello", "[1]", "null", "3", "[" * 100_000, "\ufeff"]


def refused(out, message, **options):
    """The folder is refused with this message, and stays as it was."""
    before, text = files(out), (out / "manifest.json").read_bytes()
    with pytest.raises(ValueError) as error:
        run(out, **options)
    assert str(error.value) == (
        f"out: {out} holds something else than a sweep: in {out / 'manifest.json'}, {message}. "
        "Choose a new folder, or delete that file if it is what is left of this sweep's."
    )
    assert files(out) == before and (out / "manifest.json").read_bytes() == text


@pytest.mark.parametrize("lane_width", [None, 4])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_manifest_is_refused_by_what_is_wrong(tmp_path, name, lane_width):
    change, message = DAMAGED[name]
    run(tmp_path, cells=SMALL[:1])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    change(manifest)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    refused(tmp_path, message, cells=SMALL[:1], lane_width=lane_width)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[:8]))
def test_a_foreign_manifest_is_left_alone(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    refused(tmp_path, 'format must be "clairjax sweep 1"' if text in ("[1]", "null", "3") else "must be JSON")


def test_a_folder_named_manifest_is_refused(tmp_path):
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(ValueError, match="holds something else than a sweep"):
        run(tmp_path)


def test_blocks_outlive_a_manifest_that_was_deleted(tmp_path):
    first = run(tmp_path)
    before = files(tmp_path)
    (tmp_path / "manifest.json").unlink()
    assert digest(run(tmp_path)) == digest(first)
    assert files(tmp_path) == before


def test_the_empty_name_is_not_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^out: must be a folder, got ''\.$"):
        run("")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("name", ["file", "allow_pickle", "__block__", "a.npy", 3])
def test_outputs_that_a_block_cannot_hold_are_refused_before_anything_runs(tmp_path, name, stored):
    out = tmp_path / "new" if stored else None
    with pytest.raises(ValueError) as error:
        run(out, fn=lambda key, cell: {name: jnp.ones(())})
    bad = f"got {name!r}." if name in ("a.npy", 3) else f"got output {name}."
    assert str(error.value).startswith("replicate: ") and str(error.value).endswith(bad)
    assert not (tmp_path / "new").exists()


def test_fields_may_have_the_names_that_outputs_may_not(tmp_path):
    class Cell(NamedTuple):
        file: int

    for _ in range(2):
        (found,) = run(tmp_path, cells=[Cell(3)], fn=lambda key, cell: {"a": jnp.ones(cell.file)}).arrays.values()
        assert found["a"].shape == (10, 3)


def test_what_a_write_left_behind_is_ignored_and_other_files_are_untouched(tmp_path):
    run(tmp_path)
    folder = tmp_path / cell_id(Small(3))
    (folder / ".block-000000.npz.x.tmp").write_bytes(b"half")
    (tmp_path / "results.csv").write_text("mine")
    run(tmp_path)
    assert (tmp_path / "results.csv").read_text() == "mine"


def test_manifest_says_what_was_run(tmp_path):
    run(tmp_path, arguments={"preset": "smoke", "sizes": (1, 2)})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["status"] == "complete" and manifest["replicates"] == 10 and manifest["wall_seconds"] > 0
    assert set(manifest["versions"]) == {"clairjax", "python", "numpy"}
    said = manifest["arguments"]
    assert said["key"] == {"implementation": "fry", "data": [0, 3]} or said["key"]["data"] == [0, 3]
    assert said["lane_width"] == 4 and said["jax"] == jax.__version__
    assert said["jax_enable_x64"] == jax.config.jax_enable_x64 and said["device"].startswith("cpu")
    assert said["arguments"] == {"preset": "smoke", "sizes": [1, 2]}
    entry = manifest["cells"][cell_id(Small(3))]
    assert entry["fields"] == {"size": 3, "label": "a"} and entry["failures"] == []
    assert entry["outputs"]["draws"] == [str(jnp.zeros(()).dtype), 3] and entry["outputs"]["any"] == ["bool"]
    assert entry["compile_seconds"] > 0 and entry["run_seconds"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicates": 0}, "replicates: must be an integer from 1 to 2**31 - 1, got 0."),
        ({"replicates": True}, "replicates: must be an integer from 1 to 2**31 - 1, got True."),
        ({"lane_width": 0}, "lane_width: must be an integer of 1 or more, got 0."),
        ({"lane_width": True}, "lane_width: must be an integer of 1 or more, got True."),
        ({"devices": []}, "devices: at least one is needed, got none."),
        ({"key": jnp.zeros(2, jnp.uint32)}, "key: must be one typed key, as jax.random.key(seed) gives; got"),
        ({"key": jax.random.split(KEY)}, "key: must be one typed key"),
        ({"cells": []}, "cells: at least one is needed, got none."),
        ({"arguments": {"f": abs}}, "arguments: must be JSON values, got"),
        ({"fn": lambda key, cell: {"size": 1.0}}, "must not share a name"),
        (
            {"fn": lambda key, cell: {"replicate": 1.0}},
            "outputs not cell, replicate, compile_seconds, run_seconds, file, allow_pickle, __block__; "
            "got output replicate.",
        ),
        ({"fn": lambda key, cell: {}}, "replicate: it must return a non-empty dict"),
        ({"fn": lambda key, cell: {"key": key}}, "replicate: it must return a non-empty dict of boolean"),
        ({"fn": lambda key, cell: {"a": jnp.ones((), jnp.bfloat16)}}, "got {'a': 'ShapeDtypeStruct(shape=()"),
        ({"fn": lambda key, cell: {"a": {"b": 1.0}}}, "replicate: it must return a non-empty dict"),
    ],
)
def test_invalid_arguments(options, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        run(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_a_terminal_shows_a_bar_with_the_cell_and_its_phase(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for progress in (True, None):
        run(progress=progress)
        shown = capsys.readouterr().err
        assert "20/20" in shown and "size" in shown
    run(progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_without_a_terminal_or_rich_progress_is_plain_lines(capsys, monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    if terminal:
        monkeypatch.setitem(sys.modules, "rich", None)
    run(progress=True, lane_width=1)
    shown = capsys.readouterr().err
    assert "\r" not in shown and "\x1b" not in shown
    lines = shown.splitlines()
    assert lines[0].startswith("prepare: 0 of 20, ") and lines[-1].startswith("run size 5: 20 of 20, ")
    assert [int(line.split(": ")[-1].split()[0]) for line in lines] == list(range(0, 21, 2))
    run(progress=False)
    run()
    assert capsys.readouterr().err == ""


def test_configuration_of_the_calling_thread_holds(tmp_path):
    for wide in (False, True):
        with jax.enable_x64(wide):
            found = run(tmp_path / str(wide), cells=[Small(3)], replicates=2)[Small(3)]["draws"]
            alone = one_at_a_time(draws, Small(3), 2)["draws"]
        assert found.dtype == (np.float64 if wide else np.float32)
        np.testing.assert_allclose(found, alone, rtol=1e-14 if wide else 1e-6)
        manifest = json.loads((tmp_path / str(wide) / "manifest.json").read_text())
        assert manifest["arguments"]["jax_enable_x64"] == wide


def test_number_of_blocks_does_not_depend_on_devices(tmp_path):
    run(tmp_path, replicates=9, lane_width=2, devices=jax.local_devices()[:1])
    assert len(files(tmp_path)) == 2 * len(blocks_for(9, 2)) == 10
