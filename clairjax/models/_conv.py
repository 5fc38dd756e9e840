"""Convolution, 2 × 2 maximum, bias and ReLU as one block, with a derivative written by hand for CPUs.

Inside a loop XLA's own gradients of convolution and pooling are many times slower on a CPU than outside. The block is
patches and one matrix product there, and the plain convolution on accelerators.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .. import _validate
from .._typing import Key


FEW = 8  # channels below which patches are built in two steps, rows after columns


class ConvPool(eqx.Module):
    """ReLU(max over 2 × 2 windows of (w ∗ x) + b), the convolution without padding.

    Adding the bias and the ReLU commute with the maximum, so that both work on a quarter of the numbers. A last row or
    column that fills no window is left out. The gradient of a maximum that several entries attain is shared among them
    evenly, as `jnp.max` does: flat parts of an image make such ties.

    - `weight` [out, in, size, size], the order of other libraries; `bias` [out].

    **Cost:** size² · in · out multiplications for each of the convolution's outputs, and size² copies of the input in
    memory on a CPU.

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.models import ConvPool
    >>> block = ConvPool.create(3, 8, 5, key=jax.random.key(0))
    >>> block(jnp.zeros((2, 32, 32, 3), "float32")).shape
    (2, 14, 14, 8)
    """

    weight: Float[Array, "out in size size"]
    bias: Float[Array, " out"]

    @staticmethod
    def create(in_channels: int, out_channels: int, size: int, *, key: Key) -> "ConvPool":
        """Weights and bias uniform on ±1/√(in · size²), in float32."""
        for value, name in ((in_channels, "in_channels"), (out_channels, "out_channels"), (size, "size")):
            _validate.at_least(value, name, 1)
        weight_key, bias_key = jax.random.split(key)
        bound = (in_channels * size**2) ** -0.5
        weight = jax.random.uniform(weight_key, (out_channels, in_channels, size, size), jnp.float32, -bound, bound)
        return ConvPool(weight, jax.random.uniform(bias_key, (out_channels,), jnp.float32, -bound, bound))

    def __call__(self, images: Float[Array, "batch height width in"]) -> Float[Array, "batch rows columns out"]:
        block = conv_pool if jax.default_backend() == "cpu" else plain_conv_pool
        return block(images, self.weight, self.bias)


def pooled(side: int, size: int) -> int:
    """How many windows a side of this length leaves."""
    return (side - size + 1) // 2


def plain_conv_pool(
    images: Float[Array, "batch height width in"], weight: Float[Array, "out in size size"], bias: Float[Array, " out"]
) -> Float[Array, "batch rows columns out"]:
    """The block from the compiler's own convolution."""
    outputs = lax.conv_general_dilated(images, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "OIHW", "NHWC"))
    return jax.nn.relu(_windows(outputs).max((2, 4)) + bias[None, None, None])


def _windows(outputs: Float[Array, "batch height width out"]) -> Float[Array, "batch rows 2 columns 2 out"]:
    batch, height, width, out = outputs.shape
    rows, columns = height // 2, width // 2
    return outputs[:, : 2 * rows, : 2 * columns].reshape(batch, rows, 2, columns, 2, out)


@jax.custom_vjp
def conv_pool(
    images: Float[Array, "batch height width in"], weight: Float[Array, "out in size size"], bias: Float[Array, " out"]
) -> Float[Array, "batch rows columns out"]:
    """The block from patches and one matrix product."""
    return _forward(images, weight, bias)[0]


@jax.named_scope("clairjax.conv_pool")
def _forward(images: Array, weight: Array, bias: Array) -> tuple[Array, tuple[Array, ...]]:
    out, _, size, _ = weight.shape
    batch, height, width, _ = images.shape
    rows, columns = pooled(height, size), pooled(width, size)
    patches = _patches(images, size, 2 * rows, 2 * columns)
    # The product's rows are [out, ...] here and in the gradient: as [..., out] its gradient took three times as long.
    flat = weight.transpose(0, 2, 3, 1).reshape(out, -1)
    outputs = lax.dot_general(patches, flat, (((1,), (1,)), ((), ()))).reshape(batch, rows, 2, columns, 2, out)
    largest = outputs.max((2, 4))
    result = jax.nn.relu(largest + bias[None, None, None])
    return result, (images, patches, weight, outputs, largest, result)


@jax.named_scope("clairjax.conv_pool_gradient")
def _backward(saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array]:
    images, patches, weight, outputs, largest, result = saved
    out, channels, size, _ = weight.shape
    batch, rows, columns, _ = gradient.shape
    gradient = jnp.where(result > 0, gradient, 0)
    attained = outputs == largest[:, :, None, :, None]
    # Counted by slices: a reduction over the two short axes takes as long as the matrix product.
    ties = sum(attained[:, :, i, :, j].astype(gradient.dtype) for i in (0, 1) for j in (0, 1))
    spread = jnp.where(attained, (gradient / ties)[:, :, None, :, None], 0).reshape(-1, out)
    by_weight = lax.dot_general(spread, patches, (((0,), (0,)), ((), ())))
    by_weight = by_weight.reshape(out, size, size, channels).transpose(0, 3, 1, 2)
    flat = weight.transpose(0, 2, 3, 1).reshape(out, -1)
    by_patch = (spread @ flat).reshape(batch, 2 * rows, 2 * columns, size * size, channels)
    by_image = jnp.zeros_like(images)
    for i in range(size):
        for j in range(size):
            by_image = by_image.at[:, i : i + 2 * rows, j : j + 2 * columns].add(by_patch[:, :, :, i * size + j])
    return by_image, by_weight, gradient.sum((0, 1, 2))


conv_pool.defvjp(_forward, _backward)


def _patches(images: Array, size: int, height: int, width: int) -> Float[Array, "places entries"]:
    """Each output's square of the input as a row: by row, column, channel."""
    if images.shape[3] < FEW:
        across = jnp.concatenate([images[:, :, j : j + width] for j in range(size)], -1)
        squares = jnp.concatenate([across[:, i : i + height] for i in range(size)], -1)
    else:
        starts = [(i, j) for i in range(size) for j in range(size)]
        squares = jnp.concatenate([images[:, i : i + height, j : j + width] for i, j in starts], -1)
    return squares.reshape(math.prod(squares.shape[:3]), -1)
