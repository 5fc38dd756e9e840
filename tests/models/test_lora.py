"""LoRA: what it computes, that merging changes nothing, that nothing else is trained, and what it refuses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.models import LoRA, adapt, merge, trainable
from clairjax.models._lora import _kept, _kept_few_dropped


def random_layer(key, dtype, *, bias=True, dropout=0.0):
    """A wrapped layer with out ≠ in and a nonzero B."""
    base_key, down_key, up_key = jax.random.split(key, 3)
    base = eqx.nn.Linear(5, 7, use_bias=bias, dtype=dtype, key=base_key)
    layer = LoRA.around(base, 3, scale=2.5, dropout=dropout, key=down_key)
    return eqx.tree_at(lambda l: l.up, layer, jax.random.normal(up_key, (7, 3), dtype))


def mlp(key):
    return eqx.nn.MLP(3, 2, 8, 2, key=key)


@pytest.mark.parametrize("bias", [True, False])
def test_it_computes_the_layer_and_the_update(key, dtype, bias):
    layer = random_layer(key, dtype, bias=bias)
    rows = jax.random.normal(key, (4, 6, 5), dtype)
    weight = np.asarray(layer.base.weight) + 2.5 * np.asarray(layer.up) @ np.asarray(layer.down)
    expected = np.asarray(rows) @ weight.T + (np.asarray(layer.base.bias) if bias else 0)
    tolerance = 40 * float(jnp.finfo(dtype).eps)
    found = layer(rows)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(layer(rows[0, 0]), expected[0, 0], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(layer.merge()(rows[0, 0]), expected[0, 0], rtol=tolerance, atol=tolerance)


def test_delta_is_what_merging_adds(key, dtype):
    layer = random_layer(key, dtype)
    merged = layer.merge()
    assert layer.delta().shape == (7, 5) and merged.weight.dtype == dtype
    np.testing.assert_array_equal(merged.weight, layer.base.weight + layer.delta())
    np.testing.assert_array_equal(merged.bias, layer.base.bias)
    assert np.linalg.matrix_rank(np.asarray(layer.delta(), float), tol=1e-4) == 3


def test_a_new_adapter_changes_nothing(key):
    model = mlp(key)
    adapted = adapt(model, lambda m: m.layers, 2, scale=16.0, key=key)
    rows = jax.random.normal(key, (9, 3))
    np.testing.assert_allclose(jax.vmap(adapted)(rows), jax.vmap(model)(rows), rtol=1e-12, atol=1e-12)
    assert eqx.tree_equal(merge(adapted), model)
    assert not any(isinstance(leaf, LoRA) for leaf in jax.tree.leaves(merge(adapted), is_leaf=eqx.is_array))


def test_one_key_gives_the_same_factors_and_layers_differ(key):
    first, second = (adapt(mlp(k), lambda m: m.layers, 2, key=key) for k in jax.random.split(key))
    for one, other in zip(first.layers, second.layers, strict=True):
        np.testing.assert_array_equal(one.down, other.down)
    assert not np.array_equal(first.layers[1].down, first.layers[2].down[:, :8])
    assert np.abs(first.layers[1].down).max() <= 8**-0.5


def test_gradients_flow_to_the_adapters_alone(key):
    model = adapt(mlp(key), lambda m: m.layers[:2], 2, key=key)
    trained, frozen = eqx.partition(model, trainable(model))
    assert [leaf.shape for leaf in jax.tree.leaves(trained)] == [(2, 3), (8, 2), (2, 8), (8, 2)]
    gradient = jax.grad(lambda p: jnp.sum(eqx.combine(p, frozen)(jnp.ones(3)) ** 2))(trained)
    assert jax.tree.structure(gradient) == jax.tree.structure(trained)
    ups = [gradient.layers[0].up, gradient.layers[1].up]
    assert all(float(jnp.abs(up).max()) > 0 for up in ups)
    # B is zero: A's gradient is scale · Bᵀ(…), so zero, too.
    assert float(jnp.abs(gradient.layers[0].down).max()) == 0
    assert gradient.layers[0].base.weight is None and gradient.layers[2].weight is None


def test_derivatives(key, check_derivative):
    layer = random_layer(key, jnp.float64)
    rows = jax.random.normal(key, (4, 5))
    trained, frozen = eqx.partition(layer, trainable(layer))
    check_derivative(lambda p: jnp.sin(eqx.combine(p, frozen)(rows)), trained)


def test_jit_and_vmap_change_nothing(key):
    layer = random_layer(key, jnp.float64, dropout=0.3)
    rows = jax.random.normal(key, (6, 5))
    keys = jax.random.split(key, 6)
    batch = jax.jit(jax.vmap(lambda row, k: layer(row, key=k)))(rows, keys)
    for i in range(6):
        np.testing.assert_allclose(batch[i], layer(rows[i], key=keys[i]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_dropout_is_right_in_mean_and_off_without_a_key(key, rate):
    layer = random_layer(key, jnp.float64, dropout=rate)
    rows = jax.random.normal(key, (5,))
    draws = jax.vmap(lambda k: layer(jnp.tile(rows, (40, 1)), key=k))(jax.random.split(key, 100)).reshape(-1, 7)
    expected = np.asarray(random_layer(key, jnp.float64)(rows))
    error = np.asarray(draws.std(0)) / np.sqrt(len(draws))
    assert (error > 0).all() and (np.abs(draws.mean(0) - expected) < 4 * error).all()
    np.testing.assert_allclose(layer(rows), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("draw", [_kept, _kept_few_dropped])
def test_the_law_of_what_is_dropped(key, draw):
    """Mean and covariance of Bernoulli entries, the last entries as the first."""
    rate, shape = 0.04, (8, 25)
    dropped = ~np.asarray(jax.vmap(lambda k: draw(shape, rate, k))(jax.random.split(key, 4000))).reshape(4000, 200)
    error = np.sqrt(rate * (1 - rate) / 4000)
    assert np.abs(dropped.mean(0) - rate).max() < 4.5 * error
    assert abs(dropped.mean() - rate) < 4 * error / np.sqrt(200)
    neighbours = (dropped[:, 1:] & dropped[:, :-1]).mean()
    assert abs(neighbours - rate**2) < 4 * rate / np.sqrt(4000 * 199)
    assert abs(dropped.sum(1).var() - 200 * rate * (1 - rate)) < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank must be an integer of at least 1, got 0."),
        ({"rank": 6}, "rank must be at most the smaller side of the layer, 5, got 6."),
        ({"scale": 0.0}, "scale must be positive and finite, got 0.0."),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0."),
    ],
)
def test_arguments_out_of_range_are_refused(key, arguments, message):
    layer = eqx.nn.Linear(5, 7, key=key)
    with pytest.raises(ValueError) as error:
        LoRA.around(layer, **({"rank": 2} | arguments), key=key)
    assert str(error.value) == message


def test_layers_that_cannot_be_wrapped_are_refused(key):
    model = mlp(key)
    with pytest.raises(ValueError) as error:
        adapt(model, lambda m: [], 2, key=key)
    assert str(error.value) == "where must be a function that picks at least one layer, got none."
    with pytest.raises(ValueError) as error:
        adapt(model, lambda m: [m.activation], 2, key=key)
    assert str(error.value).startswith("where must be a function that picks equinox.nn.Linear layers, got ")
    with pytest.raises(ValueError) as error:
        LoRA.around(eqx.nn.Linear("scalar", 7, key=key), 1, key=key)
    assert str(error.value) == "layer must be a matrix acting on vectors, got a linear layer with a scalar side."
