"""Convolution, 2 × 2 maximum, bias and ReLU as one block, from matrix products on CPUs.

Inside a loop XLA's own gradients of convolution and pooling are many times slower on a CPU than outside. The block is
matrix products there, and the plain convolution on accelerators.
"""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .. import _validate
from .._typing import Key


# The points of `_transforms` besides infinity, by the kernel's size. 0, ±1, ±2 lost twice as much in float32.
POINTS = {3: (0, 1, -1), 5: (0, 1, -1, 2, -0.5)}
DEEP = 8  # channels from which tiles take less time than patches
ROUNDING = 8  # units in the last place by which equal outputs differ between the places of a tile


class ConvPool(eqx.Module):
    """ReLU(max over 2 × 2 windows of (w ∗ x) + b), the convolution without padding.

    Adding the bias and the ReLU commute with the maximum, so that both work on a quarter of the numbers. A last row or
    column that fills no window is left out. The gradient of a maximum that several entries attain is shared among them
    evenly, as `jnp.max` does: flat parts of an image make such ties.

    - `weight` [out, in, size, size], the order of other libraries; `bias` [out].

    **Source:** on a CPU, kernels of 3 or 5 on at least 8 channels see tiles of a window each (Winograd, 1980; Lavin
    and Gray, arXiv:1509.09308).

    **Precision:** in float32 outputs of tiles are within 1e-6 of the largest, and gradients within 1e-5. Patches lose
    a quarter of that. In tiles, outputs within 8 roundings of a window's maximum share its gradient.

    **Cost:** size² · in · out multiplications for each of the convolution's outputs. On a CPU patches copy the input
    size² times. Tiles copy it (size + 1)² / 4 times, and multiply (1 + 1 / size)² / 4 as often.

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
    batch, height, width, out = outputs.shape
    rows, columns = height // 2, width // 2
    windows = outputs[:, : 2 * rows, : 2 * columns].reshape(batch, rows, 2, columns, 2, out)
    return jax.nn.relu(windows.max((2, 4)) + bias[None, None, None])


@jax.named_scope("clairjax.conv_pool")
def conv_pool(
    images: Float[Array, "batch height width in"], weight: Float[Array, "out in size size"], bias: Float[Array, " out"]
) -> Float[Array, "batch rows columns out"]:
    """The block from matrix products."""
    out, channels, size, _ = weight.shape
    rows, columns = (pooled(side, size) for side in images.shape[1:3])
    single = jnp.finfo(images.dtype).bits >= 32
    in_tiles = channels >= DEEP and size in POINTS and single
    outputs, near = (_by_tiles if in_tiles else _by_patches)(images, weight, rows, columns)
    return jax.nn.relu(_largest(outputs, near) + bias[None]).reshape(len(images), rows, columns, out)


def _by_patches(
    images: Array, weight: Array, rows: int, columns: int
) -> tuple[Float[Array, "4 windows out"], Float[Array, "1 1"]]:
    """The outputs at the four places of each window, and by how much equal outputs differ there: not at all."""
    out, _, size, _ = weight.shape
    # Two steps, across and then down: squares of few channels took twice as long in a single step.
    across = jnp.stack([_beside(images, start, size, columns) for start in (0, 1)])
    squares = jnp.stack([_beside(across, start, size, rows) for start in (0, 1)])
    flat = weight.transpose(0, 2, 3, 1).reshape(out, -1)
    outputs = _product(squares.reshape(-1, flat.shape[1]), flat).reshape(4, -1, out)
    return outputs, jnp.zeros((1, 1), outputs.dtype)


def _beside(images: Array, start: int, size: int, windows: int) -> Array:
    """What a kernel sees along the third axis, from every second place on; entries stand side by side in the last."""
    starts = range(start, start + size)
    seen = [lax.slice_in_dim(images, first, first + 2 * windows - 1, 2, 2) for first in starts]
    return jnp.concatenate(seen, -1)


@jax.custom_vjp
def _product(rows: Float[Array, "places entries"], flat: Float[Array, "out entries"]) -> Float[Array, "places out"]:
    """rows · flatᵀ, with gᵀ · rows as the gradient by `flat`. Automatic differentiation's took three times as long."""
    return lax.dot_general(rows, flat, (((1,), (1,)), ((), ())))


