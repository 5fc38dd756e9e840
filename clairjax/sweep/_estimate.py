"""A Monte Carlo mean and its standard error: the one home of both."""

import math
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A mean over replicates and its standard error: NaN without replicates, and below two of them.

    `str` shows both, and `text(digits)` does so with that many digits; a mean that is not there is “–”.
    """

    value: float
    error: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Estimate":
        """From one number a replicate."""
        return cls(float(mean(values)), float(standard_error(values)))

    @classmethod
    def ratio(cls, numerator: np.ndarray, denominator: np.ndarray) -> "Estimate":
        """Ratio of the means of paired replicates, its standard error by the delta method."""
        below = float(mean(denominator))
        value = float(mean(numerator)) / below
        return cls(value, cls.of(numerator - value * denominator).error / below)

    def __str__(self) -> str:
        return self.text(3 if abs(self.value) < 100 else 2)

    def text(self, digits: int) -> str:
        if math.isnan(self.value):
            return "–"
        error = "" if math.isnan(self.error) else f" ±{self.error:.{digits}f}"
        return f"{self.value:.{digits}f}{error}"


def mean(values: np.ndarray) -> np.ndarray:
    """Over the first axis, in double precision; NaN where it is empty."""
    values = _wide(values)
    return np.asarray(values.mean(axis=0)) if len(values) else np.full(values.shape[1:], np.nan)


def standard_error(values: np.ndarray) -> np.ndarray:
    """Of that mean: the sample deviation over √replicates; NaN below two replicates."""
    values = _wide(values)
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    with np.errstate(invalid="ignore"):  # infinities of failed replicates that were asked for
        return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.result_type(values.dtype, np.float64))
