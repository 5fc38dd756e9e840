"""How far apart two subspaces are, given by orthonormal bases."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._precision import HIGHEST
from ..kernels import gram, right_basis


def projector(basis: Float[Array, "n r"]) -> Float[Array, "n n"]:
    """Orthogonal projection onto the span, `basis basisᵀ`.

    **Args:** `basis`, orthonormal columns; columns that are exactly zero add nothing.

    **Returns:** symmetric idempotent matrix.

    **Cost:** `n² r`; where only a product with it is needed, use the basis.

    >>> import jax.numpy as jnp
    >>> print(projector(jnp.array([[0.6], [0.8]])).round(4))
    [[0.36 0.48]
     [0.48 0.64]]
    """
    return jnp.matmul(basis, basis.T, precision=HIGHEST)


def along(matrices: Float[Array, "*batch rows n"], basis: Float[Array, "n r"]) -> Float[Array, "*batch rows n"]:
    """Each row's part in the span of a basis, `M basis basisᵀ`; `M − along(M, basis)` is what lies outside.

    **Args:**

    - `matrices`, any number of them.
    - `basis`, orthonormal columns; columns that are exactly zero add nothing.

    **Returns:** matrices of the same shape.

    **Cost:** `4 n r` a row.

    >>> import jax.numpy as jnp
    >>> along(jnp.array([[3.0, 4.0]]), jnp.array([[1.0], [0.0]])).tolist()
    [[3.0, 0.0]]
    """
    return jnp.matmul(jnp.matmul(matrices, basis, precision=HIGHEST), basis.T, precision=HIGHEST)


def subspace_distance(first: Float[Array, "n r"], second: Float[Array, "n s"]) -> Float[Array, ""]:
    """Spectral norm of the difference of two projectors: the sine of the largest principal angle.

    `‖P_A − P_B‖ = max(‖(I − P_A) B‖, ‖(I − P_B) A‖)`, computed from these small residuals rather than from a
    cosine, so that a distance of 1e-12 is still seen in float64 (1e-6 in float32).

    **Args:**

    - `first`.
    - `second`, orthonormal columns; columns that are exactly zero count as absent, so that a rank may be traced.

    **Returns:** a scalar in [0, 1]: 0 for the same subspace, 1 for subspaces of different dimension. The
    derivative at distance 0, where none exists, is zero.

    **Source:** the `dist` of CENTAUR, section 5; Golub and Van Loan, Matrix Computations, 2.5.3.

    **Cost:** `4 n r s` and two small eigendecompositions.

    >>> import jax.numpy as jnp
    >>> angle = 1e-3
    >>> line, turned = jnp.array([[1.0], [0.0]]), jnp.array([[jnp.cos(angle)], [jnp.sin(angle)]])
    >>> round(subspace_distance(line, turned).item(), 6)
    0.001
    """
    one_way = _largest_singular_value(_outside(second, first))
    other_way = _largest_singular_value(_outside(first, second))
    return jnp.minimum(jnp.maximum(one_way, other_way), 1)


def principal_angles(first: Float[Array, "n r"], second: Float[Array, "n s"]) -> Float[Array, " m"]:
    """Principal angles between two subspaces, smallest first.

    Cosines are the singular values of `AᵀB`, sines those of `(I − P_A) B`. The angle is `atan2(sine,
    cosine)`, accurate at both ends: an arc cosine alone loses every angle below √eps.

    **Args:**

    - `first`.
    - `second`, orthonormal columns; columns that are exactly zero count as absent.

    **Returns:** `min(r, s)` angles in [0, π/2]. Where columns are absent, the last entries are π/2.

    **Source:** Björck and Golub (1973).

    **Cost:** the singular values of an `n × min(r, s)` and an `r × s` matrix; `subspace_distance` is cheaper
    where the largest angle is enough.

    >>> import jax.numpy as jnp
    >>> plane = jnp.eye(3)[:, :2]
    >>> line = jnp.array([[0.8], [0.0], [0.6]])
    >>> round(principal_angles(plane, line).item(), 4)
    0.6435
    """
    wide, narrow = (first, second) if first.shape[1] >= second.shape[1] else (second, first)
    size = narrow.shape[1]
    cosines = _singular_values(jnp.matmul(wide.T, narrow, precision=HIGHEST))
    sines = _singular_values(_outside(narrow, wide))[::-1]
    # An absent column puts a zero in front of the sines, where it would count as an angle of zero.
    absent = jnp.sum(jnp.all(narrow == 0, axis=0))
    sines = jnp.where(jnp.arange(size) < size - absent, jnp.roll(sines, -absent), 1)
    return jnp.arctan2(sines, cosines)


def _outside(other: Float[Array, "n s"], basis: Float[Array, "n r"]) -> Float[Array, "n s"]:
    """`(I − P_basis) other`."""
    return other - along(other.T, basis).T


def _largest_singular_value(matrix: Float[Array, "n r"]) -> Float[Array, ""]:
    """Through the Gram matrix, which is exact enough for the largest; the derivative at zero is zero."""
    if matrix.shape[1] == 0:
        return jnp.zeros((), matrix.dtype)
    square = right_basis(gram(matrix), 1)[1][0]
    zero = square <= 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, square)))


def _singular_values(matrix: Float[Array, "n r"]) -> Float[Array, " m"]:
    return jnp.linalg.svd(matrix, compute_uv=False)
