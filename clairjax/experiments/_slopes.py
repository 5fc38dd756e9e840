"""Slopes on logarithmic axes, weighted by standard errors."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..sweep import Estimate


class Line(NamedTuple):
    """log distance = intercept + slope · log size."""

    slope: Estimate
    intercept: float

    def at(self, size: float) -> float:
        return math.exp(self.intercept) * size**self.slope.value


def fit(sizes: Sequence[float], points: Sequence[Estimate]) -> Line:
    """Least squares of log distance on log size, weighted by the points' standard errors, which give the slope's."""
    usable = [(size, p) for size, p in zip(sizes, points, strict=True) if p.value > 0 and p.error > 0]
    if len(usable) < 2:
        return Line(Estimate(math.nan, math.nan), math.nan)
    x = np.log([size for size, _ in usable])
    y = np.log([p.value for _, p in usable])
    weights = np.array([(p.value / p.error) ** 2 for _, p in usable])
    centre = np.average(x, weights=weights)
    spread = np.sum(weights * (x - centre) ** 2)
    slope = float(np.sum(weights * (x - centre) * y) / spread)
    return Line(Estimate(slope, float(spread**-0.5)), float(np.average(y, weights=weights) - slope * centre))
