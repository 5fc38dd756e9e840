"""A profile's numbers against programs whose costs are known, and the trace it writes."""

import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.profiling import Profile, _profile, profile


@jax.jit
def product(x):
    with jax.named_scope("clairjax.test_scope"):
        return jnp.tanh(x @ x)


def test_counts_of_a_matrix_product():
    x = jnp.ones((64, 64), jnp.float32)
    measured = profile(lambda x: x @ x, x, repeats=3)
    assert measured.flops == 2 * 64**3
    assert measured.bytes_accessed >= 2 * 64 * 64 * 4
    assert measured.argument_bytes == measured.output_bytes == 64 * 64 * 4
    assert measured.loops == 0 and measured.repeats == 3
    assert measured.flops_per_second == measured.flops / measured.run_seconds
    assert measured.bytes_per_second == measured.bytes_accessed / measured.run_seconds
    assert 0 < measured.fastest_seconds <= measured.run_seconds
    assert min(measured.trace_seconds, measured.lower_seconds, measured.compile_seconds) > 0
    assert measured.device.startswith(jax.default_backend())


def test_temporary_memory_of_an_intermediate_that_cannot_be_fused_away():
    x = jnp.ones((300, 2), jnp.float32)
    measured = profile(lambda x: jnp.linalg.eigh(x @ x.T)[0], x, repeats=1)
    assert measured.temporary_bytes >= 300 * 300 * 4


def test_a_loop_is_counted_once_and_said_so():
    x = jnp.ones((32, 32), jnp.float32)
    trips = [profile(lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: x @ y, x), x, n, repeats=1) for n in (5, 50)]
    assert trips[0].flops == pytest.approx(trips[1].flops)
    assert trips[0].flops < 2 * 2 * 32**3
    assert trips[0].loops == 1 and "one trip of each of 1 loops" in str(trips[0])


def test_run_time_is_that_of_the_work(monkeypatch):
    """On a clock that moves as calls run (2) and are waited for: the warm-up is left out."""
    now, waits = 0.0, [100.0, 5.0, 1.0, 3.0]

    def work(x):
        nonlocal now
        now += 2
        return x

    def wait(result):
        nonlocal now
        ready(result)
        now += waits.pop(0)

    ready = jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", wait)
    monkeypatch.setattr(_profile, "time", SimpleNamespace(perf_counter=lambda: now))
    x = jnp.ones(3, jnp.float32)
    measured = profile(lambda x: jax.experimental.io_callback(work, x, x), x, repeats=3)
    assert measured.run_seconds == 5 and measured.fastest_seconds == 3 and not waits
    assert measured.trace_seconds == measured.lower_seconds == measured.compile_seconds == 0


def test_any_arguments_and_results():
    def mixed(x, scale, *, flip, name):
        return {"y": (-x if flip else x) * scale, "text": name, "none": None}

    measured = profile(mixed, np.ones(3, np.float32), 2.0, flip=True, name="a", repeats=1)
    assert measured.name == "mixed" and measured.argument_bytes == measured.output_bytes == 12
    assert profile(product, jnp.ones((2, 2)), repeats=1).name == "product"
    assert profile(lambda: jnp.ones(3), repeats=1).argument_bytes == 0
    assert profile(jax.random.normal, jax.random.key(0), (3,), repeats=1).output_bytes in (12, 24)


def test_json_and_table():
    measured = profile(product, jnp.ones((8, 8), jnp.float32), repeats=2)
    said = json.loads(json.dumps(measured.to_dict()))
    assert said["flops"] == measured.flops and said["flops_per_second"] == measured.flops_per_second
    assert set(said) == {field for field in Profile.__dataclass_fields__} | {
        "flops_per_second",
        "bytes_per_second",
    }
    table = str(measured)
    assert table.startswith(f"product on {measured.device}\n")
    for label in (
        "trace",
        "compile",
        "run",
        "arithmetic",
        "memory traffic",
        "temporary memory",
        "arguments",
        "outputs",
    ):
        assert re.search(rf"^  {label} +\S", table, re.MULTILINE)
    assert "256 B" in table and "median of 2" in table


def test_a_back_end_that_tells_nothing_gives_none(monkeypatch):
    def refuse(self):
        raise NotImplementedError

    for question in ("cost_analysis", "memory_analysis", "as_text"):
        monkeypatch.setattr(jax.stages.Compiled, question, refuse)
    measured = profile(product, jnp.ones((8, 8)), repeats=1)
    assert measured.flops is measured.bytes_accessed is measured.temporary_bytes is measured.loops is None
    assert measured.flops_per_second is measured.bytes_per_second is None
    assert "not told" in str(measured) and json.dumps(measured.to_dict())


def test_repeats_below_one():
    with pytest.raises(ValueError, match="repeats: must be 1 or more, got 0"):
        profile(product, jnp.ones((2, 2)), repeats=0)


def test_trace_opens_and_holds_the_function_and_its_scope(tmp_path):
    measured = profile(product, jnp.ones((100, 100)), repeats=1, trace=tmp_path / "trace")
    assert measured.trace_folder == str(tmp_path / "trace") and "trace written to" in str(measured)
    (written,) = (tmp_path / "trace").glob("plugins/profile/*/*.xplane.pb")  # where TensorBoard looks
    events = [
        event
        for plane in jax.profiler.ProfileData.from_file(str(written)).planes
        for line in plane.lines
        for event in line.events
    ]
    steps = [event for event in events if event.name == "product"]
    assert [dict(event.stats)["step_num"] for event in steps] == [0, 1, 2]
    assert all(event.duration_ns > 0 for event in steps)
    assert any(dict(event.stats).get("hlo_module") == "jit_product" for event in events)
    assert b"clairjax.test_scope" in written.read_bytes()
    with gzip.open(next(written.parent.glob("perfetto_trace.json.gz"))) as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "product" in names


def test_a_trace_that_cannot_be_written_is_an_os_error_and_leaves_no_part_of_it(tmp_path, monkeypatch):
    """XLA writes a part, and says in its own way that the disk is full."""

    def start(folder, **_):
        part = Path(folder) / "plugins" / "profile" / "now"
        part.mkdir(parents=True)
        (part / "half.xplane.pb").touch()

    def stop():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: No space left on device")

    monkeypatch.setattr(jax.profiler, "start_trace", start)
    monkeypatch.setattr(jax.profiler, "stop_trace", stop)
    with pytest.raises(OSError, match="trace: RESOURCE_EXHAUSTED: No space left on device"):
        profile(product, jnp.ones((8, 8)), repeats=1, trace=tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["plugins", "profile"]


def test_traces_of_the_same_second_are_both_kept(tmp_path):
    for content in ("first", "second", "third"):
        run = tmp_path / "beside"
        run.mkdir()
        (run / "trace").write_text(content)
        _profile._move(run, tmp_path / "run")
    assert sorted(path.read_text() for path in tmp_path.glob("run*/trace")) == ["first", "second", "third"]
    with pytest.raises(FileNotFoundError):
        _profile._move(tmp_path / "nothing", tmp_path / "run4")
