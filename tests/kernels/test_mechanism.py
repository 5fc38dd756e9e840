"""Clipping and the Gaussian mechanism: sensitivity, what must not pass, the noise that is promised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairjax import kernels


clip_by_norm = jax.jit(kernels.clip_by_norm)
MECHANISMS = {each.__name__: jax.jit(each) for each in (kernels.gaussian_mechanism, kernels.grid_gaussian_mechanism)}


def norm_of(tree):
    return np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree)))


@given(
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
    share=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
)
def test_clipping_projects_onto_the_ball(seed, scale, share):
    entries = (scale * np.random.default_rng(seed).standard_normal(8)).astype(np.float32)
    tree = {"a": jnp.asarray(entries[:6].reshape(3, 2)), "b": (jnp.asarray(entries[6:]),)}
    bound = float(share * norm_of(tree))
    clipped = clip_by_norm(tree, bound)
    before, after = norm_of(tree), norm_of(clipped)
    np.testing.assert_allclose(after, min(before, bound), rtol=1e-5)
    for leaf, short in zip(jax.tree.leaves(tree), jax.tree.leaves(clipped), strict=True):
        np.testing.assert_allclose(np.asarray(leaf, np.float64) * (after / before), short, rtol=1e-5)


@given(seed=st.integers(0, 1000), bound=st.floats(0.01, 4.0))
def test_clipping_is_nonexpansive(seed, bound):
    first, second = np.random.default_rng(seed).standard_normal((2, 5)).astype(np.float32)
    moved = np.asarray(clip_by_norm(jnp.asarray(first), bound)) - np.asarray(clip_by_norm(jnp.asarray(second), bound))
    assert norm_of(moved) <= norm_of(first - second) + 1e-5


@pytest.mark.parametrize("poison", [jnp.nan, jnp.inf, -jnp.inf])
def test_nothing_passes_whose_norm_is_unknown(dtype, poison):
    tree = {"bad": jnp.asarray([1.0, poison], dtype), "good": jnp.asarray([2.0], dtype)}
    assert norm_of(clip_by_norm(tree, 1.0)) == 0
    assert norm_of(clip_by_norm(tree, jnp.inf)) == 0


def test_clipping_at_its_edges(dtype):
    value = jnp.asarray([3.0, 4.0], dtype)
    np.testing.assert_array_equal(clip_by_norm(value, 5.0), value)
    np.testing.assert_array_equal(clip_by_norm(value, jnp.inf), value)
    for nothing in (0.0, -1.0, jnp.nan):
        np.testing.assert_array_equal(clip_by_norm(value, nothing), jnp.zeros(2))
    np.testing.assert_array_equal(clip_by_norm(jnp.zeros_like(value), 0.0), jnp.zeros(2))
    assert clip_by_norm(jnp.zeros((0, 3), dtype), 1.0).shape == (0, 3)


def test_half_precision_is_measured_in_single(dtype):
    value = {"half": jnp.full(1000, 300.0, jnp.float16), "full": jnp.ones(3, dtype)}
    clipped = clip_by_norm(value, 1.0)
    assert clipped["half"].dtype == jnp.float16 and clipped["full"].dtype == dtype
    np.testing.assert_allclose(norm_of(clipped), 1.0, rtol=2e-3)


@pytest.mark.parametrize("bound", [0.5, 100.0])
def test_derivative_of_the_clip(rng, check_derivative, bound):
    check_derivative(
        clip_by_norm, {"a": jnp.asarray(rng.standard_normal((3,))), "b": jnp.ones((2, 2))}, jnp.asarray(bound)
    )
    _, tangent = jax.jvp(lambda v: clip_by_norm(v, bound), (jnp.zeros(3),), (jnp.ones(3),))
    np.testing.assert_array_equal(tangent, jnp.ones(3))


@pytest.fixture(params=MECHANISMS)
def mechanism(request):
    return MECHANISMS[request.param]


@pytest.mark.parametrize("sigma", [0.0, 1e-5])
def test_without_much_noise_it_is_the_clipped_sum_over_the_public_number(mechanism, sigma, key, rng):
    values = 3 * jnp.asarray(rng.standard_normal((6, 3)), jnp.float32)
    released = mechanism(values, 1.5, sigma, normaliser=10.0, key=key)
    lengths = np.linalg.norm(values, axis=1)
    expected = np.sum(values * np.minimum(1, 1.5 / lengths)[:, None], axis=0) / 10
    error = 6 * 1.5 * 2**-14 / 10 if sigma else 1e-6  # six values, on the grid
    np.testing.assert_allclose(released, expected, rtol=1e-5, atol=error)


def test_one_client_moves_the_release_by_at_most_its_clip(mechanism, key, rng):
    values = 5 * jnp.asarray(rng.standard_normal((6, 3)), jnp.float32)
    release = lambda v: mechanism(v, 0.7, 2.0, normaliser=4.0, key=key)
    removed = norm_of(release(values) - release(values.at[2].set(0)))
    replaced = norm_of(release(values) - release(values.at[2].multiply(-1)))
    poisoned = norm_of(release(values.at[2].set(0)) - release(values.at[2, 0].set(jnp.nan)))
    assert removed == pytest.approx(0.7 / 4, rel=2e-4)
    assert replaced == pytest.approx(2 * 0.7 / 4, rel=2e-4)
    assert poisoned == 0
    assert norm_of(release(values) - release(values[::-1])) <= 1e-6


def test_the_noise_does_not_know_how_many_clients_came(mechanism, key):
    zeros = jnp.zeros((6, 3), jnp.float32)
    draws = [mechanism(zeros[:clients], 1.0, 2.0, normaliser=8.0, key=key) for clients in (1, 6)]
    np.testing.assert_array_equal(draws[0], draws[1])


def test_noise_is_gaussian_with_the_promised_deviation_in_each_entry(mechanism, key):
    values = {"a": jnp.ones((4, 30), jnp.float32), "b": jnp.ones((4, 5, 6), jnp.float32)}
    release = lambda k: mechanism(values, 0.5, 3.0, normaliser=10.0, key=k)
    drawn = jax.jit(jax.vmap(release))(jax.random.split(key, 400))
    entries = np.concatenate([np.asarray(drawn["a"]), np.asarray(drawn["b"]).reshape(400, 30)], 1)
    noise = entries - 4 * (0.5 / np.sqrt(60)) / 10
    deviation, count = 3.0 * 0.5 / 10, noise.size
    assert abs(noise.mean()) <= 4 * deviation / np.sqrt(count)
    assert abs(noise.var() / deviation**2 - 1) <= 4 * np.sqrt(2 / count)
    assert abs(np.mean((noise / deviation) ** 4) - 3) <= 4 * np.sqrt(96 / count)
    correlation = np.corrcoef(noise.T) - np.eye(60)
    assert abs(correlation).max() <= 5.5 / np.sqrt(400)
