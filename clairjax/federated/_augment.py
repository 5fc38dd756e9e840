"""Random crops and flips of a batch, inside the compiled round."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Num

from .. import _validate
from .._typing import Key


@jax.named_scope("clairjax.crop_and_flip")
def crop_and_flip(
    images: Num[Array, "batch height width channels"], *, key: Key, pad: int = 4
) -> Num[Array, "batch height width channels"]:
    """Each image padded by zeros on all sides, cut to its size at a random place, and mirrored half of the time.

    **Args:** `images`, of whole numbers before they are scaled: zero is black then. `pad` ≥ 0.

    **Raises:** `ValueError` for a `pad` below 0.

    **Source:** FLUTE's code (pad 4). CENTAUR's pads behind the scaling, so with grey.

    **Cost:** one gather: a slice for each image took two to three times as long on a CPU.

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.federated import Local, crop_and_flip
    >>> crop_and_flip(jnp.ones((2, 8, 8, 1), jnp.uint8), key=jax.random.key(0)).shape
    (2, 8, 8, 1)
    >>> augmented = Local(augment=crop_and_flip)
    """
    _validate.at_least(pad, "pad", 0)
    batch, height, width, channels = images.shape
    place_key, flip_key = jax.random.split(key)
    shift = jax.random.randint(place_key, (batch, 2, 1), -pad, pad + 1, jnp.int32)
    flip = jax.random.bernoulli(flip_key, shape=(batch, 1))
    rows = jnp.arange(height, dtype=jnp.int32)[None] + shift[:, 0]
    columns = jnp.arange(width, dtype=jnp.int32)[None]
    columns = jnp.where(flip, width - 1 - columns, columns) + shift[:, 1]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
    places = jnp.clip(rows, 0, height - 1)[:, :, None] * width + jnp.clip(columns, 0, width - 1)[:, None]
    flat = images.reshape(batch, height * width, channels)
    moved = jnp.take_along_axis(flat, places.reshape(batch, -1, 1), axis=1)
    return jnp.where(inside[..., None], moved.reshape(images.shape), jnp.zeros((), images.dtype))
