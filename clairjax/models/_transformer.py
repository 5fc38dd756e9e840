"""The Transformer that copies: attention blocks alone, one head each, rotary positions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .. import _validate
from .._typing import Key
from ._lora import LoRA, apply


BASE = 1e4  # θ of the rotary angles

Projection = eqx.nn.Linear | LoRA


class SelfAttention(eqx.Module):
    """One block: x + O · softmax(mask + (R Q z)ᵀ(R K z)/√width) V z with z the layer norm of x; one head, causal.

    R turns the interleaved pairs of coordinates (2i, 2i + 1) at position t by the angle t · θ^(−2i/width), θ = 10⁴.

    The four projections are linear layers with biases; each may be replaced by a `LoRA`.
    """

    norm_weight: Float[Array, " width"]
    norm_bias: Float[Array, " width"]
    query: Projection
    key: Projection
    value: Projection
    output: Projection

    @staticmethod
    def create(width: int, *, key: Key) -> "SelfAttention":
        layers = [eqx.nn.Linear(width, width, dtype=jnp.float32, key=one) for one in jax.random.split(key, 4)]
        return SelfAttention(jnp.ones(width, jnp.float32), jnp.zeros(width, jnp.float32), *layers)

    @property
    def projections(self) -> tuple[Projection, ...]:
        """Query, key, value, output."""
        return self.query, self.key, self.value, self.output

    @jax.named_scope("clairjax.self_attention")
    def __call__(
        self, inputs: Float[Array, "batch time width"], *, key: Key | None = None
    ) -> Float[Array, "batch time width"]:
        keys = [None] * 4 if key is None else list(jax.random.split(key, 4))
        normed = layer_norm(inputs, self.norm_weight, self.norm_bias)
        queries = rotate(apply(self.query, normed, key=keys[0]))
        looked_at = rotate(apply(self.key, normed, key=keys[1]))
        values = apply(self.value, normed, key=keys[2])
        return inputs + apply(self.output, attend(queries, looked_at, values), key=keys[3])


class CopyingTransformer(eqx.Module):
    """Logits of the next token after each prefix: embedding, attention blocks, a linear output layer.

    No feed-forward blocks, no norm after the last block, an output layer of its own (not the embedding's).

    **Source:** CLAIR, sections 8.1 and S5, after Song, Xu and Zhong 2025. Two blocks, width 64, 53 tokens and one head
    are printed. Initial values are not: here embeddings are standard normal, weights and biases uniform on ±1/√width.

    **Cost:** 8 width² + 2 time · width + vocabulary · width multiplications a token with two blocks. Weights are
    float32 unless converted.

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.models import CopyingTransformer
    >>> model = CopyingTransformer.create(key=jax.random.key(0))
    >>> model(jnp.zeros((2, 64), int)).shape
    (2, 64, 53)
    """

    embedding: Float[Array, "vocabulary width"]
    blocks: tuple[SelfAttention, ...]
    output: Projection

    @staticmethod
    def create(*, vocabulary: int = 53, width: int = 64, blocks: int = 2, key: Key) -> "CopyingTransformer":
        """Draw a model, in float32. `width` must be even, for the rotary pairs."""
        _validate.at_least(vocabulary, "vocabulary", 1)
        _validate.at_least(blocks, "blocks", 1)
        if not _validate.is_integer(width) or width < 2 or width % 2:
            raise _validate.fail("width", "an even integer of at least 2", width)
        embedding_key, output_key, *block_keys = jax.random.split(key, 2 + blocks)
        return CopyingTransformer(
            jax.random.normal(embedding_key, (vocabulary, width), jnp.float32),
            tuple(SelfAttention.create(width, key=one) for one in block_keys),
            eqx.nn.Linear(width, vocabulary, dtype=jnp.float32, key=output_key),
        )

    @property
    def projections(self) -> tuple[Projection, ...]:
        """The attention matrices, block by block: query, key, value, output."""
        return tuple(layer for block in self.blocks for layer in block.projections)

    def __call__(
        self, tokens: Int[Array, "batch time"], *, key: Key | None = None
    ) -> Float[Array, "batch time vocabulary"]:
        """`key` turns on the dropout of adapted layers."""
        keys = [None] * (len(self.blocks) + 1) if key is None else list(jax.random.split(key, len(self.blocks) + 1))
        # A product, because the gradient of a gather is a scatter, which is slow on CPU.
        hidden = jax.nn.one_hot(tokens, len(self.embedding), dtype=self.embedding.dtype) @ self.embedding
        for block, one in zip(self.blocks, keys, strict=False):
            hidden = block(hidden, key=one)
        return apply(self.output, hidden, key=keys[-1])


def layer_norm(
    inputs: Float[Array, "batch time width"], weight: Float[Array, " width"], bias: Float[Array, " width"]
) -> Float[Array, "batch time width"]:
    centred = inputs - inputs.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + jnp.asarray(1e-5, inputs.dtype)) * weight[None, None] + bias[None, None]


def rotate(vectors: Float[Array, "batch time width"]) -> Float[Array, "batch time width"]:
    """Each interleaved pair turned by position times its frequency."""
    _, time, width = vectors.shape
    frequencies = BASE ** (-np.arange(0, width, 2) / width)
    angles = np.repeat(np.arange(time)[:, None] * frequencies[None], 2, axis=1)
    # (x, y) -> (-y, x) on each pair as a product: strided slices and stacks cost eight times as much.
    quarter_turn = np.kron(np.eye(width // 2), np.array([[0, 1], [-1, 0]]))
    cosine, sine, turn = (
        jnp.asarray(table, vectors.dtype) for table in (np.cos(angles), np.sin(angles), quarter_turn)
    )
    return vectors * cosine[None] + (vectors @ turn) * sine[None]


def attend(
    queries: Float[Array, "batch time width"],
    keys: Float[Array, "batch time width"],
    values: Float[Array, "batch time width"],
) -> Float[Array, "batch time width"]:
    """Causal attention: position t looks at positions up to t."""
    _, time, width = queries.shape
    scores = jnp.einsum("bqd,bkd->bqk", queries, keys) * jnp.asarray(width**-0.5, queries.dtype)
    past = jnp.tril(jnp.ones((time, time), bool))
    scores = jnp.where(past[None], scores, -jnp.inf)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, axis=-1), values)
