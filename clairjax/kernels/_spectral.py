"""Singular values through the Gram matrix of the small side: soft threshold and leading basis."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._precision import HIGHEST
from .._typing import ScalarLike


@jax.named_scope("clairjax.gram")
def gram(matrix: Float[Array, "rows cols"]) -> Float[Array, "cols cols"]:
    """Inner products of the columns, `matrixᵀ matrix`, at full precision on every device.

    **Args:** `matrix`, any real matrix; pass the transpose to have the inner products of the rows.

    **Returns:** symmetric positive semi-definite matrix.

    **Cost:** `rows · cols²` multiplications. Squaring loses what is small. Singular values of `matrix`
    below √eps times the largest (3e-4 in float32, 1.5e-8 in float64) cannot be recovered from the result.

    >>> import jax.numpy as jnp
    >>> print(gram(jnp.array([[1.0, 2.0], [0.0, 1.0], [2.0, 0.0]])))
    [[5. 2.]
     [2. 5.]]
    """
    return jnp.matmul(matrix.T, matrix, precision=HIGHEST)


@jax.named_scope("clairjax.svt")
def svt(matrix: Float[Array, "rows cols"], threshold: ScalarLike) -> Float[Array, "rows cols"]:
    """Singular value soft threshold: the proximal map of `threshold` times the nuclear norm.

    With `M = U diag(σ) Vᵀ` the result is `U diag((σ − τ)₊) Vᵀ = M V diag((1 − τ/σ)₊) Vᵀ`. This takes the
    eigenvectors `V` of the Gram matrix of the smaller side alone: a tall stack is never factored.
    Singular values at or below the threshold vanish to rounding; if all do, the result is exactly zero.

    **Args:**

    - `matrix`, tall or wide.
    - `threshold` τ ≥ 0, a scalar that may be traced.

    **Returns:** matrix of the same shape and dtype.

    The derivative is a divided difference (Daleckii and Krein), not a derivative of eigenvectors. So it is right
    at repeated and at zero singular values, and finite at σ = τ, where no derivative exists. It cannot be
    differentiated twice at repeated singular values.

    **Source:** CLAIR, Algorithm 1, the update of L; Cai, Candès and Shen (2010), Theorem 2.1.

    **Cost:** with `m = min(rows, cols)`, one `m × m` eigendecomposition and two products of `rows · cols ·
    m`. The Gram matrix costs accuracy at thresholds that are small beside the largest singular value σ₁: the
    error is about `eps · σ₁ · max(1, σ₁/τ)`, never more than `√eps · σ₁`. An SVD is better there and several
    hundred times slower.

    >>> import jax.numpy as jnp
    >>> print(svt(jnp.diag(jnp.array([3.0, 1.0])), 2.0).round(4))
    [[1. 0.]
     [0. 0.]]
    """
    rows, cols = matrix.shape
    tall = matrix if rows >= cols else matrix.T
    factor = _shrinkage(gram(tall), jnp.asarray(threshold, matrix.dtype))
    shrunk = jnp.matmul(tall, factor, precision=HIGHEST)
    return shrunk if rows >= cols else shrunk.T


@jax.custom_jvp
def _shrinkage(gram: Float[Array, "n n"], threshold: Float[Array, ""]) -> Float[Array, "n n"]:
    """`h(gram)` for `h(λ) = (1 − τ/√λ)₊`; `h = 1` if τ = 0."""
    eigenvalues, vectors = jnp.linalg.eigh(gram)
    return _conjugate(vectors, jnp.diag(_shrink(_root(eigenvalues), threshold)))


@_shrinkage.defjvp
def _shrinkage_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    (gram, threshold), (gram_dot, threshold_dot) = primals, tangents
    eigenvalues, vectors = jnp.linalg.eigh(gram)
    sigma = _root(eigenvalues)
    kept = sigma > threshold
    slope = jnp.where(kept, -1 / jnp.where(kept, sigma, 1), 0)
    rotated = _conjugate(vectors.T, (gram_dot + gram_dot.T) / 2)
    inner = _divided_differences(sigma, threshold) * rotated + jnp.diag(slope * threshold_dot)
    value = _conjugate(vectors, jnp.diag(_shrink(sigma, threshold)))
    return value, _conjugate(vectors, inner)


def _root(eigenvalues: Float[Array, " n"]) -> Float[Array, " n"]:
    return jnp.sqrt(jnp.maximum(eigenvalues, 0))


def _shrink(sigma: Float[Array, " n"], threshold: Float[Array, ""]) -> Float[Array, " n"]:
    kept = sigma > threshold
    dropped = jnp.where(threshold > 0, jnp.zeros_like(sigma), 1)
    return jnp.where(kept, 1 - threshold / jnp.where(kept, sigma, 1), dropped)


def _divided_differences(sigma: Float[Array, " n"], threshold: Float[Array, ""]) -> Float[Array, "n n"]:
    """`(h(a²) − h(b²)) / (a² − b²)` for each pair, free of cancellation: `τ/(ab(a + b))` above τ."""
    high = jnp.maximum(sigma[:, None], sigma[None, :])
    low = jnp.minimum(sigma[:, None], sigma[None, :])
    above = (low > threshold) | (threshold == 0)
    share = jnp.where(
        above,
        threshold / jnp.where(low > 0, low, 1),
        (high - threshold) / jnp.where(high > low, high - low, 1),
    )
    scale = high * (high + low)
    return jnp.where(high > threshold, share / jnp.where(scale > 0, scale, 1), 0)


def _conjugate(left: Float[Array, "n n"], middle: Float[Array, "n n"]) -> Float[Array, "n n"]:
    product = jnp.matmul(left, middle, precision=HIGHEST)
    return jnp.matmul(product, left.T, precision=HIGHEST)


@jax.named_scope("clairjax.right_basis")
def right_basis(gram: Float[Array, "n n"], rank: int) -> tuple[Float[Array, "n {rank}"], Float[Array, " {rank}"]]:
    """Leading eigenvectors of a symmetric matrix, largest eigenvalue first, with their eigenvalues.

    For `gram(M)` these are the leading right singular vectors of `M` and its squared singular values.

    **Args:**

    - `gram`, symmetric.
    - `rank`, static, between 0 and n.

    **Returns:** orthonormal basis `[n, rank]` and eigenvalues `[rank]` in descending order. The sign of each
    vector, and the basis inside a repeated eigenvalue, are the eigensolver's choice.

    Functions of the subspace alone have a right and finite derivative also where eigenvalues repeat within
    it. Where they repeat across the cut (within `10 n eps` of the largest) no derivative exists, and what is
    given is finite. Single vectors have theirs where eigenvalues differ by more than √eps times the largest;
    closer ones do not turn each other.

    **Cost:** one `n × n` eigendecomposition.

    >>> import jax.numpy as jnp
    >>> basis, eigenvalues = right_basis(jnp.diag(jnp.array([1.0, 4.0, 2.0])), 2)
    >>> print(eigenvalues, abs(basis[:, 0]))
    [4. 2.] [0. 1. 0.]
    """
    return _leading(gram, rank)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _leading(matrix: Float[Array, "n n"], rank: int) -> tuple[Float[Array, "n r"], Float[Array, " r"]]:
    eigenvalues, vectors = _eigh_descending(matrix)
    return vectors[:, :rank], eigenvalues[:rank]


@_leading.defjvp
def _leading_jvp(
    rank: int, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    (matrix,), (matrix_dot,) = primals, tangents
    eigenvalues, vectors = _eigh_descending(matrix)
    rotated = _conjugate(vectors.T, (matrix_dot + matrix_dot.T) / 2)
    gaps = eigenvalues[None, :] - eigenvalues[:, None]
    # Within the basis the subspace does not turn, while rounding in `rotated / gap` reaches √eps at this gap.
    eps = float(jnp.finfo(matrix.dtype).eps)
    inside = jnp.arange(matrix.shape[0]) < rank
    both_inside = inside[:, None] & inside[None, :]
    tie = jnp.where(both_inside, jnp.full_like(gaps, eps**0.5), 10 * matrix.shape[0] * eps)
    apart = jnp.abs(gaps) > tie * jnp.max(jnp.abs(eigenvalues), initial=0)
    turn = jnp.where(apart, rotated / jnp.where(apart, gaps, 1), 0)
    vectors_dot = jnp.matmul(vectors, turn, precision=HIGHEST)
    return (vectors[:, :rank], eigenvalues[:rank]), (vectors_dot[:, :rank], jnp.diag(rotated)[:rank])


def _eigh_descending(matrix: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    return eigenvalues[::-1], vectors[:, ::-1]
