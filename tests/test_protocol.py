"""What every public driver promises: one program, jit, vmap equal to a loop, the data's dtype, a status for bad data.

The kernels' protocol is in kernels/test_kernel_protocol.py.
"""

import dataclasses
import functools
import inspect

import chex
import drivers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import nothing_compiles
from drivers import DRIVERS, OF_SAMPLES, OF_WEIGHTS, WITHOUT_STATUS, function_of

from clairjax import ClairResult, Decomposition, Penalty, Representation, Status
from clairjax.alignment import Election
from clairjax.representation import RidgeRepresentation


GOOD, NOT_FINITE, OUT_OF_RANGE = slice(0, 3), slice(3, 5), 5  # lanes of a batch; the last has counts alone
FIRST = [name for name in DRIVERS if name == function_of(name) or name in OF_WEIGHTS]  # a program of each function
HAVE_STATUS = [name for name in FIRST if name not in WITHOUT_STATUS]


@functools.cache
def alone(name, seed, dtype):
    return DRIVERS[name](drivers.problem(name, seed, dtype))


def batch(name):
    """Three good problems, two with a client that is not finite, and one whose counts are out of range."""
    lanes = [drivers.problem(name, seed) for seed in (0, 1, 2, 0, 1)]
    for lane, value in zip(lanes[NOT_FINITE], (np.nan, np.inf), strict=True):
        lane[0][3, 0, 0] = value
    if name in OF_SAMPLES:
        short = drivers.problem(name, 0)
        lanes.append(short._replace(counts=np.where(np.arange(len(short.counts)) == 2, 13, short.counts)))
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *lanes)


@functools.cache
def traced(name):
    return jax.jit(jax.vmap(DRIVERS[name])).trace(batch(name))


@functools.cache
def together(name):
    """Compiled ahead of time, and so once for all shapes."""
    return traced(name).lower().compile()(batch(name))


def lane(found, place):
    return jax.tree.map(lambda leaf: leaf[place], found)


def floats_of(found):
    """Arrays; what a ledger holds may be a number."""
    arrays = [leaf for leaf in jax.tree.leaves(found) if hasattr(leaf, "dtype")]
    return [leaf for leaf in arrays if jnp.issubdtype(leaf.dtype, jnp.floating)]


in_x64 = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="to 1e-9, which takes float64")


def test_every_public_driver_is_here():
    """And every public function that takes counts."""
    has_status = lambda result: "status" in getattr(result, "__dataclass_fields__", {}) or hasattr(result, "status")
    public = dict(drivers.public_functions())
    del public["train"]  # many programs, with evaluations and files between them: tests/federated
    assert set(map(function_of, HAVE_STATUS)) == {
        name for name, signature in public.items() if has_status(signature.return_annotation)
    }
    assert set(map(function_of, OF_SAMPLES)) == {
        name for name, signature in public.items() if "counts" in signature.parameters
    }


@pytest.mark.parametrize("name", DRIVERS)
def test_other_values_of_the_same_shapes_compile_nothing(name):
    """Called as users call it, numbers as numbers."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    check(name, alone(name, 0, dtype), dtype)
    other = drivers.problem(name, 3, dtype)
    with nothing_compiles():
        found = DRIVERS[name](other)
    check(name, found, dtype)


def check(name, found, dtype):
    """Finite numbers of one dtype, and a status that says so."""
    floats = floats_of(found)
    assert floats and {leaf.dtype for leaf in floats} == {dtype}
    chex.assert_tree_all_finite(floats)
    if function_of(name) not in WITHOUT_STATUS:
        limited = name in OF_SAMPLES and found.status == Status.max_steps_reached
        assert limited or found.status == Status.converged


@pytest.mark.parametrize("name", FIRST)
@in_x64
def test_keeps_float32_in_a_process_of_64_bits(name):
    """The solvers' tolerances depend on the dtype, so these run; `elect`, a part of `clair`, and others are traced."""
    dtype = jnp.dtype("float32")
    if name in OF_WEIGHTS and name != "elect":
        check(name, alone(name, 0, dtype), dtype)
    else:
        shapes = jax.eval_shape(DRIVERS[name], drivers.problem(name, 0, dtype)._replace(number=np.float32(1.0)))
        assert {leaf.dtype for leaf in floats_of(shapes)} == {dtype}


