"""The copying task of the CLAIR paper's section 8: sequences from a key, and the accuracy they are judged by."""

from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .. import _validate
from .._typing import Key, Kind


KINDS = get_args(Kind)
BURN_IN = 3  # positions of the second copy that do not count


def _as_lengths(lengths: ArrayLike) -> Int[Array, " options"]:
    return jnp.atleast_1d(jnp.asarray(lengths, jnp.int32))


class Sequences(eqx.Module):
    """Sequences in which a segment occurs twice."""

    tokens: Int[Array, "count time"]
    second: Int[Array, " count"]  # where the second copy starts, from 0
    lengths: Int[Array, " count"]  # of the segment


class Copying(eqx.Module):
    """Sequences (*, u, *, u, *) of a segment u that occurs twice in random letters.

    Letters 0, …, `letters` − 1 have probability proportional to (a + 1)^(−`exponent`); the token `letters` is the
    padding. The length L of u is drawn from `lengths` with probabilities proportional to `length_weights`. Before,
    between and after the copies lie c₁, c₂ − c₁ and T − 2L − c₂ letters. The pair c₁ < c₂ is drawn uniformly from the
    distinct numbers among 0, …, T − 2L − 1. So only the background before may be empty.

    `kind` (static) changes the task:

    - `"fuzzy"`: the above;
    - `"clean"`: the copies are adjacent, at the start, and padding fills the rest;
    - `"reversed"`: the alphabet is reversed, so that rare letters are frequent;
    - `"shifted"`: the second copy is the segment with each letter replaced by the next, the last by the first;
    - `"random"`: no copy, every letter is drawn alone (`second` and `lengths` say where the copy would be).

    **Args:**

    - `exponent`: t, a float, may be traced. `lengths` [options] integers, 1 ≤ L, 2L + 2 ≤ `time`.
    - `length_weights` [options] ≥ 0; None means equal.
    - `kind`, `letters` ≥ 2, `time` ≥ 4: static.

    **Raises:** `ValueError` for arguments outside these ranges, outside a trace.

    **Source:** CLAIR, sections 8.1, 8.2 and S5. Not printed, and settled by the code of Song, Xu and Zhong 2025 as far
    as it is known: which background may be empty. Not printed at all: where the clean task puts its copies, and what
    the "mismatched copying task" of the contaminated client is; hence the kinds.

    **Cost:** O(count · time), one random word a token.

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.data import Copying
    >>> task = Copying(exponent=1.1, lengths=jnp.array([16]))
    >>> task.generate(5, key=jax.random.key(0)).tokens.shape
    (5, 64)
    """

    exponent: Float[Array, ""] | float
    lengths: Int[Array, " options"] = eqx.field(converter=_as_lengths)
    length_weights: Float[Array, " options"] | None = None
    kind: Kind = eqx.field(static=True, default="fuzzy")
    letters: int = eqx.field(static=True, default=52)
    time: int = eqx.field(static=True, default=64)

    def __check_init__(self):
        if self.kind not in KINDS:
            raise _validate.fail("kind", f"one of {', '.join(KINDS)}", self.kind)
        _validate.at_least(self.letters, "letters", 2)
        _validate.at_least(self.time, "time", 4)
        if _validate.concrete(self.exponent) and not np.isfinite(float(self.exponent)):
            raise _validate.fail("exponent", "finite", self.exponent)
        if _validate.concrete(self.lengths):
            most = (self.time - 2) // 2
            wrong = [length for length in np.asarray(self.lengths).ravel() if not 1 <= length <= most]
            if wrong or not self.lengths.size:
                raise _validate.fail("lengths", f"from 1 to {most}", wrong[0] if wrong else "none")

    @property
    def padding(self) -> int:
        """The token that is no letter."""
        return self.letters

    def probabilities(self) -> Float[Array, " letters"]:
        """Of the letters, in float32."""
        ranks = jnp.arange(1, self.letters + 1, dtype=jnp.float32)
        masses = ranks ** -jnp.asarray(self.exponent, jnp.float32)
        return masses / masses.sum()

    def generate(self, count: int, *, key: Key) -> Sequences:
        """Draw `count` sequences; tokens are int32."""
        # One draw, cut up: a draw for each array compiles a bit generator each.
        uniform = jax.random.uniform(key, (count, self.time + 3), jnp.float32)
        letters = self._letters(uniform[:, : self.time])
        lengths = self.lengths[_quantile(self._length_probabilities(), uniform[:, self.time])]
        if self.kind == "clean":
            first, second = jnp.zeros_like(lengths), lengths
        else:
            # c1 and c2, two distinct numbers below `free` in either order: the second one skips the first.
            free = self.time - 2 * lengths
            one = _below(free, uniform[:, -2])
            other = _below(free - 1, uniform[:, -1])
            other = jnp.where(other >= one, other + 1, other)
            first = jnp.minimum(one, other)
            second = jnp.maximum(one, other) + lengths
        return Sequences(self._place(letters, first, second, lengths), second, lengths)

    def _length_probabilities(self) -> Float[Array, " options"]:
        options = len(self.lengths)
        weights = jnp.ones(options) if self.length_weights is None else self.length_weights
        return weights.astype(jnp.float32) / weights.sum().astype(jnp.float32)

    def _letters(self, uniform: Float[Array, "count time"]) -> Int[Array, "count time"]:
        letters = _quantile(self.probabilities(), uniform)
        return self.letters - 1 - letters if self.kind == "reversed" else letters

    def _place(
        self,
        letters: Int[Array, "count time"],
        first: Int[Array, " count"],
        second: Int[Array, " count"],
        lengths: Int[Array, " count"],
    ) -> Int[Array, "count time"]:
        """Background and first copy are the drawn letters; the second copy repeats the first."""
        if self.kind == "random":
            return letters
        places = jnp.arange(self.time, dtype=jnp.int32)[None]
        inside = (places >= second[:, None]) & (places < (second + lengths)[:, None])
        tokens = jnp.take_along_axis(letters, jnp.where(inside, places - (second - first)[:, None], places), axis=1)
        if self.kind == "shifted":
            return jnp.where(inside, (tokens + 1) % self.letters, tokens)
        if self.kind == "clean":
            return jnp.where(places < (2 * lengths)[:, None], tokens, self.padding)
        return tokens


