"""Medians and the smallest of masked values, of NumPy or JAX."""

from typing import Any

import numpy as np

from ._evidence import Either


def median(values: Either, counted: Either, *, mean: bool = True) -> Either:
    """Along the last axis of those counted, 0 of none; of two middle values the mean, or the larger."""
    xp: Any = values.__array_namespace__()
    number = counted.sum(-1)
    ordered = xp.sort(xp.where(counted, values, np.inf), axis=-1)
    last = ordered.shape[-1] - 1
    upper, lower = (
        xp.take_along_axis(ordered, xp.clip(place, 0, last)[..., None], axis=-1)[..., 0]
        for place in (number // 2, (number - 1) // 2)
    )
    return xp.where(number > 0, (upper + lower) / 2 if mean else upper, 0)


def smallest(values: Either, counted: Either, share: int) -> Either:
    """The smallest of those counted, but for one in `share` of them; −∞ of none."""
    xp: Any = values.__array_namespace__()
    number = counted.sum()
    ordered = xp.sort(xp.where(counted, values, np.inf))
    return xp.where(number > 0, ordered[xp.minimum(number // share, len(ordered) - 1)], -np.inf)
