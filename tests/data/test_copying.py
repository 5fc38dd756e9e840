"""The copying task: where segments lie, how letters are drawn, and the accuracy a perfect copier gets."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairjax.data import Copying, Sequences, copying_mask, masked_accuracy
from clairjax.data._copying import KINDS


generate = eqx.filter_jit(lambda task, count, key: task.generate(count, key=key))


def first_starts(sequences):
    """Every place where the judged segment also stands, before the second copy: the nearest to the front that fits."""
    tokens, second, lengths = (np.asarray(leaf) for leaf in jax.tree.leaves(sequences))
    for row, m, length in zip(tokens, second, lengths, strict=True):
        segment = row[m : m + length]
        yield [s for s in range(m - length + 1) if np.array_equal(row[s : s + length], segment)], m, length


@given(seed=st.integers(0, 2**31 - 1), length=st.integers(1, 31), exponent=st.floats(0.0, 3.0))
def test_a_segment_occurs_twice_with_something_between_and_after(seed, length, exponent):
    task = Copying(jnp.asarray(exponent, jnp.float32), jnp.array([length]))
    sequences = generate(task, 8, jax.random.key(seed))
    assert sequences.tokens.dtype == jnp.int32
    assert int(sequences.tokens.min()) >= 0 and int(sequences.tokens.max()) < 52
    for starts, second, size in first_starts(sequences):
        assert size == length and second + size < 64
        assert any(start + size < second for start in starts)


@pytest.mark.parametrize("length", [5, 30])
def test_cut_points_are_a_uniform_pair(key, length):
    """Lengths of the three backgrounds: c₁ and c₂ − c₁ and T − 2L − c₂ for a uniform pair c₁ < c₂ below T − 2L."""
    free = 64 - 2 * length
    task = Copying(0.0, length)
    second = np.asarray(generate(task, 20000, key).second) - length  # c₂
    expected = 2 * np.arange(free) / (free * (free - 1))  # of the larger of two distinct numbers
    counts = np.bincount(second, minlength=free) / len(second)
    assert second.min() >= 1 and second.max() <= free - 1
    assert (np.abs(counts - expected) < 4.5 * np.sqrt(expected * (1 - expected) / len(second)) + 1e-12).all()
    # and where the first copy starts, from the tokens, which repeat nothing else by chance at exponent 0
    starts = [s for s, _, _ in first_starts(generate(task, 3000, key))]
    assert all(len(s) == 1 for s in starts)
    first = np.array([s[0] for s in starts])
    expected = 2 * (free - 1 - np.arange(free)) / (free * (free - 1))
    counts = np.bincount(first, minlength=free) / len(first)
    assert (np.abs(counts - expected) < 4.5 * np.sqrt(expected * (1 - expected) / len(first)) + 1e-12).all()


@pytest.mark.parametrize(("kind", "exponent"), [("fuzzy", 1.1), ("random", 1.6), ("reversed", 1.1)])
def test_letters_follow_the_power_law(key, kind, exponent):
    tokens = np.asarray(generate(Copying(exponent, 16, kind=kind), 4000, key).tokens)[:, 0]  # independent rows
    law = np.arange(1, 53) ** -exponent
    law = law / law.sum()
    counts = np.bincount(tokens, minlength=52)[:52] / len(tokens)
    counts = counts[::-1] if kind == "reversed" else counts
    assert (np.abs(counts - law) < 4.5 * np.sqrt(law * (1 - law) / len(tokens))).all()


def test_lengths_follow_their_law(key):
    weights = jnp.array([1.0, 0.0, 3.0], jnp.float32)
    lengths = np.asarray(generate(Copying(1.1, jnp.array([5, 9, 15]), weights), 4000, key).lengths)
    assert set(np.unique(lengths)) == {5, 15}
    assert abs((lengths == 15).mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 4000)
    even = np.asarray(generate(Copying(1.1, jnp.arange(5, 16)), 5500, key).lengths)
    assert np.abs(np.bincount(even)[5:] - 500).max() < 4.5 * np.sqrt(500)


def test_the_other_kinds(key):
    draw = lambda kind: generate(Copying(1.1, 10, kind=kind), 50, key)
    clean, shifted, random = draw("clean"), draw("shifted"), draw("random")
    np.testing.assert_array_equal(clean.tokens[:, :10], clean.tokens[:, 10:20])
    assert bool((clean.tokens[:, 20:] == 52).all()) and bool((clean.tokens[:, :20] < 52).all())
    fuzzy = draw("fuzzy")
    inside = np.asarray(copying_mask(fuzzy))
    np.testing.assert_array_equal(shifted.tokens[inside], (np.asarray(fuzzy.tokens)[inside] + 1) % 52)
    before = np.arange(64)[None] < np.asarray(fuzzy.second)[:, None]
    np.testing.assert_array_equal(np.asarray(shifted.tokens)[before], np.asarray(fuzzy.tokens)[before])
    assert not any(starts for starts, _, _ in first_starts(random))


@pytest.mark.parametrize("kind", ["fuzzy", "clean", "reversed"])
def test_a_perfect_copier_scores_one_and_only_where_it_is_judged(key, kind, dtype):
    """The copier sees the token before and the offset of the copies, so is right in all but the burn-in."""
    sequences = generate(Copying(1.1, jnp.arange(4, 27), kind=kind), 200, key)
    tokens, second, lengths = (np.asarray(leaf) for leaf in jax.tree.leaves(sequences))
    guesses = np.full_like(tokens, 52)
    for row, starts in enumerate(first_starts(sequences)):
        gap = second[row] - starts[0][0]
        for t in range(second[row] + 3, second[row] + lengths[row]):
            guesses[row, t - 1] = tokens[row, t - gap]  # made at t − 1, when t is not yet seen
    logits = jax.nn.one_hot(guesses, 53, dtype=dtype)
    found = masked_accuracy(logits, sequences)
    assert found.dtype == dtype and float(found) == 1.0
    late = jnp.roll(logits, 1, axis=1)
    assert float(masked_accuracy(late, sequences)) < 0.5  # off by one


def test_accuracy_counts_tokens_not_sequences():
    tokens = jnp.zeros((2, 10), jnp.int32)
    sequences = Sequences(tokens, jnp.array([3, 2]), jnp.array([4, 8]))
    np.testing.assert_array_equal(np.flatnonzero(copying_mask(sequences)[0]), [6])
    np.testing.assert_array_equal(np.flatnonzero(copying_mask(sequences)[1]), [5, 6, 7, 8, 9])
    guesses = np.ones((2, 10), int)
    guesses[0, 5] = 0
    assert float(masked_accuracy(jax.nn.one_hot(guesses, 2), sequences)) == pytest.approx(1 / 6, rel=1e-6)


def test_nothing_judged_is_not_a_number():
    sequences = Sequences(jnp.zeros((1, 8), jnp.int32), jnp.array([4]), jnp.array([3]))
    assert np.isnan(masked_accuracy(jnp.zeros((1, 8, 3)), sequences))


def test_jit_and_vmap_change_nothing(key):
    keys = jax.random.split(key, 3)
    exponents, lengths = jnp.array([0.95, 1.1, 1.6], jnp.float32), jnp.array([10, 16, 26])
    batch = jax.jit(jax.vmap(lambda t, n, k: Copying(t, n).generate(4, key=k)))(exponents, lengths, keys)
    for i in range(3):
        one = Copying(float(exponents[i]), int(lengths[i])).generate(4, key=keys[i])
        for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(batch), strict=True):
            np.testing.assert_array_equal(left, right[i])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": 0}, "lengths must be from 1 to 31, got 0."),
        ({"lengths": 32}, "lengths must be from 1 to 31, got 32."),
        ({"lengths": jnp.zeros(0, int)}, "lengths must be from 1 to 31, got none."),
        ({"exponent": float("nan")}, "exponent must be finite, got nan."),
        ({"letters": 1}, "letters must be an integer of at least 2, got 1."),
        ({"time": 3}, "time must be an integer of at least 4, got 3."),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError) as error:
        Copying(**({"exponent": 1.1, "lengths": 16} | arguments))
    assert str(error.value) == message


def test_an_unknown_kind_is_refused():
    assert len(set(KINDS)) == 5
    with pytest.raises(Exception, match="backwards"):  # the type checker of the tests refuses it first
        Copying(1.1, 16, kind="backwards")
