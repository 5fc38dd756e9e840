"""The clip over every size of number that a dtype holds, against integers: what no float can overflow or flush."""

from fractions import Fraction
from math import isqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import kernels


DIRECTIONS = np.float64([[1.0, 0.1, 0.0], [-0.7, 0.6, 1e-4], [1.0, 1.0, 1.0]])
UNIT = 1150  # numbers are integers times 2^-UNIT


@pytest.fixture(params=["float16", "bfloat16", "float32", "float64"])
def any_dtype(request):
    if request.param == "float64" and not jax.config.jax_enable_x64:
        pytest.skip("no float64 here")
    return jnp.dtype(request.param)


def every_size(dtype):
    """Three directions at every exponent, from the least subnormal number to the largest number."""
    info = jnp.finfo(dtype)
    exponents = np.arange(info.minexp - info.nmant, info.maxexp)
    if len(exponents) > 300:  # every one at both ends, every ninth between
        exponents = np.unique(np.concatenate([exponents[:70], exponents[::9], exponents[-20:]]))
    rows = np.ldexp(DIRECTIONS[:, None], exponents[None, :, None]).reshape(-1, 3)
    largest, smallest = float(info.max), float(info.smallest_subnormal)
    return np.concatenate([rows, [[largest] * 3, [largest, -smallest, 0.0], [0.0] * 3]]).astype(dtype)


def bounds_for(rows, dtype):
    """Tiny, ordinary and huge ones, and for each row some around its norm."""
    info = jnp.finfo(dtype)
    fixed = [float(info.smallest_subnormal), float(info.tiny), 1e-3, 1.0, float(info.max), np.inf]
    with np.errstate(over="ignore"):
        near = np.minimum(np.abs(rows.astype(np.float64)).max(1)[:, None] * [0.3, 0.999, 2.0], float(info.max))
    return np.concatenate([np.broadcast_to(fixed, (len(rows), len(fixed))), near], 1).astype(dtype)


def integers(entries):
    return [int(Fraction(float(entry)) * 2**UNIT) for entry in entries]


