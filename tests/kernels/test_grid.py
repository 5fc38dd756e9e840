"""The mechanism in whole numbers: the law of its noise, who gets through its clip, what its low-order bits tell."""

from fractions import Fraction
from math import erfc, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.kernels import _grid as _grid_module
from clairjax.kernels import gaussian_mechanism, grid_gaussian_mechanism
from clairjax.kernels._grid import CLIP_BITS, _grid, _square, _whole_numbers
from clairjax.kernels._whole_normal import THRESHOLDS, whole_normal


DRAWS = 200_000
draw = jax.jit(lambda key, exponent: whole_normal(key, (DRAWS,), exponent))


def mass(low, high):
    """P(low ≤ N < high), also far out."""
    upper = lambda t: 0.5 * erfc(t / sqrt(2))
    return upper(low) - upper(high) if low >= 0 else upper(-high) - upper(-low)


@pytest.mark.parametrize("exponent", [0, 3])
def test_the_noise_has_the_law_of_a_rounded_down_gaussian(key, exponent):
    """Pearson's statistic over all whole numbers that are expected five times, mean 1 a cell."""
    noise = np.asarray(draw(key, exponent))
    cells = np.arange(-(6 << exponent), 6 << exponent)
    expected = DRAWS * np.array([mass(cell / 2**exponent, (cell + 1) / 2**exponent) for cell in cells])
    found = np.array([np.count_nonzero(noise == cell) for cell in cells])
    often = expected >= 5
    statistic = np.sum((found - expected)[often] ** 2 / expected[often])
    assert abs(statistic - often.sum()) <= 4 * np.sqrt(2 * often.sum())
    rest = expected[~often].sum()
    assert abs(found[~often].sum() - rest) <= 4 * np.sqrt(rest) + 1


def test_moments_and_low_order_bits(key):
    noise = np.asarray(draw(key, 26)).astype(np.int64)
    normal = (noise + 0.5) / 2**26
    assert abs(normal.mean()) <= 4 / DRAWS**0.5
    assert abs(normal.var() - 1) <= 4 * (2 / DRAWS) ** 0.5
    assert abs((normal**4).mean() - 3) <= 4 * (96 / DRAWS) ** 0.5
    assert abs(np.corrcoef(normal[:-1], normal[1:])[0, 1]) <= 4 / DRAWS**0.5
    for shift in (0, 10, 18):  # uniform bytes, whatever the sign
        counts = np.bincount((noise >> shift) & 255, minlength=256)
        assert abs(np.sum((counts - DRAWS / 256) ** 2) / (DRAWS / 256) - 255) <= 4 * (2 * 255) ** 0.5


def test_a_coarser_grid_rounds_the_same_noise_down(key):
    """⌊S N⌋ for each power of two S, negative numbers included, is one N's."""
    exponents = np.array([26, 25, 9, 0, -3, -60], np.int32)
    fine, *coarse = np.asarray(jax.jit(jax.vmap(lambda exponent: whole_normal(key, (5000,), exponent)))(exponents))
    for exponent, found in zip(exponents[1:], coarse, strict=True):
        np.testing.assert_array_equal(found, fine >> min(26 - exponent, 31))


def test_whole_parts_have_the_chances_of_the_table():
    """P(K ≤ j) for P(K = j) ∝ exp(−j²/2), by NumPy."""
    weights = np.exp(-(np.arange(30.0) ** 2) / 2)
    table = (np.float64(THRESHOLDS[0]) + np.float64(THRESHOLDS[1]) / 2**32) / 2**32
    np.testing.assert_allclose(table, (np.cumsum(weights) / weights.sum())[: len(table)], rtol=1e-15)
    assert weights[len(table) + 1 :].sum() < 2.0**-64


@pytest.mark.parametrize("sigma", [1e-30, 0.037, 1.0, 24.0, 4000.0, 3e9])
@pytest.mark.parametrize("clients", [2, 100_000])
def test_nothing_passes_that_is_longer_than_the_clip_norm(rng, sigma, clients):
    """Squared norm at most (S/σ)², in Python's integers: of any size, NaN and infinite ones too."""
    sigma = np.float32(sigma)
    exponent, steps = _grid(jnp.asarray(sigma), clients)
    rows = np.ldexp(rng.uniform(-1, 1, (600, 7)), rng.integers(-150, 129, (600, 1))).astype(np.float32)
    rows[:7] = np.eye(7)
    rows[range(7), range(7)] = [0.99999, 1, 1.00001, 3e38, 2.0**127, np.nan, np.inf]
    unit = rng.standard_normal((20, 7))
    rows[7:27] = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    (numbers,) = pass_all(rows, steps)
    longest = (Fraction(2) ** int(exponent) / Fraction(float(sigma))) ** 2
    squares = [sum(int(z) ** 2 for z in row) for row in np.asarray(numbers)]
    assert all(square <= longest for square in squares)
    expected = float(steps) * np.minimum(1, np.linalg.norm(np.float64(rows), axis=1))
    expected[5:7] = 0
    assert (abs(np.sqrt(squares) - expected) <= 7**0.5 + 1).all()  # and nobody else is dropped


