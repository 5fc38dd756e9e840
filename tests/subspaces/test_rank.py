"""Rank from a spectrum: calibrated on noise, powerful on signal, exact without noise, silent on nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

from clairjax import subspaces
from clairjax.subspaces._rank import _marchenko_pastur_median


noise_edge_rank = jax.jit(subspaces.noise_edge_rank, static_argnums=2)
rank_from_gap = jax.jit(subspaces.rank_from_gap, static_argnums=1)


def spectra(data):
    """Eigenvalues of the scatter of each `[samples, dimensions]` slice, descending."""
    scatter = np.swapaxes(data, 1, 2) @ data
    return np.maximum(np.linalg.eigvalsh(scatter)[:, ::-1], 0)


@functools.partial(jax.jit, static_argnums=2)
def ranks(eigenvalues, samples, max_rank):
    return jax.vmap(lambda e: noise_edge_rank(e, samples, max_rank))(eigenvalues)


def found(data, max_rank, dtype=jnp.float32):
    samples = jnp.asarray(data.shape[1])
    return np.asarray(ranks(jnp.asarray(spectra(data), dtype), samples, max_rank))


def noise(seed, replicates, samples, dimensions):
    return np.random.default_rng(seed).standard_normal((replicates, samples, dimensions))


def along(correlation, size):
    """Square root of the AR(1) covariance."""
    lags = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    return np.linalg.cholesky(correlation**lags)


SHAPES = [(5, 8), (10, 10), (10, 20), (10, 100), (20, 10), (50, 20), (50, 100)]
LIMITS = {(5, 8): 0.04, (10, 10): 0.02}  # 0.01 elsewhere
CORRELATED = {(5, 8): 0.06, (10, 10): 0.05, (20, 10): 0.05, (50, 20): 0.08}  # 0.02 elsewhere


@pytest.mark.parametrize(("dimensions", "samples"), SHAPES)
def test_noise_alone_is_rarely_called_signal(dimensions, samples):
    replicates = 1000
    rate = np.mean(found(noise(0, replicates, samples, dimensions), 4) > 0)
    limit = LIMITS.get((dimensions, samples), 0.01)
    assert rate <= limit + 3 * np.sqrt(limit * (1 - limit) / replicates)


@pytest.mark.parametrize(("dimensions", "samples"), SHAPES)
def test_rows_that_are_correlated_with_each_other_are_rarely_called_signal(dimensions, samples):
    replicates = 1000
    data = along(0.25, samples) @ noise(1, replicates, samples, dimensions)
    rate = np.mean(found(data, 4) > 0)
    limit = CORRELATED.get((dimensions, samples), 0.02)
    assert rate <= limit + 3 * np.sqrt(limit * (1 - limit) / replicates)


@pytest.mark.parametrize(("dimensions", "samples"), [(5, 8), (10, 20), (50, 20), (50, 100)])
@pytest.mark.parametrize("rank", [1, 2])
def test_clear_signal_is_counted(dimensions, samples, rank):
    replicates = 300
    rng = np.random.default_rng(2)
    signal = rng.standard_normal((replicates, samples, rank)) @ rng.standard_normal((replicates, rank, dimensions))
    counts = found(8 * signal + noise(3, replicates, samples, dimensions), 4)
    assert np.mean(counts >= rank) >= 0.93
    assert np.mean(counts == rank) >= 0.85 if dimensions == 5 else 0.93


def test_a_weak_direction_is_counted_beside_a_strong_one():
    data = noise(4, 200, 60, 20)
    data[:, :, 0] *= 100
    data[:, :, 1] *= 3
    assert np.mean(found(data, 5) == 2) >= 0.97


def test_the_scale_of_the_data_does_not_matter(dtype):
    data = noise(5, 50, 30, 10)
    data[:, :, :2] *= 4
    expected = found(data, 4, dtype)
    for scale in (1e-6, 1e6):
        np.testing.assert_array_equal(found(scale * data, 4, dtype), expected)


def test_without_noise_the_rank_is_the_algebraic_one(dtype):
    rng = np.random.default_rng(6)
    for rank in (0, 1, 2, 3):
        factors = rng.standard_normal((20, 30, rank)), rng.standard_normal((20, rank, 10))
        data = jnp.asarray(factors[0] @ factors[1], dtype)
        eigenvalues = jnp.asarray(np.linalg.eigvalsh(jnp.swapaxes(data, 1, 2) @ data)[:, ::-1].copy(), dtype)
        np.testing.assert_array_equal(ranks(eigenvalues, jnp.asarray(30), 4), rank)
        exact = jnp.asarray([[3.0, 2.0, 1.0][:rank] + [0.0] * (10 - rank)], dtype)
        np.testing.assert_array_equal(ranks(exact, jnp.asarray(30), 4), rank)
        assert int(rank_from_gap(exact[0], 4)) == rank


@pytest.mark.parametrize("samples", [0, 1, 2, 7, 7.5, 1e6])
def test_nothing_and_nonsense_have_rank_zero(dtype, samples):
    for spectrum in ([0.0] * 6, [1.0] * 6, [np.nan] * 6, [np.inf, 1, 1, 1, 1, 1], [5.0, 1, 1, 1, 1, np.nan]):
        spectrum = jnp.asarray(spectrum, dtype)
        rank = noise_edge_rank(spectrum, samples, 3)
        assert rank.dtype == jnp.int32 and int(rank) == 0
        assert noise_edge_rank(spectrum[:1], 7, 3) == 0


def test_rank_is_cut_at_its_bound_and_falls_with_the_margin(dtype):
    spectrum = jnp.asarray([1e4, 1e3, 300.0, 100.0, 90.0, 80.0, 75.0, 70.0, 60.0, 50.0], dtype)
    assert [int(noise_edge_rank(spectrum, 80, bound)) for bound in (0, 2, 3, 99)] == [0, 2, 3, 3]
    counts = [int(noise_edge_rank(spectrum, 80, 5, margin=margin)) for margin in (1.0, 1.2, 3.0, 10.0, 1e3)]
    assert counts == sorted(counts, reverse=True) and counts[0] == 3 and counts[-1] == 0


def test_samples_may_be_any_number_and_traced(dtype):
    spectrum = jnp.asarray([900.0, 400.0, 140.0, 120.0, 105.0, 95.0, 80.0, 70.0], dtype)
    for samples in (100, 100.0, jnp.asarray(100), jnp.asarray(100.0, dtype)):
        assert int(noise_edge_rank(spectrum, samples, 4)) == 2


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.37, 0.5, 0.8, 1.0])
def test_the_median_is_that_of_the_marchenko_pastur_law(ratio):
    """With `x = 1 + γ + 2√γ cos t` the density is smooth, and half of it must lie below the median."""
    middle, half = 1 + ratio, 2 * np.sqrt(ratio)
    density = lambda t: (half * np.sin(t)) ** 2 / (2 * np.pi * ratio * (middle + half * np.cos(t)))
    median = float(_marchenko_pastur_median(jnp.asarray(ratio)))
    below = quad(density, np.arccos((median - middle) / half), np.pi)[0]
    assert below == pytest.approx(0.5, abs=2e-5)


def test_gap_finds_the_largest_ratio(dtype):
    spectrum = lambda *values: jnp.asarray(values, dtype)
    assert int(rank_from_gap(spectrum(9.0, 8.0, 1.0, 0.9), 3)) == 2
    assert int(rank_from_gap(spectrum(9.0, 8.0, 1.0, 0.9), 1)) == 1
    assert int(rank_from_gap(spectrum(9.0, 8.0, 1.0, 1e-3), 3)) == 3
    assert int(rank_from_gap(spectrum(9.0, 8.0, 1.0, 1e-3), 99)) == 3
    assert int(rank_from_gap(spectrum(4.0, 2.0, 1.0, 1.0), 3)) == 1
    assert int(rank_from_gap(spectrum(1.0, 1.0, 1.0), 2)) == 1
    assert int(rank_from_gap(spectrum(1.0, 0.0, 0.0), 2)) == 1
    assert int(rank_from_gap(spectrum(1.0, 1e-30, 1e-38), 2)) == 1
    for nothing in (
        spectrum(0.0, 0.0, 0.0),
        spectrum(np.nan, 1.0, 1.0),
        spectrum(np.inf, 1.0, 1.0),
        spectrum(1.0),
    ):
        rank = rank_from_gap(nothing, 2)
        assert rank.dtype == jnp.int32 and int(rank) == 0


def test_gap_is_batched_like_a_loop(dtype):
    batch = jnp.asarray(spectra(noise(7, 8, 12, 6)), dtype)
    batched = jax.jit(jax.vmap(lambda e: rank_from_gap(e, 4)))(batch)
    assert list(batched) == [int(rank_from_gap(e, 4)) for e in batch]
