"""The copying Transformer against plain NumPy, and what follows from its construction."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.models import CopyingTransformer, SelfAttention, adapt, merge
from clairjax.models._transformer import attend, layer_norm, rotate


def in_double(model):
    return jax.tree.map(lambda leaf: leaf.astype(float) if eqx.is_inexact_array(leaf) else leaf, model)


def numpy_rotate(vectors):
    """Pair by pair as complex numbers."""
    out = np.empty_like(vectors)
    width = vectors.shape[-1]
    for t in range(vectors.shape[-2]):
        for i in range(width // 2):
            z = (vectors[..., t, 2 * i] + 1j * vectors[..., t, 2 * i + 1]) * np.exp(1j * t * 1e4 ** (-2 * i / width))
            out[..., t, 2 * i], out[..., t, 2 * i + 1] = z.real, z.imag
    return out


def numpy_model(model, tokens):
    """One sequence, a position at a time."""
    array = lambda leaf: np.asarray(leaf, float)
    linear = lambda layer, x: x @ array(layer.weight).T + array(layer.bias)
    hidden = array(model.embedding)[tokens]
    for block in model.blocks:
        deviation = hidden - hidden.mean(1, keepdims=True)
        normed = deviation / np.sqrt(hidden.var(1, keepdims=True) + 1e-5)
        normed = normed * array(block.norm_weight) + array(block.norm_bias)
        queries, keys = numpy_rotate(linear(block.query, normed)), numpy_rotate(linear(block.key, normed))
        values = linear(block.value, normed)
        mixed = np.empty_like(values)
        for t in range(len(tokens)):
            scores = keys[: t + 1] @ queries[t] / np.sqrt(values.shape[1])
            weights = np.exp(scores - scores.max())
            mixed[t] = weights / weights.sum() @ values[: t + 1]
        hidden = hidden + linear(block.output, mixed)
    return linear(model.output, hidden)


@pytest.fixture
def model(key):
    return CopyingTransformer.create(vocabulary=11, width=8, key=key)


def test_sizes_of_the_paper(key):
    model = CopyingTransformer.create(key=key)
    assert model.embedding.shape == (53, 64) and model.output.weight.shape == (53, 64)
    assert [layer.weight.shape for layer in model.projections] == [(64, 64)] * 8
    assert all(layer.bias.shape == (64,) for layer in model.projections)
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}
    assert sum(leaf.size for leaf in jax.tree.leaves(model)) == 53 * 64 + 8 * (64 * 64 + 64) + 4 * 64 + 53 * 64 + 53


def test_against_plain_numpy(model, rng):
    tokens = rng.integers(0, 11, (3, 13))
    # norms that are not the identity
    model = eqx.tree_at(lambda m: m.blocks[0].norm_bias, model, jnp.linspace(-1, 1, 8, dtype=jnp.float32))
    model = eqx.tree_at(lambda m: m.blocks[1].norm_weight, model, jnp.linspace(0.5, 2, 8, dtype=jnp.float32))
    expected = np.stack([numpy_model(model, row) for row in tokens])
    np.testing.assert_allclose(model(jnp.asarray(tokens)), expected, rtol=1e-4, atol=1e-5)
    found = in_double(model)(jnp.asarray(tokens))
    if found.dtype == jnp.float64:
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_a_prefix_is_all_that_counts(model, rng):
    tokens = rng.integers(0, 11, (2, 12))
    changed = tokens.copy()
    changed[:, 7:] = (changed[:, 7:] + 1) % 11
    before, after = model(jnp.asarray(tokens)), model(jnp.asarray(changed))
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert float(jnp.abs(before[:, 7:] - after[:, 7:]).max()) > 1e-3


def test_rotation_keeps_lengths_and_knows_only_differences(rng, dtype):
    one, other = (jnp.asarray(rng.normal(size=(1, 20, 6)), dtype) for _ in range(2))
    one, other = (jnp.broadcast_to(x[:, :1], x.shape) for x in (one, other))  # the same vector everywhere
    tolerance = 200 * float(jnp.finfo(dtype).eps)
    turned = rotate(one)
    assert turned.dtype == dtype
    np.testing.assert_allclose(turned, numpy_rotate(np.asarray(one, float)), atol=tolerance)
    np.testing.assert_allclose(jnp.linalg.norm(turned, axis=-1), jnp.linalg.norm(one, axis=-1), rtol=tolerance)
    scores = np.einsum("btd,bsd->ts", turned, rotate(other))
    for shift in range(20):
        diagonal = np.diagonal(scores, shift)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=tolerance)
    np.testing.assert_allclose(turned[:, 0], one[:, 0], atol=tolerance)


def test_attention_to_equal_keys_is_the_mean_so_far(rng, dtype):
    values = jnp.asarray(rng.normal(size=(2, 5, 4)), dtype)
    found = attend(jnp.zeros_like(values), values, values)
    expected = np.cumsum(np.asarray(values), axis=1) / np.arange(1, 6)[:, None]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_layer_norm_has_mean_zero_and_variance_one(rng, dtype):
    rows = jnp.asarray(3 + 5 * rng.normal(size=(2, 3, 16)), dtype)
    found = layer_norm(rows, jnp.ones(16, dtype), jnp.zeros(16, dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(found.var(-1), 1, rtol=1e-5)


def test_derivatives(key, rng, check_derivative):
    model = in_double(CopyingTransformer.create(vocabulary=5, width=4, key=key))
    tokens = jnp.asarray(rng.integers(0, 5, (2, 6)))
    parameters, rest = eqx.partition(model, eqx.is_array)
    check_derivative(lambda p: eqx.combine(p, rest)(tokens), parameters, tolerance=1e-5)


def test_jit_and_vmap_change_nothing(model, rng):
    tokens = jnp.asarray(rng.integers(0, 11, (3, 2, 9)))
    batch = jax.jit(jax.vmap(model))(tokens)
    for one, row in zip(batch, tokens, strict=True):
        np.testing.assert_allclose(one, model(row), rtol=1e-4, atol=1e-5)


def test_adapters_on_every_projection_merge(model, key, rng):
    tokens = jnp.asarray(rng.integers(0, 11, (2, 9)))
    adapted = adapt(model, lambda m: (*m.projections, m.output), 2, scale=4.0, dropout=0.5, key=key)
    ups = lambda m: [layer.up for layer in (*m.projections, m.output)]
    adapted = eqx.tree_at(ups, adapted, [jnp.full_like(up, 0.1) for up in ups(adapted)])
    np.testing.assert_allclose(adapted(tokens), merge(adapted)(tokens), rtol=1e-4, atol=1e-5)
    assert float(jnp.abs(adapted(tokens) - model(tokens)).max()) > 1e-2
    first, second = (adapted(tokens, key=k) for k in jax.random.split(key))
    assert float(jnp.abs(first - second).max()) > 1e-3
    np.testing.assert_array_equal(first, adapted(tokens, key=jax.random.split(key)[0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 7}, "width must be an even integer of at least 2, got 7."),
        ({"vocabulary": 0}, "vocabulary must be an integer of at least 1, got 0."),
        ({"blocks": 0}, "blocks must be an integer of at least 1, got 0."),
    ],
)
def test_sizes_out_of_range_are_refused(key, arguments, message):
    with pytest.raises(ValueError) as error:
        CopyingTransformer.create(**arguments, key=key)
    assert str(error.value) == message


def test_a_block_is_a_model_of_its_own(key, rng):
    block = SelfAttention.create(4, key=key)
    inputs = jnp.asarray(rng.normal(size=(1, 3, 4)), jnp.float32)
    silent = eqx.tree_at(lambda b: (b.output.weight, b.output.bias), block, (jnp.zeros((4, 4)), jnp.zeros(4)))
    silent = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), silent)
    np.testing.assert_array_equal(silent(inputs), inputs)
