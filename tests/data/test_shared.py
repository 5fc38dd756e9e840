"""FLUTE's two simulation models: their laws, their dtype, their sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.data import LinearTasks


LAWS = ("spectrum", "normal")
SMALL = {law: LinearTasks(clients=6, features=4, samples=5, law=law) for law in LAWS}


@pytest.fixture(params=LAWS)
def law(request):
    return request.param


def test_shapes_and_dtype(key, dtype, law):
    problem = SMALL[law].generate(key=key, dtype=dtype)
    assert problem.inputs.shape == (6, 5, 4) and problem.targets.shape == (6, 5) and problem.truth.shape == (6, 4)
    assert {leaf.dtype for leaf in jax.tree.leaves(problem)} == {dtype}
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(problem))


@pytest.mark.parametrize(("clients", "features"), [(15, 10), (3, 5), (4, 4)])
def test_the_spectrum_is_the_printed_one(key, clients, features):
    """More clients than features and fewer: λ_i = 2d/(i + 1) either way."""
    problem = LinearTasks(clients, features, 2).generate(key=key, dtype=jnp.float64)
    size = min(clients, features)
    values = np.linalg.svd(problem.truth, compute_uv=False)
    np.testing.assert_allclose(values, [2 * features / (i + 1) for i in range(1, size + 1)], rtol=1e-12)


def test_singular_vectors_have_no_preferred_direction(key):
    """Entries of a uniform orthonormal matrix: mean zero, variance 1/rows, and no sign that its QR leaves."""
    model = LinearTasks(clients=4, features=3, samples=1)
    truth = np.asarray(jax.vmap(lambda k: model.generate(key=k).truth)(jax.random.split(key, 4000)))
    total = 3 + 2 + 1.5, 9 + 4 + 2.25
    assert np.abs(truth.mean(0)).max() < 4 * np.sqrt(total[1] / 12 / 4000)
    squares = truth**2
    assert np.abs(squares.mean(0) - total[1] / 12).max() < 4 * squares.std(0).max() / np.sqrt(4000)


def test_laws_of_the_draws(key, law):
    model = LinearTasks(clients=200, features=3, samples=100, law=law, noise=0.5)
    problem = model.generate(key=key)
    noise = np.asarray(problem.targets) - np.einsum("mnd,md->mn", problem.inputs, problem.truth)
    inputs = np.asarray(problem.inputs)
    for values, variance in ((noise, 0.25), (inputs, 1.0)):
        assert abs(values.mean()) < 4 * np.sqrt(variance / values.size)
        assert abs(values.var() - variance) < 4 * variance * np.sqrt(2 / values.size)
    pooled = np.einsum("mni,mnj->ij", inputs, inputs) / inputs[..., 0].size
    assert np.abs(pooled - np.eye(3)).max() < 6 * np.sqrt(2 / inputs[..., 0].size)
    assert abs(np.mean(noise[..., None] * inputs)) < 4 * 0.5 / np.sqrt(inputs.size)
    if law == "normal":
        truth = np.asarray(problem.truth)
        assert abs(truth.mean()) < 4 / np.sqrt(truth.size) and abs(truth.var() - 1) < 4 * np.sqrt(2 / truth.size)


def test_the_default_noise_has_variance_three_tenths(key):
    problem = LinearTasks(clients=100, features=2, samples=200).generate(key=key)
    noise = np.asarray(problem.targets) - np.einsum("mnd,md->mn", problem.inputs, problem.truth)
    assert abs(noise.var() - 0.3) < 4 * 0.3 * np.sqrt(2 / noise.size)


def test_jit_and_vmap_change_nothing(key, law):
    keys = jax.random.split(key, 3)
    batch = jax.jit(jax.vmap(lambda k: SMALL[law].generate(key=k)))(keys)
    for i in range(3):
        one = SMALL[law].generate(key=keys[i])
        for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(batch), strict=True):
            np.testing.assert_allclose(left, right[i], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", ["clients", "features", "samples"])
def test_sizes_out_of_range_are_refused(size):
    with pytest.raises(ValueError, match=rf"^{size} must be at least 1, got 0\.$"):
        LinearTasks(**({"clients": 3, "features": 4, "samples": 5} | {size: 0}))


def test_an_unknown_law_is_refused():
    with pytest.raises(Exception, match="cauchy"):  # the type checker of the tests refuses it first
        LinearTasks(3, 4, 5, law="cauchy")
