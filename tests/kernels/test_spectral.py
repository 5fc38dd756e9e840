"""Spectral kernels against SVD and eigh of NumPy, optimality conditions, and finite differences."""

import functools

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairjax import kernels


# Compiled once a shape: op by op, each operation of each shape would compile alone.
gram, svt = jax.jit(kernels.gram), jax.jit(kernels.svt)
right_basis = jax.jit(kernels.right_basis, static_argnums=1)
needs_x64 = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="needs float64")
shapes = st.sampled_from([(6, 3), (3, 5), (4, 4), (1, 3)])


def svt_reference(matrix, threshold):
    left, sigma, right = np.linalg.svd(np.asarray(matrix, np.float64), full_matrices=False)
    return (left * np.maximum(sigma - threshold, 0)) @ right


def with_singular_values(rng, rows, cols, sigma, dtype):
    """A matrix with these singular values and generic singular vectors."""
    left, right = (rotation(rng, n)[:, : len(sigma)] for n in (rows, cols))
    return jnp.asarray((left * np.asarray(sigma)) @ right.T, dtype)


def rotation(rng, size):
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


def symmetric(rng, spectrum, dtype):
    spectrum = np.asarray(spectrum, np.float64)
    basis = rotation(rng, spectrum.size)
    matrix = (basis * spectrum) @ basis.T
    return jnp.asarray((matrix + matrix.T) / 2, dtype)


