"""Gaussian noise in whole numbers, drawn without floating point: ⌊2^s · N⌋ with N standard normal."""

from decimal import Decimal, localcontext
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt

from .._typing import Key


FRACTION = 26  # bits of N behind the point that a result can show
BLOCK = 8192  # entries that wait for each other

Words = tuple[UInt[Array, "..."], UInt[Array, "..."]]  # 64 bits, high word first: a number in [0, 1)


def _thresholds() -> tuple[np.ndarray, np.ndarray]:
    """⌊2^64 P(K ≤ j)⌋ for P(K = j) ∝ exp(−j²/2), j = 0 … 8. That K is above 9 has probability 2^-73."""
    with localcontext() as context:
        context.prec = 60
        weights = [(-Decimal(j * j) / 2).exp() for j in range(20)]
        sums = [int(2**64 * sum(weights[: j + 1]) / sum(weights)) for j in range(9)]
    return np.array([each >> 32 for each in sums], np.uint32), np.array([each % 2**32 for each in sums], np.uint32)


THRESHOLDS = _thresholds()


class _State(NamedTuple):
    """Of each entry: |N| = whole + part is proposed, and has `trials` to pass; with 0 a proposal is due, with −1 it is
    done. A trial is a sequence of numbers that falls from `part`: it is passed where an `even` number of them fell."""

    step: Int[Array, ""]
    whole: Int[Array, " entries"]
    part: Words
    least: Words
    even: Bool[Array, " entries"]
    trials: Int[Array, " entries"]


def whole_normal(key: Key, shape: tuple[int, ...], exponent: Int[Array, ""]) -> Int[Array, "..."]:
    """Independent ⌊2^exponent · N⌋ in int32, for an exponent of at most 26.

    |N| = k + x is proposed with P(k) ∝ exp(−k²/2) and x uniform, and kept with probability exp(−x)^k exp(−x²/2).
    Uniform numbers fall from x for exactly j steps with chance x^j/j! − x^(j+1)/(j+1)!, so that j is even with chance
    exp(−x); where each step has another chance of x/2 to end it, exp(−x²/2). Nothing but comparisons of 64 random
    bits: two numbers that they cannot tell apart have chance 2^-64.

    **Source:** Karney, Sampling exactly from the normal distribution (2016), algorithm N, with k from a table.
    """
    entries = int(np.prod(shape))
    blocks = -(-entries // BLOCK)
    draw = lambda key: _whole_normal(key, -(-entries // max(blocks, 1)), exponent)
    return jax.lax.map(draw, jax.random.split(key, blocks)).reshape(-1)[:entries].reshape(shape)


def _whole_normal(key: Key, entries: int, exponent: Int[Array, ""]) -> Int[Array, " {entries}"]:
    bits_key, sign_key = jax.random.split(key)
    zero, words = jnp.zeros(entries, jnp.int32), (jnp.zeros(entries, jnp.uint32),) * 2
    state = _State(jnp.zeros((), jnp.int32), zero, words, words, zero == 0, zero)
    state = jax.lax.while_loop(lambda state: jnp.any(state.trials >= 0), lambda state: _step(state, bits_key), state)
    magnitude = (state.whole << FRACTION) | (state.part[0] >> (32 - FRACTION)).astype(jnp.int32)
    magnitude = magnitude >> jnp.clip(FRACTION - exponent, 0, 31)
    negative = jax.random.bits(sign_key, (entries,), jnp.uint8) & 1 == 1
    return jnp.where(negative, ~magnitude, magnitude)  # ⌊−t⌋ = −⌊t⌋ − 1, but for whole t


def _step(state: _State, key: Key) -> _State:
    """One proposal, or one comparison of a trial, for each entry."""
    bits = jax.random.bits(jax.random.fold_in(key, state.step), (4, *state.trials.shape), jnp.uint32)
    number, other = (bits[0], bits[1]), (bits[2], bits[3])
    due, running, last = state.trials == 0, state.trials > 0, state.trials == 1
    high, low = (jnp.asarray(words)[None] for words in THRESHOLDS)
    proposed = jnp.sum(~_below((other[0][:, None], other[1][:, None]), (high, low)), 1, dtype=jnp.int32)
    half = state.part[0] >> 1, (state.part[0] << 31) | (state.part[1] >> 1)
    falls = running & _below(number, state.least) & (~last | _below(other, half))
    after = jnp.where(state.even, jnp.where(last, -1, state.trials - 1), 0)
    part = _choose(due, number, state.part)
    return _State(
        state.step + 1,
        jnp.where(due, proposed, state.whole),
        part,
        _choose(falls, number, part),
        ~(falls & state.even),
        jnp.where(due, proposed + 1, jnp.where(running & ~falls, after, state.trials)),
    )


def _below(first: Words, second: Words) -> Bool[Array, "..."]:
    return (first[0] < second[0]) | ((first[0] == second[0]) & (first[1] < second[1]))


def _choose(condition: Bool[Array, "..."], first: Words, second: Words) -> Words:
    return jnp.where(condition, first[0], second[0]), jnp.where(condition, first[1], second[1])
