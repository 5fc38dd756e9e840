"""Crops and flips against slices of padded images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.federated import crop_and_flip


def test_each_image_is_a_crop_of_itself_padded(rng):
    """Every result is one of the 2 · 5² crops, and over many images all of them come, flips half of the time."""
    images = rng.integers(1, 256, (400, 4, 5, 2)).astype(np.uint8)
    found = np.asarray(crop_and_flip(jnp.asarray(images), key=jax.random.key(1), pad=2))
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    crops = [
        padded[:, i : i + 4, j : j + 5][:, :, :: -1 if flip else 1]
        for flip in (0, 1)
        for i in range(5)
        for j in range(5)
    ]
    hits = np.stack([(crop == found).all((1, 2, 3)) for crop in crops])
    assert (hits.sum(0) >= 1).all() and (hits.sum(1) >= 1).all()
    flipped = hits[25:].any(0).mean()
    assert abs(flipped - 0.5) < 5 * 0.5 / np.sqrt(400) + 0.01
    assert found.dtype == np.uint8


def test_nothing_moves_without_padding_but_by_flips(rng):
    images = rng.standard_normal((20, 3, 3, 1))
    found = np.asarray(crop_and_flip(jnp.asarray(images), key=jax.random.key(2), pad=0))
    same, mirrored = (np.isclose(found, each).all((1, 2, 3)) for each in (images, images[:, :, ::-1]))
    assert (same ^ mirrored).all() and 0 < same.sum() < 20


def test_padding_below_zero_is_refused():
    with pytest.raises(ValueError, match=r"pad must be an integer of at least 0, got -1\."):
        crop_and_flip(jnp.zeros((2, 4, 5, 1), jnp.uint8), key=jax.random.key(1), pad=-1)
