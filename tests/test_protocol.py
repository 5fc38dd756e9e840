"""What every public driver promises: jit, vmap equal to a loop, one trace, the data's dtype, a status for bad data.

The kernels' protocol is in kernels/test_kernel_protocol.py.
"""

import dataclasses
import functools
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import ClairResult, Decomposition, Factored, Penalty, ProximalGradient, Status, clair, decompose
from clairjax.alignment import Election, Multipliers


CLIENTS, OUT, IN = 8, 7, 6
PENALTY = Penalty(0.6, 0.25)

DRIVERS = {
    "decompose, Factored": lambda weights: decompose(weights, PENALTY, solver=Factored(max_rank=4)),
    "decompose, ProximalGradient": lambda weights: decompose(
        weights, PENALTY, solver=ProximalGradient(accelerate=True)
    ),
    "decompose, Multipliers": lambda weights: decompose(weights, Penalty(1.0, 0.4), solver=Multipliers()),
    "clair": functools.partial(clair, vote_share=0.5, shrink=True),
}


def reports(seed, dtype=jnp.float64, noise=0.1):
    """Two of eight clients contaminated."""
    rng = np.random.default_rng(seed)
    change = rng.normal(size=(CLIENTS, OUT, 2)) @ rng.normal(size=(2, IN))
    change[:2] += rng.normal(size=(2, OUT, IN))
    return jnp.asarray(change + noise * rng.normal(size=change.shape), dtype)


class Driver:
    """A driver under plain `jax.jit`, and how often it was traced."""

    def __init__(self, function):
        self.function, self.traces = function, 0
        self.jitted = jax.jit(self._traced)

    def _traced(self, weights):
        self.traces += 1
        return self.function(weights)


@functools.cache
def jitted(name, dtype):
    return Driver(DRIVERS[name])


@pytest.fixture(params=DRIVERS)
def name(request):
    return request.param


def test_keeps_the_dtype_and_traces_once(name, dtype):
    """Also where the options are Python numbers, and with float32 data in an x64 process."""
    driver = jitted(name, dtype)
    for seed in range(3):
        found = driver.jitted(reports(seed, dtype))
        floats = [leaf for leaf in jax.tree.leaves(found) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        assert len(floats) >= 5 and {leaf.dtype for leaf in floats} == {dtype}
        chex.assert_tree_all_finite(found)
        assert found.status == Status.converged
    assert driver.traces == 1


def test_a_client_that_is_not_a_number_is_a_status(name, dtype):
    driver = jitted(name, dtype)
    for value in (np.nan, np.inf):
        weights = reports(0, dtype).at[3, 1, 2].set(value)
        found = driver.jitted(weights)
        assert found.status == Status.nonfinite_input
        if isinstance(found, ClairResult):
            assert not found.members.any()
            np.testing.assert_array_equal(found.refined, weights)
    assert driver.traces == 1


def numbers(result):
    """By name, without bases: the sign of a singular vector is the eigensolver's choice."""
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(result)}
    return {name: leaf for name, leaf in leaves.items() if not name.endswith(".basis") and ".status" not in name}


@pytest.mark.skipif(not jax.config.jax_enable_x64, reason="to 1e-9, which takes float64")
def test_vmap_is_a_loop(name):
    """In a batch whose lanes stop at different steps."""
    lanes = [reports(seed, noise=noise) for seed, noise in ((0, 0.1), (1, 0.01), (2, 0.4))]
    driver = jitted(name, jnp.dtype("float64"))
    looped = [driver.jitted(lane) for lane in lanes]
    found = jax.jit(jax.vmap(DRIVERS[name]))(jnp.stack(lanes))
    if name != "clair":  # whose path has a fixed length
        assert len({int(one.steps) for one in looped}) > 1
    for place, one in enumerate(looped):
        lane = jax.tree.map(lambda leaf, place=place: leaf[place], found)
        np.testing.assert_allclose(lane.projector, one.projector, atol=1e-9)
        for field, expected in numbers(one).items():
            np.testing.assert_allclose(numbers(lane)[field], expected, rtol=1e-9, atol=1e-9, err_msg=field)
        assert lane.status == one.status


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from primitives(getattr(inner, "jaxpr", inner))


def test_compiles_ahead_of_time_and_never_calls_the_host(name, dtype):
    driver = jitted(name, dtype)
    traced = driver.jitted.trace(reports(0, dtype))
    names = set(primitives(traced.jaxpr.jaxpr))
    assert {"while", "scan"} & names and "eigh" in names
    assert not {one for one in names if "callback" in one or "infeed" in one or "outfeed" in one}
    compiled = traced.lower().compile()
    chex.assert_trees_all_equal(compiled(reports(1, dtype)), driver.jitted(reports(1, dtype)))


@pytest.mark.parametrize("result", [Decomposition, Election, ClairResult])
def test_results_are_documented_arrays(result):
    text = inspect.getdoc(result)
    for field in dataclasses.fields(result):
        assert f"`{field.name}`" in text
        shaped = hasattr(field.type, "dim_str")  # a jaxtyping annotation
        assert shaped or field.type in (Status, Penalty, Election, Decomposition | None) or field.name == "refined"


def test_survives_a_process_of_32_bits(rerun_in_32_bits):
    rerun_in_32_bits(__file__, "-k", "(dtype or number) and not ProximalGradient")
