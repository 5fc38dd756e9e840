"""The papers' networks: their sizes, and the fused block against XLA's convolution."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import models
from clairjax.models._conv import conv_pool, plain_conv_pool


def sizes(model):
    layers = [*model.blocks, *model.dense, model.head]
    return [layer.weight.size + layer.bias.size for layer in layers]


@pytest.mark.parametrize(
    ("create", "classes", "expected"),
    [
        (models.flute_cnn, 10, [4864, 102464, 192120, 7744, 650]),
        (models.flute_cnn, 100, [4864, 204928, 819456, 32896, 12900]),
        (models.lenet, 10, [4864, 102464, 614784, 12320, 330]),
        (models.lenet, 100, [4864, 102464, 204928, 4128, 3300]),
        (models.mlp, 10, [200960, 32896, 2064, 170]),
        (models.small_cnn, 10, [160, 4640, 330]),
    ],
)
def test_parameters_layer_by_layer(create, classes, expected):
    """Weights and biases of what the papers print: Conv2d(3, 64, 5), Conv2d(64, 64, 5), Linear(1600, 120), …"""
    model = eqx.filter_eval_shape(lambda: create(classes, key=jax.random.key(0)))
    assert sizes(model) == expected


def images(rng, shape, kind):
    """Random ones; flat ones tie all windows; in whole numbers some tie, and some outputs are exactly 0."""
    values = rng.integers(-2, 3, shape) if kind == "whole" else rng.standard_normal(shape)
    return np.ones(shape) if kind == "flat" else values


def compared(block, images, weight, bias, direction):
    value, pull = jax.vjp(block, images, weight, bias)
    return value, *pull(direction)


@pytest.mark.parametrize("kind", ["random", "whole", "flat"])
@pytest.mark.parametrize(
    ("channels", "size"), [(2, 3), (9, 3), (9, 5), (9, 2)]
)  # patches, tiles of both sizes, patches
def test_the_block_and_its_gradient_are_the_convolutions(kind, channels, size, rng, dtype):
    """Odd sides leave a last row or column out of every window."""
    rows, columns = (10 - size) // 2, (9 - size) // 2
    kernel = (4, channels, size, size)
    arguments = [
        images(rng, (3, 9, 8, channels), kind),
        rng.integers(-2, 3, kernel) if kind == "whole" else rng.standard_normal(kernel),
        rng.integers(-1, 2, 4) if kind == "whole" else rng.standard_normal(4),
        rng.standard_normal((3, rows, columns, 4)),
    ]
    arguments = [jnp.asarray(each, dtype) for each in arguments]
    ours, theirs = (jax.jit(compared, static_argnums=0)(block, *arguments) for block in (conv_pool, plain_conv_pool))
    tolerance = 200 * float(jnp.finfo(dtype).eps)
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == dtype
        np.testing.assert_allclose(our, their, rtol=0, atol=tolerance * (1 + np.abs(their).max()))


@pytest.mark.parametrize("size", [3, 5])
def test_other_images_of_the_batch_change_no_bit(size, rng):
    """Padding is images of any kind whose loss weighs nothing."""
    weight, direction = rng.standard_normal((4, 9, size, size)), rng.standard_normal((3, *2 * ((10 - size) // 2,), 4))
    direction[2] = 0
    results = []
    for scale in (1, 10**13):
        batch = images(np.random.default_rng(0), (3, 9, 9, 9), "whole")
        batch[2] *= scale
        given = [jnp.asarray(each, float) for each in (batch, weight, np.zeros(4), direction)]
        value, by_image, *rest = jax.jit(compared, static_argnums=0)(conv_pool, *given)
        results.append([value[:2], by_image[:2], *rest])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_dropout_is_between_body_and_head_and_keeps_the_mean():
    model = models.Network.create((4, 4, 1), 3, dense=(1000,), dropout=0.6, key=jax.random.key(0))
    features = jnp.ones((20, 1000), jnp.float32)
    dropped = np.asarray(model.dropped(features, key=jax.random.key(1)))
    assert set(np.unique(dropped.round(4))) == {0.0, 2.5}
    assert abs(dropped.mean() - 1) < 5 * np.sqrt(1.5 / dropped.size)
    assert model.dropped(features, key=None) is features


def test_images_too_small_are_refused():
    with pytest.raises(ValueError, match=r"shape must be of images large enough for 2 convolutions of 5, got \(8, 8"):
        models.flute_cnn(shape=(8, 8, 1), key=jax.random.key(0))