_product.defvjp(
    lambda rows, flat: (_product(rows, flat), (rows, flat)),
    lambda saved, gradient: (gradient @ saved[1], lax.dot_general(gradient, saved[0], (((0,), (0,)), ((), ())))),
)


def _by_tiles(
    images: Array, weight: Array, rows: int, columns: int
) -> tuple[Float[Array, "4 windows out"], Float[Array, "windows 1"]]:
    """As `_by_patches`, from the tile that each window sees; equal outputs differ by rounding there."""
    out, channels, size, _ = weight.shape
    of_window, of_kernel, of_tile = (jnp.asarray(matrix, images.dtype) for matrix in _transforms(size))
    entries = len(of_tile)
    tiles = (of_tile @ _tiles(images, size, rows, columns)).reshape(entries, -1, channels)
    kernels = (of_kernel @ weight.transpose(2, 3, 1, 0).reshape(size**2, -1)).reshape(entries, channels, out)
    products = lax.dot_general(tiles, kernels, (((2,), (1,)), ((0,), (0,))))
    outputs = (of_window @ products.reshape(entries, -1)).reshape(4, -1, out)
    # Of the window's own outputs: other images of the batch, padding among them, change nothing.
    largest = jnp.abs(lax.stop_gradient(outputs)).max((0, 2))[:, None]
    return outputs, ROUNDING * jnp.finfo(outputs.dtype).eps * largest


def _tiles(images: Array, size: int, rows: int, columns: int) -> Float[Array, "entries numbers"]:
    """Entry (a, b, i, j) of each tile is in its row 2a + i and column 2b + j: few slices, which compile fast."""
    half = (size + 1) // 2
    high, wide = rows + half - 1, columns + half - 1
    batch, _, _, channels = images.shape
    pairs = images[:, : 2 * high, : 2 * wide].reshape(batch, high, 2, wide, 2, channels).transpose(2, 4, 0, 1, 3, 5)
    starts = itertools.product(range(half), repeat=2)
    return jnp.stack([pairs[:, :, :, a : a + rows, b : b + columns] for a, b in starts]).reshape((size + 1) ** 2, -1)


@functools.cache
def _transforms(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W [4, n²], K [n², size²] and T [n², n²], n = size + 1: a kernel w on a tile x gives the window W(Kw ⊙ Tx).

    A product of polynomials of 2 and of `size` coefficients is that of their values at n points (Toom and Cook);
    correlation is the transpose of multiplication.
    """
    n = size + 1

    def values(coefficients: int) -> np.ndarray:
        """Of a polynomial at the points, from its coefficients; the leading coefficient is the value at infinity."""
        last = np.eye(1, coefficients, coefficients - 1)
        return np.concatenate([np.vander(POINTS[size], coefficients, increasing=True), last])

    window, kernel, tile = values(2).T, values(size), np.linalg.inv(values(n)).T
    order = np.arange(n**2).reshape(n // 2, 2, n // 2, 2).transpose(0, 2, 1, 3).ravel()  # that of `_tiles`
    return np.kron(window, window), np.kron(kernel, kernel), np.kron(tile, tile)[:, order]


@jax.custom_vjp
def _largest(outputs: Float[Array, "4 windows out"], near: Float[Array, "..."]) -> Float[Array, "windows out"]:
    """The maximum of each window; outputs within `near` of it share its gradient."""
    return outputs.max(0)


def _largest_and_saved(outputs: Array, near: Array) -> tuple[Array, tuple[Array, ...]]:
    largest = outputs.max(0)
    return largest, (outputs, largest, near)


def _shared(saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array]:
    outputs, largest, near = saved
    attained = outputs >= (largest - near)[None]
    # Counted by slices: a reduction over a short axis takes as long as the matrix product.
    ties = sum(place.astype(gradient.dtype) for place in attained)
    return jnp.where(attained, (gradient / ties)[None], 0), jnp.zeros_like(near)


_largest.defvjp(_largest_and_saved, _shared)
