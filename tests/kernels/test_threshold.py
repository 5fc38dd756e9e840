"""Block soft threshold and Huber: optimality, duality, the envelope that joins them, and zero."""

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairjax import kernels


block_norms, block_soft_threshold = jax.jit(kernels.block_norms), jax.jit(kernels.block_soft_threshold)
seeds = st.integers(0, 1000)
thresholds = st.floats(0.0, 4.0, width=32)


def blocks_of(seed, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal((5, 3, 2)), dtype)


def test_norms_are_those_of_numpy(rng, dtype):
    blocks = jnp.asarray(rng.standard_normal((4, 3, 2)), dtype)
    np.testing.assert_allclose(block_norms(blocks), np.linalg.norm(blocks, axis=(1, 2)), rtol=1e-6)


@given(seed=seeds, threshold=thresholds)
def test_soft_threshold_meets_the_optimality_conditions(seed, threshold):
    """`X − S = τ S/‖S‖` where S is not zero, `‖X − S‖ ≤ τ` where it is."""
    blocks = blocks_of(seed)
    shrunk = block_soft_threshold(blocks, threshold)
    before, after, rest = (np.asarray(block_norms(b)) for b in (blocks, shrunk, blocks - shrunk))
    assert np.all(rest <= threshold * (1 + 1e-5) + 1e-6)
    alive = after > 0
    np.testing.assert_allclose(rest[alive], threshold, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after, np.maximum(before - threshold, 0), rtol=1e-4, atol=1e-5)
    inner = jnp.sum(blocks * shrunk, axis=(1, 2))
    np.testing.assert_allclose(inner, before * after, rtol=1e-4, atol=1e-5)


@given(seed=seeds, threshold=thresholds)
def test_soft_threshold_is_firmly_nonexpansive(seed, threshold):
    first, second = blocks_of(seed), 0.5 * blocks_of(seed + 1)
    moved = block_soft_threshold(first, threshold) - block_soft_threshold(second, threshold)
    assert jnp.sum(moved**2) <= jnp.sum(moved * (first - second)) + 1e-4


def test_soft_threshold_is_what_a_convex_solver_finds(rng):
    blocks = rng.standard_normal((2, 3, 2))
    thresholds = np.array([0.7, 5.0])
    unknown = [cvxpy.Variable((3, 2)) for _ in blocks]
    loss = sum(
        cvxpy.sum_squares(s - b) / 2 + t * cvxpy.norm(s, "fro")
        for s, b, t in zip(unknown, blocks, thresholds, strict=True)
    )
    cvxpy.Problem(cvxpy.Minimize(loss)).solve(solver=cvxpy.CLARABEL)
    found = block_soft_threshold(jnp.asarray(blocks), jnp.asarray(thresholds))
    np.testing.assert_allclose(found, np.stack([s.value for s in unknown]), atol=1e-5)
    np.testing.assert_array_equal(found[1], np.zeros((3, 2)))


def test_soft_threshold_at_its_edges(dtype):
    blocks = jnp.asarray([[[3.0, 4.0]], [[0.0, 0.0]], [[6.0, 8.0]]], dtype)
    np.testing.assert_array_equal(block_soft_threshold(blocks, 0.0), blocks)
    np.testing.assert_array_equal(block_soft_threshold(blocks, jnp.inf), jnp.zeros_like(blocks))
    tie = block_soft_threshold(blocks, 5.0)
    np.testing.assert_array_equal(tie[:2], jnp.zeros((2, 1, 2)))
    np.testing.assert_allclose(tie[2], blocks[0], rtol=1e-6)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 100.0])
def test_derivatives_are_those_of_finite_differences(rng, check_derivative, threshold):
    blocks = jnp.asarray(rng.standard_normal((4, 3, 2))).at[2].set(0)
    check_derivative(lambda b: block_soft_threshold(b, threshold), blocks)
    if threshold:
        each = jnp.full(4, threshold)
        check_derivative(block_soft_threshold, blocks, each)


def test_soft_threshold_of_zero_is_the_identity_also_at_a_zero_block():
    blocks, direction = jnp.zeros((1, 2, 2)), jnp.ones((1, 2, 2))
    _, tangent = jax.jvp(lambda b: block_soft_threshold(b, 0.0), (blocks,), (direction,))
    np.testing.assert_array_equal(tangent, direction)
