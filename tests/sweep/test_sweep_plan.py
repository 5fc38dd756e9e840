"""Names of cells, keys of replicates, blocks and lanes; the fingerprint and the size of a traced program."""

import dataclasses
import enum
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sweep_cases
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import Cell

from clairjax import sweep
from clairjax.sweep._plan import (
    blocks_for,
    cell_id,
    cell_record,
    check_cells,
    chunks_of,
    default_lane_width,
    lane_indices,
    lanes_in_turn,
)
from clairjax.sweep._trace import fingerprint, peak_bytes


@dataclasses.dataclass(frozen=True)
class Solver:
    rtol: float
    steps: int = 3


@dataclasses.dataclass(frozen=True)
class OtherSolver:
    rtol: float
    steps: int = 3


class Colour(enum.Enum):
    red = 1


@dataclasses.dataclass(frozen=True)
class Nested:
    solver: object = Solver(1e-6)
    sizes: tuple = (1, 2)
    name: str = "a"
    flag: bool = False
    nothing: None = None
    colour: Colour = Colour.red


SCALARS = st.one_of(
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.booleans(),
)


@given(SCALARS, SCALARS)
def test_ids_are_equal_exactly_for_equal_fields(first, second):
    same = type(first) is type(second) and first == second
    numbers = not isinstance(first, bool | str) and not isinstance(second, bool | str)
    same = same or (numbers and first == second)
    assert (cell_id(Cell(first, 1)) == cell_id(Cell(second, 1))) == same


def test_id_of_a_cell_is_the_one_stored_folders_rely_on():
    assert cell_id(Cell(4, 24)) == sweep_id(clients=4, dimension=24, noise=0.1)
    assert cell_id(Cell(4, 24, 1)) == cell_id(Cell(4, 24, 1.0)) == cell_id(Cell(np.int32(4), 24, np.float64(1)))


def sweep_id(**fields):
    import hashlib

    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def test_nested_cells_are_told_apart_and_become_rows():
    assert cell_id(Nested()) != cell_id(Nested(solver=OtherSolver(1e-6)))
    assert cell_id(Nested()) != cell_id(Nested(sizes=(1, 3)))
    assert cell_record(Nested()) == {
        "solver": "Solver",
        "solver.rtol": 1e-6,
        "solver.steps": 3,
        "sizes": "[1, 2]",
        "name": "a",
        "flag": False,
        "nothing": None,
        "colour": "red",
    }


@given(st.integers(0, 2**31 - 1))
def test_key_of_a_replicate_is_two_folds(index):
    key, cell = jax.random.key(5), Cell(3, 4)
    expected = jax.random.fold_in(jax.random.fold_in(key, np.uint32(int(cell_id(cell)[:8], 16))), np.uint32(index))
    found = sweep.replicate_key(key, cell, index)
    assert (jax.random.key_data(found) == jax.random.key_data(expected)).all()


def test_lanes_are_batched_on_accelerators_and_where_a_cpu_s_cache_holds_them():
    assert not lanes_in_turn(2**21, "cpu") and lanes_in_turn(2**21 + 1, "cpu")
    assert not lanes_in_turn(2**40, "gpu") and not lanes_in_turn(2**40, "tpu")


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 9))
def test_lanes_cover_each_replicate_once_whatever_the_devices(replicates, lane_width, devices):
    lanes = []
    for chunk in chunks_of(blocks_for(replicates, lane_width), devices):
        indices = lane_indices(chunk, devices, lane_width)
        assert indices.dtype == np.uint32 and len(indices) == devices * lane_width
        assert set(indices) == set(indices[: len(chunk) * lane_width])  # padding repeats real replicates
        lanes += indices[: len(chunk) * lane_width].tolist()
    assert lanes == list(range(len(lanes))) and replicates <= len(lanes) < replicates + lane_width


@pytest.mark.parametrize(
    ("size", "replicates", "platform", "width"),
    [
        (1, 1000, "cpu", 32),
        (1, 100, "cpu", 13),
        (1, 3, "cpu", 1),
        (2**26, 1000, "cpu", 4),
        (2**40, 99, "cpu", 1),
        (1, 10**6, "gpu", 1024),
        (2**26, 10**6, "gpu", 32),
        (0, 10**6, "gpu", 1024),
    ],
)
def test_default_lane_width(size, replicates, platform, width):
    assert default_lane_width(size, replicates, platform) == width