def _quantile(probabilities: Float[Array, " options"], uniform: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
    """The option whose share of [0, 1) holds each number."""
    edges = jnp.cumsum(probabilities)[:-1]
    return jnp.searchsorted(edges, uniform, side="right", method="compare_all").astype(jnp.int32)


def _below(bound: Int[Array, " count"], uniform: Float[Array, " count"]) -> Int[Array, " count"]:
    """Uniform integers in [0, bound), from numbers in [0, 1)."""
    drawn = jnp.floor(uniform * bound.astype(uniform.dtype)).astype(bound.dtype)
    return jnp.minimum(drawn, bound - 1)


def copying_mask(sequences: Sequences) -> Bool[Array, "count time"]:
    """The positions whose token is judged: the second copy from its fourth token to its last.

    **Cost:** O(count · time).

    >>> import jax.numpy as jnp
    >>> from clairjax.data import Sequences, copying_mask
    >>> copying_mask(Sequences(jnp.zeros((1, 8), int), jnp.array([2]), jnp.array([5]))).astype(int).tolist()
    [[0, 0, 0, 0, 0, 1, 1, 0]]
    """
    places = jnp.arange(sequences.tokens.shape[1], dtype=sequences.second.dtype)[None]
    start = (sequences.second + BURN_IN)[:, None]
    return (places >= start) & (places < (sequences.second + sequences.lengths)[:, None])


def masked_accuracy(logits: Float[Array, "count time vocabulary"], sequences: Sequences) -> Float[Array, ""]:
    """Share of judged tokens that the model finds, over all sequences.

    **Args:** `logits` [count, time, vocabulary]: at position t those of the token at t + 1, given the tokens up
    to t; the last position's are not used. `sequences`.

    **Returns:** a scalar in the dtype of the logits; NaN where no token is judged (all segments shorter than 4).

    **Source:** CLAIR, section 8.2, Acc_mask with M_i = {m_i + 3, …, m_i + L_i − 1}.

    **Cost:** O(count · time · vocabulary).

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.data import Copying, masked_accuracy
    >>> sequences = Copying(1.1, jnp.array([16])).generate(5, key=jax.random.key(0))
    >>> oracle = jax.nn.one_hot(jnp.roll(sequences.tokens, -1, axis=1), 53)
    >>> masked_accuracy(oracle, sequences).item()
    1.0
    """
    found = jnp.argmax(logits[:, :-1], axis=-1).astype(sequences.tokens.dtype)
    judged = copying_mask(sequences)[:, 1:]
    right = (found == sequences.tokens[:, 1:]) & judged
    return right.sum().astype(logits.dtype) / judged.sum().astype(logits.dtype)
