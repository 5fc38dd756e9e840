"""What the guards could not look at, because it is traced, as a status."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from .. import _validate
from .._status import Status


def traced_in_range(
    *, positive: Iterable[Any] = (), not_negative: Iterable[Any] = (), holds: Iterable[Any] = ()
) -> Bool[Array, ""] | bool:
    """Whether every traced number is finite and above (or at least) zero, and every traced condition holds.

    What is None or known outside the trace has been looked at already, and counts as in range.
    """
    traced = [(value > 0) & jnp.isfinite(value) for value in _unseen(positive)]
    traced += [(value >= 0) & jnp.isfinite(value) for value in _unseen(not_negative)]
    traced += _unseen(holds)
    return jnp.stack([jnp.all(each) for each in traced]).all() if traced else True


def argument_status(in_range: Bool[Array, ""] | bool) -> Status:
    return Status.where(in_range, Status.converged, Status.invalid_argument)


def _unseen(values: Iterable[Any]) -> Sequence[Any]:
    return [value for value in values if value is not None and not _validate.concrete(value)]