class Listed(NamedTuple):
    sizes: list


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([], "cells: at least one is needed, got none."),
        ([Cell(1, 2), Cell(1, 2)], "more than once"),
        ([Cell(1, 2), Cell(1.0, 2)], "more than once"),
        ([3], "cells: each must be a frozen dataclass or a NamedTuple, got int."),
        ([Listed([1])], "cells: cell.sizes must be a number, string, bool, None, or a tuple"),
        ([Cell(float("nan"), 1)], "cells: cell.clients must be a number"),
        ([Cell(jnp.ones(()), 1)], "cells: cell.clients must be a number"),
    ],
)
def test_cells_that_are_refused(cells, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        check_cells(cells)


def program(key):
    x = jax.random.normal(key, (6, 4))
    y = jax.nn.relu(x) + jax.nn.softplus(x) + jax.nn.gelu(x)
    z = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sort(c[1])), (0, y))[1]
    return (
        jax.lax.scan(lambda c, row: (c + row, row), z[0], z)[0],
        jnp.linalg.qr(x)[1],
        jax.checkpoint(jnp.sin)(x),
    )


def test_fingerprint_is_the_same_in_another_process_and_after_the_caches_are_cleared():
    fresh = fingerprint(jax.make_jaxpr(program)(jax.random.key(0)))
    jax.eval_shape(jax.vmap(program), jax.random.split(jax.random.key(1), 3))
    assert fingerprint(jax.make_jaxpr(program)(jax.random.key(0))) == fresh
    code = f"""
import sys, jax
jax.config.update("jax_enable_x64", {jax.config.jax_enable_x64})
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
import test_sweep_plan as t
jax.eval_shape(t.program, jax.random.key(3))
print(t.fingerprint(jax.make_jaxpr(t.program)(jax.random.key(0))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fresh


CONSTANT = np.arange(4.0, dtype=np.float32)


@pytest.mark.parametrize(
    "changed",
    [
        lambda x: {"a": 2 * x},
        lambda x: {"a": x * x},
        lambda x: {"a": x + CONSTANT},
        lambda x: {"a": x + 2 * CONSTANT},
        lambda x: {"a": jax.lax.fori_loop(0, 3, lambda _, y: y + y, x)},
        lambda x: {"a": jax.lax.fori_loop(0, 4, lambda _, y: y + y, x)},
        lambda x: {"a": jax.lax.fori_loop(0, 4, lambda _, y: y + x, x)},
        lambda x: {"a": jax.jit(lambda y, z: y - z)(x, 2 * x)},
        lambda x: {"a": jax.jit(lambda y, z: z - y)(x, 2 * x)},
    ],
)
def test_fingerprint_tells_programs_apart(changed, seen=set()):  # noqa: B006
    found = fingerprint(jax.make_jaxpr(changed)(jnp.ones(4, jnp.float32)))
    assert found not in seen
    seen.add(found)


def test_peak_bytes_of_programs_counted_by_hand():
    x = jax.ShapeDtypeStruct((100,), jnp.float32)
    peak = lambda fn: peak_bytes(jax.make_jaxpr(fn)(x).jaxpr)
    assert peak(lambda x: x + x) == 800  # x and the sum
    assert peak(lambda x: jnp.sin(jnp.sin(jnp.sin(x)))) == 800  # each freed after its use
    assert peak(lambda x: (lambda a, b: a + b + x)(jnp.sin(x), jnp.cos(x))) == 1600
    assert peak(lambda x: jnp.sum(x[:, None] * x[None, :], dtype=jnp.float32)) >= 40_000
    loop = lambda x: jax.lax.fori_loop(0, 9, lambda _, y: jnp.sum(y[:, None] * x[None, :], 0, dtype=jnp.float32), x)
    assert 40_000 <= peak(loop) <= 90_000


def test_peak_bytes_is_of_the_size_that_the_compiler_reports():
    key = jax.random.key(0)
    fn = lambda key: sweep_cases.replicate(key, Cell(8, 100))
    told = jax.jit(fn).lower(key).compile().memory_analysis().temp_size_in_bytes
    assert told / 4 < peak_bytes(jax.make_jaxpr(fn)(key).jaxpr) < 4 * told
