"""Outcomes are data inside a trace and sentences outside."""

import jax
import jax.numpy as jnp
import pytest

from clairjax import Status
from clairjax._status import worst


MEMBERS = {name: getattr(Status, name) for name in Status._name_to_item}


@pytest.mark.parametrize("name", MEMBERS)
def test_each_is_a_sentence_that_says_what_to_try(name):
    sentence = Status[MEMBERS[name]]
    assert sentence[0].isupper() and sentence.endswith(".")
    if name != "converged":
        assert ": " in sentence  # what happened: what to try


def test_names_are_few_and_pinned():
    assert sorted(MEMBERS) == [
        *("converged", "diverged", "invalid_argument", "max_steps_reached"),
        *("no_majority", "nonfinite_input", "rank_at_bound", "rank_by_gap", "too_small", "unequal_noise"),
    ]


@pytest.mark.parametrize("first", MEMBERS)
@pytest.mark.parametrize("second", MEMBERS)
def test_the_first_that_is_not_converged_wins(first, second):
    expected = second if first == "converged" else first
    assert worst(MEMBERS[first], MEMBERS[second]) == MEMBERS[expected]


def test_chosen_inside_a_trace_and_under_vmap():
    @jax.jit
    @jax.vmap
    def choose(value):
        return Status.where(value > 0, Status.converged, Status.no_majority)

    found = choose(jnp.asarray([1.0, -1.0]))
    assert (found == Status.converged).tolist() == [True, False]
    assert (found == Status.no_majority).tolist() == [False, True]
    first = jax.tree.map(lambda leaf: leaf[0], found)
    assert Status[first].startswith("Converged")
