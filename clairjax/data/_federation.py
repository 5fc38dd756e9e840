"""Labelled images that belong to clients: one pool, and each client's rows of it, padded and counted."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Num

from .. import _validate


class Split(eqx.Module):
    """Rows of the pool that each client holds: the first `counts[k]` of `rows[k]`, and padding behind."""

    rows: Int[Array, "clients samples"]
    counts: Int[Array, " clients"]

    @staticmethod
    def of(rows: list[np.ndarray], width: int | None = None) -> "Split":
        """From each client's rows; at least `width` wide."""
        longest = max(1, width or 0, *(len(each) for each in rows))
        padded = np.zeros((len(rows), longest), np.int32)
        for client, each in enumerate(rows):
            padded[client, : len(each)] = each
        return Split(jnp.asarray(padded), jnp.asarray([len(each) for each in rows], jnp.int32))

    @property
    def mask(self) -> Bool[Array, "clients samples"]:
        """True at samples, false at padding."""
        return jnp.arange(self.rows.shape[1], dtype=self.counts.dtype)[None] < self.counts[:, None]


class Federation(eqx.Module):
    """Clients and their labelled images.

    A sample is kept once, in the pool. `train`, `test` and `validation` hold each client's rows of it; a padded row
    costs four bytes, so that clients may be of very different size.

    - `images` [pool, height, width, channels], whole numbers 0–255 (uint8) or floats. Floats are used as they are,
      whole numbers as (x − 127.5)/127.5: public constants, so that no statistic of the data leaks through them.
    - `labels` [pool], in 0 … `classes` − 1.
    - `train`, `test`, `validation`: `Split`s; the last two may be empty.

    **Raises:** `ValueError` for labels out of range, images that are no images or not finite, a client without
    training samples, and rows outside the pool.
    """

    images: Num[Array, "pool height width channels"]
    labels: Int[Array, " pool"]
    train: Split
    test: Split
    validation: Split
    classes: int = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.train.counts)

    @property
    def counts(self) -> Int[Array, " clients"]:
        """Training samples of each client."""
        return self.train.counts

    @property
    def mask(self) -> Bool[Array, "clients samples"]:
        """True at a client's training samples, false at padding."""
        return self.train.mask

    @property
    def table(self) -> Int[np.ndarray, "clients classes"]:
        """How many training samples of each class a client has."""
        labels, rows, counts = (np.asarray(each) for each in (self.labels, self.train.rows, self.train.counts))
        own = [labels[row[:count]] for row, count in zip(rows, counts, strict=True)]
        return np.stack([np.bincount(each, minlength=self.classes) for each in own])

    def pixels(self, rows: Int[Array, " batch"], dtype: DTypeLike) -> Float[Array, "batch height width channels"]:
        """Images of these rows as a model takes them."""
        return scaled(self.images[rows], dtype)

    def check(self) -> "Federation":
        """Itself, if it is sound."""
        images = checked(self.images, self.labels, self.classes).images
        for name, split in (("train", self.train), ("test", self.test), ("validation", self.validation)):
            rows, counts = np.asarray(split.rows), np.asarray(split.counts)
            for values, what in ((rows, "rows"), (counts, "counts")):
                if not values.size or not np.issubdtype(values.dtype, np.integer):
                    got = f"shape {values.shape} of {values.dtype}"
                    raise _validate.fail(f"{name}.{what}", "integers, for one client or more, of one row or more", got)
            if rows.shape[0] != len(self) or counts.shape != (len(self),):
                raise _validate.fail(f"{name}.rows", f"of {len(self)} clients", f"shape {rows.shape}")
            if counts.min() < 0 or counts.max() > rows.shape[1]:
                raise _validate.fail(f"{name}.counts", f"in 0 … {rows.shape[1]}", f"{counts.min()} … {counts.max()}")
            if rows.min() < 0 or rows.max() >= len(images):
                raise _validate.fail(f"{name}.rows", f"in 0 … {len(images) - 1}", f"{rows.min()} … {rows.max()}")
        refuse_empty(np.asarray(self.train.counts))
        return self


class Labelled(NamedTuple):
    images: np.ndarray
    labels: np.ndarray


def scaled(images: Num[Array, "*shape"], dtype: DTypeLike) -> Float[Array, "*shape"]:
    """Images as models take them: whole numbers 0–255 become (x − 127.5)/127.5, floats stay as they are.

    **Cost:** one pass.

    >>> import jax.numpy as jnp
    >>> from clairjax.data import scaled
    >>> scaled(jnp.array([0, 255], jnp.uint8), jnp.float32).tolist()
    [-1.0, 1.0]
    """
    if not jnp.issubdtype(images.dtype, jnp.integer):
        return images.astype(dtype)
    half = jnp.asarray(127.5, dtype)
    return (images.astype(dtype) - half) / half


def checked(images: object, labels: object, classes: int | None = None, prefix: str = "") -> Labelled:
    """Images [samples, height, width, channels], uint8 or float, and labels within range, as NumPy arrays."""
    pixels, numbers = np.asarray(images), np.asarray(labels)
    names = f"{prefix}images", f"{prefix}labels"
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or 0 in pixels.shape:
        must_be = "of shape (samples, height, width, channels), or without channels"
        raise _validate.fail(names[0], must_be, f"shape {pixels.shape}")
    if pixels.dtype != np.uint8 and pixels.dtype not in (np.float32, np.float64):
        raise _validate.fail(names[0], "uint8 in 0 … 255, float32 or float64", pixels.dtype)
    if numbers.shape != pixels.shape[:1]:
        raise _validate.fail(names[1], f"of shape ({len(pixels)},), one for each image", f"shape {numbers.shape}")
    if not np.issubdtype(numbers.dtype, np.integer):
        raise _validate.fail(names[1], "integers", numbers.dtype)
    if pixels.dtype != np.uint8 and not np.isfinite(pixels).all():
        sample = int(np.flatnonzero(~np.isfinite(pixels).all((1, 2, 3)))[0])
        raise _validate.fail(names[0], "finite", f"NaN or infinite values in sample {sample}")
    out = numbers < 0 if classes is None else (numbers < 0) | (numbers >= classes)
    if out.any():
        sample = int(np.flatnonzero(out)[0])
        must_be = "0 or more" if classes is None else f"in 0 … {classes - 1}"
        raise _validate.fail(names[1], must_be, f"{numbers[sample]} at sample {sample}")
    return Labelled(pixels, numbers.astype(np.int32))


def refuse_empty(counts: np.ndarray) -> None:
    if (counts == 0).any():
        clients = ", ".join(map(str, np.flatnonzero(counts == 0)))
        raise _validate.fail("clients", "left with at least one training sample each", f"none for client(s) {clients}")