@pytest.mark.parametrize("name", FIRST)
@in_x64
def test_vmap_is_a_loop(name):
    """In a batch whose lanes stop at different steps."""
    found = together(name)
    looped = [alone(name, seed, jnp.dtype("float64")) for seed in range(3)]
    if name in OF_WEIGHTS and name != "clair":  # whose path has a fixed length
        assert len({int(getattr(one, "decomposition", one).steps) for one in looped}) > 1
    for place, one in enumerate(looped):
        for field, expected in invariants(one).items():
            np.testing.assert_allclose(
                invariants(lane(found, place))[field], expected, rtol=1e-9, atol=1e-9, err_msg=field
            )


def invariants(found):
    """What the sign of a singular vector, which is the eigensolver's choice, does not change."""
    if isinstance(found, jax.Array):
        return {"array": found if found.shape[0] == len(drivers.COUNTS) else found @ found.T}
    if isinstance(found, ClairResult):
        return invariants(found.election) | {"refined": found.refined}
    apart = {"basis", "heads", "decomposition", "penalty", "privacy"}
    fields = {field.name for field in dataclasses.fields(found)} - apart
    numbers = {field: getattr(found, field) for field in fields} | {"status": found.status._value}
    numbers |= {"span": found.basis @ found.basis.T, "heads": getattr(found, "coefficients", None)}
    return {field: value for field, value in numbers.items() if value is not None}


@pytest.mark.parametrize("name", HAVE_STATUS)
@in_x64
def test_a_client_that_is_not_a_number_is_a_status(name):
    found = together(name)
    not_finite = found.status == Status.nonfinite_input
    assert not_finite[NOT_FINITE].all() and not not_finite[GOOD].any()
    if isinstance(found, ClairResult):
        assert not found.members[NOT_FINITE].any()
        np.testing.assert_array_equal(found.refined[NOT_FINITE], batch(name).weights[NOT_FINITE])
    if type(found) in (Representation, RidgeRepresentation):  # no client's privacy hides another's fault
        for array in (found.basis, found.heads):
            assert jnp.isnan(array[NOT_FINITE]).all() and jnp.isfinite(array[GOOD]).all()


@pytest.mark.parametrize("name", [name for name in FIRST if name in OF_SAMPLES])
@in_x64
def test_traced_counts_out_of_range_are_a_status_and_no_numbers(name):
    found = lane(together(name), OUT_OF_RANGE)
    if name not in WITHOUT_STATUS:
        assert found.status == Status.invalid_argument
        assert all(jnp.isnan(leaf).all() for leaf in (found.basis, getattr(found, "heads", found.basis)))
    else:
        assert all(jnp.isnan(leaf).any() for leaf in floats_of(found))


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from primitives(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize("name", FIRST)
def test_never_calls_the_host(name):
    names = set(primitives(traced(name).jaxpr.jaxpr))
    assert {"while", "scan", "eigh", "cholesky"} & names
    assert not {one for one in names if "callback" in one or "infeed" in one or "outfeed" in one}


@pytest.mark.parametrize("result", [Decomposition, Election, ClairResult])
def test_results_are_documented_arrays(result):
    text = inspect.getdoc(result)
    for field in dataclasses.fields(result):
        assert f"`{field.name}`" in text
        shaped = hasattr(field.type, "dim_str")  # a jaxtyping annotation
        assert shaped or field.type in (Status, Penalty, Election, Decomposition | None) or field.name == "refined"
