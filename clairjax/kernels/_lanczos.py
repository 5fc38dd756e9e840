"""The largest eigenvalue of an operator that is never formed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from .._precision import HIGHEST
from ._norm import normalize


@jax.named_scope("clairjax.spectral_norm")
def spectral_norm(
    matvec: Callable[[Float[Array, " n"]], Float[Array, " n"]], size: int, *, dtype: DTypeLike, steps: int
) -> Float[Array, ""]:
    """Largest eigenvalue of a symmetric positive semi-definite operator that is known by its products alone.

    Lanczos with full re-orthogonalisation from a fixed start vector gives a unit vector `v`. The result is
    `vᵀ A v`, a lower bound on the eigenvalue whatever the steps, up to rounding.

    **Args:**

    - `matvec`, the map `v ↦ A v` on vectors of length `size`.
    - `dtype`, of the vectors and of the result.
    - `steps`, static, cut to `size`.

    **Returns:** a scalar ≥ 0; NaN if the operator is not finite.

    With all `size` steps the result is exact to rounding (about `size · eps` relative). With fewer, the
    relative error falls like `exp(−4 √g · steps)`. Here `g` is the relative gap below the largest eigenvalue,
    repeats aside. Without a gap it falls like `(log(size)/steps)²`: a cluster at the top hides which eigenvalue
    is largest, not how large it is. The derivative is `vᵀ dA v`, v held fixed: exact once v has converged, finite
    always.

    **Source:** Golub and Van Loan, Matrix Computations, 10.1; Kuczyński and Woźniakowski (1992) for the
    rates.

    **Cost:** `steps + 1` products, `4 · steps² · size` multiplications, memory `steps · size`.

    >>> import jax.numpy as jnp
    >>> diagonal = jnp.array([1.0, 5.0, 2.0])
    >>> spectral_norm(lambda v: diagonal * v, 3, dtype=diagonal.dtype, steps=3).round(4).item()
    5.0
    """
    steps = min(size, steps)
    vector = jax.lax.stop_gradient(_ritz_vector(matvec, size, dtype, steps))
    return jnp.maximum(jnp.vdot(vector, matvec(vector), precision=HIGHEST), 0)


def _ritz_vector(matvec: Callable[[Array], Array], size: int, dtype: DTypeLike, steps: int) -> Float[Array, " n"]:
    """Unit vector of the largest Ritz value. A Krylov space that closes early is padded with zero vectors."""
    start = normalize(jnp.asarray(np.random.default_rng(0).standard_normal(size), dtype))[0]
    tolerance = 4 * jnp.finfo(dtype).eps

    def step(
        carry: tuple[Array, Array, Array], index: Array
    ) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        basis, vector, scale = carry
        basis = basis.at[index].set(vector)
        image = matvec(vector)
        diagonal = jnp.vdot(vector, image, precision=HIGHEST)
        # Twice is enough (Parlett, 6.9); the second pass comes after scaling, so tiny remainders are safe.
        following, first = normalize(_remove(basis, image))
        following, second = normalize(_remove(basis, following))
        off_diagonal = first * second
        scale = jnp.maximum(scale, jnp.abs(diagonal) + off_diagonal)
        going_on = off_diagonal > tolerance * scale
        following = jnp.where(going_on, following, 0)
        return (basis, following, scale), (diagonal, jnp.where(going_on, off_diagonal, 0))

    initial = (jnp.zeros((steps, size), dtype), start, jnp.zeros((), dtype))
    (basis, _, _), (diagonal, off_diagonal) = jax.lax.scan(step, initial, jnp.arange(steps))
    off_diagonal = off_diagonal[:-1]
    tridiagonal = jnp.diag(diagonal) + jnp.diag(off_diagonal, 1) + jnp.diag(off_diagonal, -1)
    _, vectors = jnp.linalg.eigh(jax.lax.stop_gradient(tridiagonal))
    vector = jnp.matmul(vectors[:, -1], jax.lax.stop_gradient(basis), precision=HIGHEST)
    return normalize(vector)[0]


def _remove(basis: Float[Array, "steps n"], vector: Float[Array, " n"]) -> Float[Array, " n"]:
    along = jnp.matmul(basis, vector, precision=HIGHEST)
    return vector - jnp.matmul(along, basis, precision=HIGHEST)