def is_clipped(before, bound, after, info, wide):
    """Whether `after` is `before`, or shortened to the bound in its direction; all are integers, no bound is None."""
    tiny = integers([info.smallest_subnormal if info.dtype == jnp.float16 else info.tiny])[0]
    least, eps = integers([wide.tiny])[0], lambda x: x >> info.nmant
    square = sum(x * x for x in before)
    if bound is None:
        return after == before
    if bound < least:  # below all normal numbers
        return not any(after)
    if square <= (bound - eps(bound)) ** 2 and bound > 4 * least << wide.nmant:  # what is flushed is nothing to it
        return after == before
    norm = max(isqrt(square << 200), bound << 100)
    right = [(x * bound << 100) // norm for x in before]
    close = all(abs(x - y) <= 4 * eps(abs(y)) + tiny for x, y in zip(after, right, strict=True))
    return close and sum(x * x for x in after) <= (bound + 4 * eps(bound)) ** 2


def check(rows, bounds, clipped):
    lanes = [
        (integers(row), None if np.isinf(bound) else integers([bound])[0], integers(short))
        for row, bound, short in zip(rows, bounds, np.asarray(clipped), strict=True)
    ]
    wrong = [
        i for i, lane in enumerate(lanes) if not is_clipped(*lane, jnp.finfo(rows.dtype), jnp.finfo(bounds.dtype))
    ]
    assert not wrong, [(rows[i], bounds[i], clipped[i]) for i in wrong[:4]]


def test_every_finite_value_is_clipped_to_its_bound_in_its_direction(any_dtype):
    rows = every_size(any_dtype)
    bounds = bounds_for(rows, np.float64 if any_dtype == np.float64 else np.float32)
    rows, bounds = np.repeat(rows, bounds.shape[1], 0), bounds.reshape(-1)
    check(rows, bounds, jax.jit(jax.vmap(kernels.clip_by_norm))(rows, bounds))


EDGES = np.float32([[2.0**127, 2.0**124, 0.0], [3e38, 3e38, 3e38], [1e-45, 0.0, -1e-40], [2.0**-126, 1e-39, 1e-45]])
MODES = {
    "alone": lambda f: lambda rows, bound: jnp.stack([f(row, bound) for row in rows]),
    "jit": lambda f: lambda rows, bound: jnp.stack([jax.jit(f)(row, bound) for row in rows]),
    "vmap": lambda f: jax.vmap(f, (0, None)),
    "jit of vmap": lambda f: jax.jit(jax.vmap(f, (0, None))),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bound", [1.0, 1e-39, 1e-37, 1e38])
def test_however_it_is_run(mode, bound):
    clipped = MODES[mode](kernels.clip_by_norm)(jnp.asarray(EDGES), jnp.float32(bound))
    check(EDGES, np.full(len(EDGES), bound, np.float32), clipped)


def test_in_the_mechanism(key):
    release = jax.jit(lambda rows: kernels.gaussian_mechanism(rows, 1.0, 0.0, normaliser=1.0, key=key))
    released = [release(jnp.stack([row, 0 * row])) for row in EDGES]
    wide = EDGES.astype(np.float64)
    right = wide / np.maximum(np.linalg.norm(wide, axis=1), 1)[:, None]
    np.testing.assert_allclose(released, right, rtol=1e-6, atol=1.2e-38)  # sums of subnormals are flushed


@pytest.mark.parametrize("exponent", [-140, -100, 0, 100, 127])
def test_one_norm_over_leaves_of_every_dtype(exponent):
    """The half-precision leaf reaches no further than 2^15; the others hold what they hold."""
    wide = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
    tree = {
        "half": np.ldexp(DIRECTIONS[0], max(-24, min(exponent, 15))).astype(np.float16),
        "brain": np.ldexp(DIRECTIONS[1], exponent).astype(jnp.bfloat16),
        "single": np.ldexp(DIRECTIONS[2], exponent).astype(np.float32),
        "widest": np.ldexp(DIRECTIONS[0], exponent).astype(wide),
    }
    entries = np.concatenate([leaf.astype(np.float64) for leaf in tree.values()])
    norm = np.linalg.norm(entries)
    for bound in (1e-30, norm / 3, 1.0, 1e30):
        clipped = jax.jit(kernels.clip_by_norm)(tree, jnp.asarray(bound, wide))
        assert {name: leaf.dtype for name, leaf in clipped.items()} == {
            name: leaf.dtype for name, leaf in tree.items()
        }
        found = np.concatenate([np.asarray(clipped[name], np.float64) for name in tree])
        assert np.linalg.norm(found) <= bound * (1 + 1e-6)
        right = entries * min(1.0, bound / norm)
        quanta = np.repeat([6e-8, 1.2e-38, 1.2e-38, 1.2e-38], 3)
        assert (abs(found - right) <= np.repeat([2e-3, 2e-2, 1e-6, 1e-6], 3) * abs(right) + quanta).all()


@pytest.mark.parametrize("bound", [1e300, 1e39, 3.3e38])
def test_a_bound_beyond_the_dtype_still_binds(bound):
    value = jnp.full(3, 3e38, jnp.float32)  # of norm 5.2e38
    for given in (bound, np.float64(bound), jnp.asarray(bound) if jax.config.jax_enable_x64 else bound):
        clipped = np.asarray(kernels.clip_by_norm(value, given), np.float64)
        np.testing.assert_allclose(clipped, clipped[0])
        assert 3.2e38 < np.linalg.norm(clipped) <= 3.41e38
    np.testing.assert_array_equal(kernels.clip_by_norm(value, 1e-50), 0 * value)


def test_a_half_is_not_lengthened_by_rounding():
    """Entries that round up to the next subnormal number would be 1.6 times the bound."""
    value, clip = jnp.ones(900, jnp.float16), jax.jit(kernels.clip_by_norm)
    for bound in (1.1e-6, 1e-4, 0.03):
        assert np.linalg.norm(np.asarray(clip(value, bound), np.float64)) <= bound * 1.001


def test_the_norm_of_many_entries_is_as_sharp():
    value = jnp.full(3_000_000, 0.1, jnp.float32)
    assert np.linalg.norm(np.asarray(jax.jit(kernels.clip_by_norm)(value, 1.0), np.float64)) == pytest.approx(1, 1e-6)


@pytest.mark.parametrize("size", [1e-33, 1e-20, 1.0, 1e20, 1e38])
def test_direction_and_length(size):
    value = {"a": jnp.asarray(size * DIRECTIONS[:2], jnp.float32), "b": jnp.asarray(size * DIRECTIONS[2], jnp.float32)}
    entries = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in value.values()])
    unit, norm = jax.jit(kernels.normalize)(value)
    np.testing.assert_allclose(norm, np.linalg.norm(entries), rtol=1e-6)
    found = np.concatenate([np.asarray(leaf).ravel() for leaf in unit.values()])
    np.testing.assert_allclose(found, entries / np.linalg.norm(entries), rtol=1e-6)


def test_the_norm_of_an_operator_of_any_size():
    solve = jax.jit(lambda diagonal: kernels.spectral_norm(lambda v: diagonal * v, 3, dtype=jnp.float32, steps=3))
    for size in (1e-30, 1e30, 1e38):
        np.testing.assert_allclose(solve(jnp.asarray([0.5 * size, size, 0.2 * size], jnp.float32)), size, rtol=1e-5)
