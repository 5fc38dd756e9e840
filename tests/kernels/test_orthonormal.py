"""QR with a fixed sign: uniqueness, rank deficiency, derivatives; the rate of subspace iteration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairjax import kernels


orthonormalize = jax.jit(kernels.orthonormalize)


@given(seed=st.integers(0, 1000), shape=st.sampled_from([(1, 1), (5, 1), (4, 4), (7, 3)]))
def test_columns_are_orthonormal_and_the_rest_is_upper_triangular_with_positive_diagonal(seed, shape):
    matrix = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    basis = np.asarray(orthonormalize(jnp.asarray(matrix)))
    np.testing.assert_allclose(basis.T @ basis, np.eye(shape[1]), atol=1e-5)
    upper = np.asarray(basis.T @ matrix)
    np.testing.assert_allclose(np.tril(upper, -1), 0, atol=1e-5)
    assert np.all(np.diag(upper) > 0)
    np.testing.assert_allclose(basis @ upper, matrix, atol=1e-5)


def test_it_is_gram_schmidt(rng, dtype):
    matrix = jnp.asarray(rng.standard_normal((6, 3)), dtype)
    expected = []
    for column in np.asarray(matrix, np.float64).T:
        rest = column - sum((np.dot(q, column) * q for q in expected), np.zeros(6))
        expected.append(rest / np.linalg.norm(rest))
    np.testing.assert_allclose(orthonormalize(matrix), np.stack(expected, 1), atol=100 * float(jnp.finfo(dtype).eps))


def test_scaling_columns_changes_nothing_and_a_basis_is_kept(rng, dtype):
    matrix = jnp.asarray(rng.standard_normal((6, 3)), dtype)
    basis = orthonormalize(matrix)
    tolerance = 50 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(orthonormalize(matrix * jnp.asarray([[2.0, 0.1, 30.0]], dtype)), basis, atol=tolerance)
    np.testing.assert_allclose(orthonormalize(basis), basis, atol=tolerance)


@jax.jit
@jax.grad
def gradient_of_cubes(matrix):
    return jnp.sum(orthonormalize(matrix) ** 3)


def test_dependent_columns_give_a_finite_orthonormal_answer(rng, dtype):
    matrix = jnp.asarray(rng.standard_normal((6, 4)), dtype)
    for broken in (matrix.at[:, 2].set(matrix[:, 0]), matrix.at[:, 1].set(0), jnp.zeros_like(matrix)):
        basis = orthonormalize(broken)
        np.testing.assert_allclose(basis.T @ basis, np.eye(4), atol=50 * float(jnp.finfo(dtype).eps))
        gradient = gradient_of_cubes(broken)
        assert jnp.isfinite(gradient).all()
        assert jnp.abs(gradient).max() < 1e3


def test_wide_matrices_are_refused():
    with pytest.raises(ValueError, match=r"at least as many rows as columns, got shape \(2, 3\)"):
        orthonormalize(jnp.ones((2, 3)))


@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (3, 1)])
def test_derivative_is_that_of_finite_differences(rng, check_derivative, shape):
    check_derivative(orthonormalize, jnp.asarray(rng.standard_normal(shape)))


def test_independent_columns_keep_their_derivative_beside_a_dependent_one(rng):
    matrix = jnp.asarray(rng.standard_normal((6, 4))).at[:, 1].set(0.0)
    rest = jnp.asarray([0, 2, 3])
    direction = jnp.cos(matrix).at[:, 1].set(0.0)
    _, first = jax.jvp(lambda m: orthonormalize(m)[:, 0], (matrix,), (direction,))
    _, alone = jax.jvp(lambda m: orthonormalize(m)[:, 0], (matrix[:, rest],), (direction[:, rest],))
    np.testing.assert_allclose(first, alone, atol=1e-5)