pass_all = jax.jit(lambda rows, steps: jax.vmap(lambda row: _whole_numbers([row], jnp.float32(1), steps))(rows))


def test_the_clip_in_floats_is_not_trusted(monkeypatch, rng):
    """If it let everything through, what is too long in whole numbers would be dropped."""
    monkeypatch.setattr(_grid_module, "clip_by_norm", lambda value, bound: value)
    row = jnp.asarray(rng.standard_normal(7), jnp.float32)
    row, steps = row / jnp.linalg.norm(row), jnp.float32(2.0**15)
    for length, passes in ((0.5, True), (0.999, True), (1.001, False), (2.0, False), (1e30, False)):
        (numbers,) = _whole_numbers([length * row], jnp.float32(1), steps)
        assert bool(jnp.any(numbers != 0)) == passes


def test_squares_are_added_exactly_until_they_are_too_many():
    square = jax.jit(_square)
    most = 2 ** (2 * CLIP_BITS)
    numbers = np.full(1 << 12, 512, np.int32)
    assert int(square([numbers])) == most
    assert int(square([numbers, numbers[:1] * 0 - 1])) == most + 1
    assert int(square([numbers, numbers * 64])) == most + 1
    numbers = np.random.default_rng(0).integers(-500, 500, 1 << 12).astype(np.int32)
    assert int(square([numbers, numbers[::-1]])) == 2 * int(np.sum(numbers.astype(np.int64) ** 2))


@pytest.mark.parametrize("sigma", [0.01, 2.0, 1e5])
def test_a_release_is_the_whole_sum_and_noise_that_does_not_know_it(key, rng, sigma):
    """In grid steps, of which σζ are a power of two: exact sums, in any order, and for any data the same noise."""
    exponent, steps = _grid(jnp.float32(sigma), 50)
    assert float(steps) * sigma == pytest.approx(2.0 ** int(exponent))
    noise = np.asarray(whole_normal(jax.random.split(key, 1)[0], (7,), exponent))
    for size in (0.01, 1.0, 1e30):
        values = (size * rng.standard_normal((50, 7))).astype(np.float32)
        found = released(values, sigma, key)
        np.testing.assert_array_equal(found, released(values[rng.permutation(50)], sigma, key))
        numbers = np.asarray(pass_all(values, steps)[0]).sum(0)
        np.testing.assert_allclose(np.float64(found) * 10 * float(steps) - 0.5, numbers + noise, rtol=1e-6, atol=0.1)


@jax.jit
def released(values, sigma, key):
    return grid_gaussian_mechanism(values, 1.0, sigma, normaliser=10.0, key=key)


def accuracy(release, values, sigma, keys):
    """How often an attacker who knows both worlds' sums tells the worlds apart by the numbers that noise can be.

    JAX draws √2 erfinv(u) for one of 2^23 u. Those near the noise that a world implies are tried: only in the true
    world does one of them give the release, bit for bit.
    """
    low = np.nextafter(np.float32(-1), np.float32(0))
    sums = [jnp.sum(each, 0) for each in values]

    @jax.jit
    def possible(release, total):
        noise = (release * 10 - total) / sigma
        near = jnp.round((jax.lax.erf(noise / np.float32(2**0.5)) + 1) * 2.0**22).astype(jnp.int32)
        steps = jnp.clip(near[:, None] + np.arange(-32, 33, dtype=np.int32)[None, :], 0, 2**23 - 1)
        uniform = jnp.maximum(low, steps.astype(jnp.float32) * np.float32(2**-23) * (np.float32(1) - low) + low)
        normal = np.float32(2**0.5) * jax.lax.erf_inv(uniform)
        return jnp.any((total[:, None] + sigma * normal) / 10 == release[:, None], 1).all()

    right = 0.0
    for i, key in enumerate(keys):
        seen = release(values[i % 2], sigma, key)
        fits = [bool(possible(seen, total)) for total in sums]
        right += 0.5 if fits[0] == fits[1] else float(fits[i % 2])
    return right / len(keys)


def test_low_order_bits_tell_the_worlds_apart_in_floats_alone(rng, key):
    """One client's value or its opposite, in float32; at ε = 1, δ = 1e-5, at most 0.731 of guesses can be right."""
    sigma, one = jnp.float32(8.06), np.full((1, 7), 0.999 / 7**0.5)
    others = np.tile(rng.standard_normal(7) * 0.05, (49, 1))
    values = [jnp.asarray(np.concatenate([sign * one, others]), jnp.float32) for sign in (1, -1)]
    keys = jax.random.split(key, 100)
    floats = jax.jit(lambda values, sigma, key: gaussian_mechanism(values, 1.0, sigma, normaliser=10.0, key=key))
    assert accuracy(floats, values, sigma, keys) > 0.95
    assert accuracy(released, values, sigma, keys) < 0.731
