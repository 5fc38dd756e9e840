"""Linear regressions of many clients: the two simulation models of the FLUTE paper."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from .. import _validate
from .._precision import HIGHEST
from .._typing import Key


class TaskProblem(eqx.Module):
    """What the clients hold, and the truth behind it."""

    inputs: Float[Array, "clients samples features"]
    targets: Float[Array, "clients samples"]
    truth: Float[Array, "clients features"]  # each client's true coefficients φ_i


class LinearTasks(eqx.Module):
    """Clients with linear models of their own, y = φ_iᵀ x + e, standard normal x and normal e.

    With `law="spectrum"` (C.1) the matrix Φ = [φ_1, …, φ_M] is U Λ Vᵀ with singular values λ_i = 2 d/(i + 1),
    i = 1, …, min(d, M), and independent uniformly distributed orthonormal U (d × min) and V (M × min). With
    `law="normal"` (7.1) every φ_i is standard normal and independent of the others. In both Φ has full rank: any
    representation with fewer than min(d, M) columns leaves something out.

    **Args** (static): `clients`: M ≥ 1. `features`: d ≥ 1. `samples`: N ≥ 1, per client. `law`.

    Traced: `noise` ≥ 0, the standard deviation of e.

    **Raises:** `ValueError` for sizes outside these ranges.

    **Source:** FLUTE, sections 7.1 and C.1. The 0.3 of C.1 is read as the variance of e; 7.1 gives no value, and
    the same is taken.

    **Cost:** O(M N d) time and memory.

    >>> import jax
    >>> from clairjax.data import LinearTasks
    >>> problem = LinearTasks(clients=15, features=10, samples=12).generate(key=jax.random.key(0))
    >>> problem.inputs.shape, problem.targets.shape, problem.truth.shape
    ((15, 12, 10), (15, 12), (15, 10))
    """

    clients: int = eqx.field(static=True)
    features: int = eqx.field(static=True)
    samples: int = eqx.field(static=True)
    law: Literal["spectrum", "normal"] = eqx.field(static=True, default="spectrum")
    noise: Float[Array, ""] | float = 0.3**0.5

    def __check_init__(self):
        for name in ("clients", "features", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        _validate.choice(self.law, "law", ("spectrum", "normal"))

    @eqx.filter_jit
    def generate(self, *, key: Key, dtype: DTypeLike = float) -> TaskProblem:
        """Draw a problem; `dtype` defaults to the default float of the process."""
        M, N, d = self.clients, self.samples, self.features
        # One draw, cut up: a draw for each array compiles a bit generator each.
        draw = jax.random.normal(key, (M * N * (d + 1) + d * min(d, M) + M * d,), dtype)
        ends = (M * N * d, M * N * (d + 1), M * N * (d + 1) + d * min(d, M))
        inputs, noise, left, right = jnp.split(draw, ends)
        truth = right.reshape(M, d)
        if self.law == "spectrum":
            truth = _with_spectrum(left.reshape(d, min(d, M)), truth[:, : min(d, M)])
        inputs = inputs.reshape(M, N, d)
        targets = jnp.einsum("mnd,md->mn", inputs, truth, precision=HIGHEST)
        return TaskProblem(inputs, targets + jnp.asarray(self.noise, dtype) * noise.reshape(M, N), truth)


def _with_spectrum(left: Float[Array, "features m"], right: Float[Array, "clients m"]) -> Float[Array, "clients d"]:
    """The matrix with singular values 2 d/(i + 1) and the singular vectors of two normal draws."""
    features, count = left.shape
    values = 2 * features / (jnp.arange(count, dtype=left.dtype) + 2)
    return jnp.matmul(_uniform(right) * values[None], _uniform(left).T, precision=HIGHEST)


def _uniform(draw: Float[Array, "rows m"]) -> Float[Array, "rows m"]:
    """Q of a normal draw is uniformly distributed where R has a positive diagonal."""
    basis, upper = jnp.linalg.qr(draw)
    return basis * jnp.where(jnp.diag(upper) < 0, -1, 1).astype(draw.dtype)[None]
