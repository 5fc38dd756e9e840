"""The one loop of the solvers: it stops on a certificate, looks once a block, and tells what happened."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int

from clairjax import Status
from clairjax._loop import iterate


class Looked(NamedTuple):
    optimality: Float[Array, ""]
    at: Int[Array, ""]


class Halving(NamedTuple):
    value: Float[Array, ""]
    count: Int[Array, ""]


def halve(state):
    return Halving(state.value / 2, state.count + 1)


def look(state):
    return Looked(state.value, state.count)


@jax.jit
def run(value, rtol):
    """1, ½, ¼, …, looked at after each four; at most ten, which makes three blocks."""
    state = Halving(value, jnp.zeros((), jnp.int32))
    return iterate(halve, look, state, rtol=rtol, max_steps=10, check_every=4)


@pytest.mark.parametrize(
    ("value", "rtol", "steps", "status"),
    [
        (1.0, 0.5, 4, Status.converged),  # at the first look, not before
        (1.0, 2.0**-4, 4, Status.converged),  # "at or below"
        (1.0, 2.0**-5, 8, Status.converged),
        (1.0, 2.0**-12, 12, Status.converged),  # the last block is whole
        (1.0, 2.0**-13, 12, Status.max_steps_reached),
        (0.0, 0.0, 4, Status.converged),
        (np.nan, 0.5, 4, Status.diverged),
        (np.inf, 0.5, 12, Status.diverged),
    ],
)
def test_where_it_stops(value, rtol, steps, status):
    state, certificate, outcome = run(jnp.asarray(value), rtol)
    assert int(outcome.steps) == int(state.count) == int(certificate.at) == steps
    assert outcome.status == status
    np.testing.assert_array_equal(certificate.optimality, state.value)


def test_a_certificate_below_minus_rtol_certifies_nothing():
    """A gap is never negative but by rounding: one that is by more than rtol has no digits."""
    *_, outcome = run(jnp.asarray(-16.0), 2.0**-13)
    assert outcome.status != Status.converged


def test_few_steps_are_one_block():
    state = Halving(jnp.ones(()), jnp.zeros((), jnp.int32))
    state, _, outcome = iterate(halve, look, state, rtol=0.0, max_steps=3, check_every=4)
    assert int(outcome.steps) == int(state.count) == 3


def test_lanes_stop_alone():
    values = jnp.asarray([1.0, 8.0, 1e9, jnp.nan])
    found = jax.vmap(run, in_axes=(0, None))(values, 0.5)
    each = [run(value, 0.5) for value in values]
    looped = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    assert found[2].steps.tolist() == [4, 4, 12, 4]
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(looped), strict=True):
        np.testing.assert_array_equal(one, other)


def test_step_and_certificate_are_traced_a_fixed_number_of_times():
    """Whatever the number of steps: the loop is not unrolled."""
    traced = []

    def counted(name, function):
        return lambda state: (traced.append(name), function(state))[1]

    def compiled(max_steps):
        traced.clear()
        state = Halving(jnp.ones(()), jnp.zeros((), jnp.int32))
        jax.make_jaxpr(
            lambda state: iterate(
                counted("step", halve), counted("look", look), state, rtol=0.0, max_steps=max_steps, check_every=4
            )
        )(state)
        return sorted(traced)

    assert compiled(8) == compiled(8000)


def test_dtype_is_the_states(dtype):
    state, certificate, outcome = run(jnp.ones((), dtype), 2.0**-5)
    assert state.value.dtype == certificate.optimality.dtype == dtype
    assert outcome.steps.dtype == jnp.int32
