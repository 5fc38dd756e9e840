"""Subspace distance and principal angles: known angles, invariances, padding, derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairjax import subspaces
from clairjax.kernels import orthonormalize


principal_angles = jax.jit(subspaces.principal_angles)
projector = jax.jit(subspaces.projector)
subspace_distance = jax.jit(subspaces.subspace_distance)


def basis_of(seed, rows=7, cols=3):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((rows, cols)))[0]


def turned(seed, angles, dtype):
    """Two bases whose principal angles are these, each rotated within itself."""
    frame, count = basis_of(seed, 7, 6), len(angles)
    first, second = (
        frame[:, :count],
        frame[:, :count] * np.cos(angles) + frame[:, 3 : 3 + count] * np.sin(angles),
    )
    within = basis_of(seed + 1, count, count)
    return jnp.asarray(first, dtype), jnp.asarray(second @ within, dtype)


def test_a_row_is_its_part_in_the_span_and_a_rest_without_any(rng, dtype):
    basis = np.pad(basis_of(1), ((0, 0), (0, 1)))  # a column that is absent
    matrices = rng.normal(size=(2, 4, 7))
    found = np.asarray(subspaces.along(jnp.asarray(matrices, dtype), jnp.asarray(basis, dtype)))
    np.testing.assert_allclose(found, matrices @ basis @ basis.T, atol=100 * float(jnp.finfo(dtype).eps))
    np.testing.assert_allclose((matrices - found) @ basis, 0, atol=100 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("angle", [0.0, 1e-10, 1e-6, 1e-3, 0.7, np.pi / 2 - 1e-5, np.pi / 2])
def test_distance_and_angles_see_the_angle_that_was_made(dtype, angle):
    angles = np.array([0.3 * angle, 0.9 * angle, angle])
    first, second = turned(0, angles, dtype)
    tolerance = 20 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(subspace_distance(first, second), np.sin(angle), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(principal_angles(first, second), angles, rtol=tolerance, atol=tolerance)


def test_a_tiny_angle_beside_a_large_one_is_not_lost():
    angles = np.array([1e-6, 1e-3, 1.2])
    first, second = turned(3, angles, jnp.float32)
    np.testing.assert_allclose(principal_angles(first, second), angles, atol=1e-6)
    np.testing.assert_allclose(subspace_distance(first, second), np.sin(1.2), rtol=1e-6)


@given(seed=st.integers(0, 1000))
def test_distance_is_the_spectral_norm_of_the_difference_of_projectors(seed):
    first, second = basis_of(seed), basis_of(seed + 1)
    expected = np.linalg.norm(first @ first.T - second @ second.T, 2)
    ours = [jnp.asarray(b, jnp.float32) for b in (first, second)]
    np.testing.assert_allclose(subspace_distance(*ours), expected, rtol=1e-5)
    np.testing.assert_allclose(subspace_distance(*ours[::-1]), expected, rtol=1e-5)
    np.testing.assert_allclose(principal_angles(*ours)[-1], np.arcsin(min(1, expected)), rtol=1e-3)


@given(seed=st.integers(0, 1000))
def test_distance_is_a_metric_of_subspaces(seed):
    first, second, third = (basis_of(3 * seed + i) for i in range(3))
    distance = lambda a, b: float(subspace_distance(jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)))
    assert distance(first, third) <= distance(first, second) + distance(second, third) + 1e-5
    rotated = first @ basis_of(seed, 3, 3)
    assert distance(first, rotated) <= 1e-6
    assert distance(rotated, second) == pytest.approx(distance(first, second), abs=1e-5)


def test_columns_of_zeros_are_absent(dtype):
    basis = basis_of(5)
    pad = lambda b: jnp.asarray(np.pad(b, ((0, 0), (0, 3 - b.shape[1]))), dtype)
    distance = lambda a, b: float(subspace_distance(pad(a), pad(b)))
    tolerance = 20 * float(jnp.finfo(dtype).eps)
    line, plane, empty = basis[:, :1], basis[:, :2], basis[:, :0]
    assert distance(empty, empty) == 0
    assert distance(plane, plane) <= tolerance
    for one, other in [(line, plane), (plane, basis), (empty, line)]:
        assert distance(one, other) == pytest.approx(1, abs=tolerance)
        assert distance(other, one) == pytest.approx(1, abs=tolerance)
    first, second = (np.asarray(b, np.float64) for b in turned(8, np.array([0.2, 0.5]), dtype))
    assert distance(first, second) == pytest.approx(np.sin(0.5), abs=tolerance)
    found = principal_angles(pad(first), pad(second))
    np.testing.assert_allclose(found, [0.2, 0.5, np.pi / 2], rtol=tolerance, atol=tolerance)
    for one, other in [(line, plane), (plane, line)]:
        np.testing.assert_allclose(principal_angles(pad(one), pad(other)), [0, np.pi / 2, np.pi / 2], atol=tolerance)


def test_different_ranks(dtype):
    plane, line = jnp.eye(4, 2, dtype=dtype), jnp.asarray([[0.6], [0.0], [0.8], [0.0]], dtype)
    tolerance = 20 * float(jnp.finfo(dtype).eps)
    for one, other in [(plane, line), (line, plane)]:
        assert float(subspace_distance(one, other)) == pytest.approx(1, abs=tolerance)
        np.testing.assert_allclose(principal_angles(one, other), [np.arccos(0.6)], rtol=tolerance)
    nothing = jnp.zeros((4, 0), dtype)
    assert float(subspace_distance(nothing, nothing)) == 0
    assert float(subspace_distance(nothing, line)) == pytest.approx(1)
    assert principal_angles(nothing, line).shape == (0,)
    assert jnp.isnan(subspace_distance(plane.at[0, 0].set(jnp.nan), line))


def test_projector_is_the_projection(dtype):
    basis = jnp.asarray(basis_of(2), dtype)
    projection = np.asarray(projector(basis))
    tolerance = 20 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(projection @ projection, projection, atol=tolerance)
    np.testing.assert_allclose(projection @ basis, basis, atol=tolerance)
    np.testing.assert_array_equal(projector(jnp.zeros_like(basis)), np.zeros((7, 7)))


def distance_and_angles(first, second):
    first, second = orthonormalize(first), orthonormalize(second)
    return subspaces.subspace_distance(first, second), jnp.sum(subspaces.principal_angles(first, second))


@pytest.mark.parametrize("angles", [[0.2, 0.5, 1.0], [0.4, 0.4, 1.0]])
def test_derivatives_are_those_of_finite_differences(check_derivative, angles):
    """Along orthonormal bases: off them the two residuals in the distance differ."""
    check_derivative(distance_and_angles, *turned(1, np.array(angles), jnp.float64))


def test_derivatives_are_finite_where_none_exists():
    total = lambda a, b: subspaces.subspace_distance(a, b) + jnp.sum(subspaces.principal_angles(a, b))
    gradient = jax.jit(jax.grad(total, argnums=(0, 1)))
    basis = jnp.eye(7, 3, dtype=jnp.float32)
    for other in (basis, jnp.zeros_like(basis), jnp.eye(7, 3, -3, dtype=jnp.float32)):
        assert all(jnp.isfinite(g).all() for g in gradient(basis, other))
    assert all(jnp.isfinite(g).all() for g in gradient(jnp.zeros_like(basis), jnp.zeros_like(basis)))


@pytest.mark.parametrize("function", [subspaces.subspace_distance, subspaces.principal_angles])
def test_keeps_the_dtype_and_vmap_is_a_loop(dtype, function):
    first, second = (jnp.stack([jnp.asarray(basis_of(s + i), dtype) for s in range(3)]) for i in (0, 9))
    batched = jax.jit(jax.vmap(function))(first, second)
    assert batched.dtype == dtype
    looped = [jax.jit(function)(a, b) for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(batched, np.stack(looped), atol=50 * float(jnp.finfo(dtype).eps))
