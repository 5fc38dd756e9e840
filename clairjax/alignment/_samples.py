"""How much each client's matrix is worth: the variance of its noise, as its number of samples has it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _validate


def noise_variances(
    samples: Any, count: int, dtype: jnp.dtype
) -> tuple[Float[Array, " clients"], Bool[Array, ""] | bool]:
    """1/samples in units of the middle client's, so that equal samples give exactly 1 whatever they are.

    The second value says whether samples inside a trace are in range.
    """
    if samples is None:
        return jnp.asarray(np.ones(count, dtype)), True
    if _validate.concrete(samples):
        return jnp.asarray(_known(samples, count, dtype)), True
    if samples.shape != (count,):
        raise _validate.fail("samples", f"of shape ({count},)", f"shape {samples.shape}")
    samples = samples.astype(dtype)
    variances = jnp.median(samples) / samples
    return variances, ((variances > 0) & jnp.isfinite(variances)).all()


def _known(samples: Any, count: int, dtype: jnp.dtype) -> np.ndarray:
    try:
        given = np.asarray(samples, np.float64)
    except (TypeError, ValueError):  # ragged, a text
        raise _validate.fail("samples", f"numbers of shape ({count},)", repr(samples)) from None
    if given.shape != (count,):
        raise _validate.fail("samples", f"of shape ({count},)", f"shape {given.shape}")
    wrong = np.flatnonzero(~((given > 0) & np.isfinite(given)))
    if wrong.size:
        got = ", ".join(f"{given[client]:g} from client {client}" for client in wrong)
        raise _validate.fail("samples", "positive and finite", got)
    with np.errstate(over="ignore"):
        variances = (np.median(given) / given).astype(dtype)
    apart = np.flatnonzero(~((variances > 0) & np.isfinite(variances)))
    if apart.size:
        raise _validate.fail("samples", f"within what {np.dtype(dtype)} holds of their median", given[apart[0]])
    return variances