@pytest.mark.parametrize("shape", [(40, 5), (5, 40), (6, 6), (1, 4), (4, 1)])
def test_svt_agrees_with_an_svd(rng, dtype, shape):
    matrix = jnp.asarray(rng.standard_normal(shape), dtype)
    largest = np.linalg.norm(matrix, 2)
    for share in (0.0, 0.3, 0.7, 1.5):
        expected = svt_reference(matrix, share * largest)
        tolerance = 50 * float(jnp.finfo(dtype).eps) * largest
        np.testing.assert_allclose(svt(matrix, float(share * largest)), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("share", [1e-1, 1e-2, 1e-3])
def test_svt_loses_to_the_gram_no_more_than_it_says(rng, dtype, share):
    sigma = np.concatenate([[1.0], share * np.array([1.3, 1.1, 1.0, 0.9, 0.5])])
    matrix = with_singular_values(rng, 60, 8, sigma, dtype)
    error = np.linalg.norm(np.asarray(svt(matrix, share)) - svt_reference(matrix, share), 2)
    eps = float(jnp.finfo(dtype).eps)
    assert error <= 10 * eps / share
    assert error <= np.sqrt(eps)


@given(shape=shapes, seed=st.integers(0, 1000), share=st.floats(0.05, 1.2))
def test_svt_meets_the_optimality_conditions(shape, seed, share):
    """`M − X ∈ τ ∂‖X‖_*`: spectral norm at most τ, and inner product with X equal to τ‖X‖_*."""
    matrix = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    threshold = share * np.linalg.norm(matrix, 2)
    shrunk = np.asarray(svt(jnp.asarray(matrix), float(threshold)), np.float64)
    rest = np.asarray(matrix, np.float64) - shrunk
    assert np.linalg.norm(rest, 2) <= threshold * (1 + 1e-4)
    nuclear = np.linalg.svd(shrunk, compute_uv=False).sum()
    assert abs(np.sum(rest * shrunk) - threshold * nuclear) <= 1e-4 * (1 + threshold * nuclear)


@given(shape=shapes, seed=st.integers(0, 1000), threshold=st.floats(0.01, 3.0))
def test_svt_is_firmly_nonexpansive(shape, seed, threshold):
    first, second = np.random.default_rng(seed).standard_normal((2, *shape)).astype(np.float32)
    moved = np.asarray(svt(jnp.asarray(first), threshold)) - np.asarray(svt(jnp.asarray(second), threshold))
    assert np.sum(moved**2) <= np.sum(moved * (first - second)) + 1e-4


def test_svt_commutes_with_rotations(rng, dtype):
    left, right = rotation(rng, 7), rotation(rng, 4)
    matrix = rng.standard_normal((7, 4))
    shrink = lambda m: np.asarray(svt(jnp.asarray(m, dtype), 1.0))
    tolerance = 100 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(shrink(left @ matrix @ right), left @ shrink(matrix) @ right, atol=tolerance)
    np.testing.assert_allclose(shrink(matrix.T), shrink(matrix).T, atol=tolerance)


def test_svt_is_what_a_convex_solver_finds(rng):
    matrix = rng.standard_normal((5, 3))
    unknown = cvxpy.Variable((5, 3))
    loss = cvxpy.sum_squares(unknown - matrix) / 2 + 0.8 * cvxpy.normNuc(unknown)
    cvxpy.Problem(cvxpy.Minimize(loss)).solve(solver=cvxpy.CLARABEL)
    np.testing.assert_allclose(svt(jnp.asarray(matrix), 0.8), unknown.value, atol=1e-5)


def test_svt_at_its_edges(rng, dtype):
    matrix = jnp.asarray(rng.standard_normal((6, 3)), dtype)
    zero = jnp.zeros_like(matrix)
    np.testing.assert_array_equal(svt(matrix, 1.01 * float(np.linalg.norm(matrix, 2))), zero)
    np.testing.assert_array_equal(svt(zero, 0.0), zero)
    np.testing.assert_array_equal(svt(zero, 1.0), zero)
    np.testing.assert_allclose(svt(matrix, 0.0), matrix, atol=50 * float(jnp.finfo(dtype).eps))
    np.testing.assert_array_equal(svt(jnp.eye(3, dtype=dtype), 1.0), jnp.zeros((3, 3)))
    assert jnp.isnan(svt(matrix.at[0, 0].set(jnp.nan), 0.5)).any()


def test_svt_at_zero_threshold_keeps_what_the_gram_cannot_see(rng, dtype):
    tiny = float(jnp.finfo(dtype).eps)
    matrix = with_singular_values(rng, 8, 3, [1.0, 0.5, tiny], dtype)
    np.testing.assert_allclose(svt(matrix, 0.0), matrix, atol=20 * tiny)


SPECTRA = {
    "generic": [3.0, 2.0, 0.5],
    "repeated above": [2.0, 2.0, 2.0],
    "repeated below": [2.0, 0.4, 0.4],
    "repeated above, zero": [2.0, 2.0, 0.0],
    "rank one": [2.0],
    "all below": [0.5, 0.5, 0.1],
    "zero": [0.0],
    "close": [2.0, 2.0 + 1e-9, 1.0 + 1e-4],
}


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("shape", [(5, 4), (3, 6)])
def test_svt_has_the_right_derivative_also_where_singular_values_meet(rng, check_derivative, spectrum, shape):
    matrix = with_singular_values(rng, *shape, SPECTRA[spectrum], jnp.float64)
    check_derivative(svt, matrix, jnp.asarray(1.0))


@needs_x64
def test_svt_has_the_derivative_of_an_svd_where_that_exists(rng):
    def through_svd(matrix, threshold):
        left, sigma, right = jnp.linalg.svd(matrix, full_matrices=False)
        return (left * jnp.maximum(sigma - threshold, 0)[None, :]) @ right

    matrix = jnp.asarray(rng.standard_normal((7, 4)), jnp.float64)
    loss = lambda f: lambda m, t: jnp.sum(jnp.sin(f(m, t)))
    ours, theirs = (jax.jit(jax.grad(loss(f), argnums=(0, 1)))(matrix, jnp.asarray(1.2)) for f in (svt, through_svd))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)


@needs_x64
def test_svt_at_zero_threshold_moves_with_the_matrix(rng):
    matrix = with_singular_values(rng, 5, 3, [1.0, 1.0], jnp.float64)
    direction = jnp.asarray(rng.standard_normal((5, 3)), jnp.float64)
    _, tangent = jax.jvp(lambda m: svt(m, 0.0), (matrix,), (direction,))
    np.testing.assert_allclose(tangent, direction, atol=1e-12)


def test_right_basis_is_the_leading_eigenspace(rng, dtype):
    matrix = jnp.asarray(rng.standard_normal((20, 6)), dtype)
    basis, eigenvalues = right_basis(gram(matrix), 3)
    _, sigma, right = np.linalg.svd(np.asarray(matrix, np.float64))
    tolerance = 100 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(eigenvalues, sigma[:3] ** 2, rtol=tolerance)
    np.testing.assert_allclose(np.asarray(basis).T @ basis, np.eye(3), atol=tolerance)
    np.testing.assert_allclose(np.abs(np.sum(np.asarray(basis) * right[:3].T, axis=0)), 1, atol=tolerance)


def leading_projection(matrix):
    basis, eigenvalues = right_basis((matrix + matrix.T) / 2, 2)
    return basis @ basis.T, jnp.sum(eigenvalues)


@pytest.mark.parametrize("spectrum", [[4.0, 3.0, 1.0, 0.5], [4.0, 4.0, 1.0, 1.0], [4.0, 4.0 + 1e-13, 0.0, 0.0]])
def test_right_basis_turns_its_subspace_rightly_where_eigenvalues_repeat(rng, check_derivative, spectrum):
    check_derivative(leading_projection, symmetric(rng, spectrum, jnp.float64))


@functools.partial(jax.jit, static_argnums=1)
def norm_of(matrix, steps):
    return kernels.spectral_norm(lambda v: matrix @ v, matrix.shape[0], dtype=matrix.dtype, steps=steps)


OPERATORS = {
    "one by one": [3.0],
    "zero": [0.0] * 30,
    "rank one": [5.0] + [0.0] * 29,
    "identity": [1.0] * 30,
    "linear": np.arange(30.0),
    "geometric": 0.5 ** np.arange(30.0),
    "cluster at the top": np.concatenate([1 - 1e-6 * np.arange(10.0), np.linspace(0, 0.5, 20)]),
    "tight cluster": np.concatenate([1 - 1e-12 * np.arange(5.0), np.linspace(0, 0.9, 25)]),
    "two levels": [1.0] * 3 + [1e-3] * 27,
    "tiny": 1e-15 * np.arange(30.0),
    "large": 1e15 * np.arange(30.0),
}


@pytest.mark.parametrize("spectrum", OPERATORS)
def test_spectral_norm_agrees_with_eigvalsh(rng, dtype, spectrum):
    matrix = symmetric(rng, OPERATORS[spectrum], dtype)
    size = matrix.shape[0]
    expected = np.linalg.eigvalsh(np.asarray(matrix, np.float64))[-1]
    found = norm_of(matrix, size)
    np.testing.assert_allclose(found, expected, rtol=10 * size * float(jnp.finfo(dtype).eps), atol=0)


def test_half_of_the_steps_already_give_four_digits(rng, dtype):
    data = rng.standard_normal((40, 30))
    for matrix in (data.T @ data, data[:20].T @ data[:20], 30 * np.eye(30) - np.ones((30, 30))):
        expected = np.linalg.norm(matrix, 2)
        found = float(norm_of(jnp.asarray(matrix, dtype), 15))
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        assert found <= expected * (1 + 50 * float(jnp.finfo(dtype).eps))


@given(seed=st.integers(0, 1000), rank=st.integers(0, 9))
def test_spectral_norm_never_exceeds_and_grows_with_the_steps(seed, rank):
    factor = np.random.default_rng(seed).standard_normal((30, rank))
    matrix = jnp.asarray(factor @ factor.T, jnp.float32)
    expected = np.linalg.norm(factor, 2) ** 2 if rank else 0
    found = [float(norm_of(matrix, steps)) for steps in (1, 15, 30)]
    slack = 1e-5 * expected
    assert found[0] <= found[1] + slack <= found[2] + 2 * slack <= expected + 3 * slack
    assert found[2] >= expected - slack


def test_spectral_norm_shows_a_bad_operator(dtype):
    for bad in (jnp.nan, jnp.inf):
        assert jnp.isnan(norm_of(jnp.asarray(np.diag([bad] + 29 * [1.0]), dtype), 30))


def norm_of_symmetric_part(matrix):
    return norm_of((matrix + matrix.T) / 2, 4)


@pytest.mark.parametrize("spectrum", [[3.0, 2.0, 1.0, 0.5], [3.0, 1.0, 1.0, 0.0], [2.0, 0.0, 0.0, 0.0]])
def test_spectral_norm_has_the_right_derivative(rng, check_derivative, spectrum):
    check_derivative(norm_of_symmetric_part, symmetric(rng, spectrum, jnp.float64))
