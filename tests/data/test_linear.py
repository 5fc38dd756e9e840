"""The generator: its laws, its dtype, and the columns of the paper's Table 1 that need no solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.alignment._averaging import fedavg, local, oracle_fedavg
from clairjax.data import MultiResponse, ols
from clairjax.data._linear import _autoregressive_root


SMALL = MultiResponse(clients=10, outputs=7, inputs=5, samples=60)

# (p = q, K): local, FedAvg (oracle), FedAvg of the paper's Table 1, means of 100 replicates
TABLE1 = {
    (10, 5): (1.121, 6.102, 15.262),
    (10, 10): (1.117, 7.457, 17.094),
    (10, 20): (1.126, 8.156, 18.144),
    (20, 5): (3.085, 24.715, 35.575),
    (20, 10): (3.093, 29.977, 38.623),
    (20, 20): (3.097, 32.617, 41.660),
    (50, 5): (10.052, 148.871, 179.855),
    (50, 10): (10.054, 183.551, 201.606),
    (50, 20): (10.041, 200.977, 212.679),
}
SAMPLES = {10: 100, 20: 150, 50: 300}


def test_shapes_and_dtype(key, dtype):
    problem = SMALL.generate(key=key, dtype=dtype)
    assert problem.weights.shape == problem.estimates.shape == (10, 7, 5)
    assert problem.basis.shape == (5, 2) and problem.backbone.shape == (7, 5)
    assert problem.members.shape == (10,) and int(problem.members.sum()) == 6 == 10 - SMALL.contaminated
    assert {leaf.dtype for leaf in jax.tree.leaves(problem)} == {dtype, jnp.dtype(bool)}
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(problem))


def test_benign_clients_share_the_row_space_and_the_others_do_not(key, dtype):
    problem = SMALL.generate(key=key, dtype=dtype)
    eps = float(jnp.finfo(dtype).eps)
    basis, adaptation = np.asarray(problem.basis), np.asarray(problem.weights - problem.backbone[None])
    np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=20 * eps)
    off = np.sqrt(((adaptation - adaptation @ basis @ basis.T) ** 2).sum((1, 2)))
    members = np.asarray(problem.members)
    assert off[members].max() < 50 * eps
    assert off[~members].min() > 1
    assert np.linalg.matrix_rank(adaptation[members].reshape(-1, 5), tol=100 * eps) == 2


@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_contamination_strength(key, law):
    model = MultiResponse(clients=400, outputs=9, inputs=6, samples=6, contaminated_share=0.5, contamination=law)
    problem = model.generate(key=key)
    scaled = (problem.weights - problem.backbone[None])[~problem.members] / problem.signal
    entries = np.asarray(scaled).ravel() * np.sqrt(9 * 4)
    variance = 1.0 if law == "normal" else 1 / 3
    assert abs(entries.mean()) < 4 * np.sqrt(variance / entries.size)
    assert abs(entries.var() - variance) < 4 * np.sqrt(2 / entries.size)
    assert (np.abs(entries).max() <= 1) == (law == "uniform")
    assert float(problem.signal) in (3.0, 4.0, 5.0, 6.0)


def test_signals_and_positions_are_all_drawn(key):
    model = MultiResponse(clients=5, outputs=3, inputs=4, samples=4)
    problems = jax.vmap(lambda k: model.generate(key=k))(jax.random.split(key, 200))
    assert set(np.unique(problems.signal)) == {3.0, 4.0, 5.0, 6.0}
    assert set(np.unique(problems.members.sum(1))) == {3}
    assert len(np.unique(problems.members, axis=0)) == 10


def test_noise_is_autoregressive(dtype):
    lag = np.abs(np.subtract.outer(np.arange(6), np.arange(6)))
    expected = np.linalg.cholesky(0.25**lag)
    root = _autoregressive_root(6, jnp.asarray(0.25, dtype))
    assert root.dtype == dtype
    np.testing.assert_allclose(root, expected, atol=4 * float(jnp.finfo(dtype).eps))
    np.testing.assert_array_equal(_autoregressive_root(3, jnp.asarray(0.0, dtype)), np.eye(3))


def test_errors_have_the_covariance_of_least_squares(key):
    """For noise of covariance Σ over the coordinates of y, E[Ξ Ξᵀ] = p/(n − p − 1) Σ."""
    model = MultiResponse(clients=4, outputs=3, inputs=4, samples=20, noise=2.0, correlation=0.5)
    problems = jax.vmap(lambda k: model.generate(key=k))(jax.random.split(key, 2000))
    errors = np.asarray(problems.estimates - problems.weights)
    rows = np.einsum("nkqp,nksp->nqs", errors, errors) / 4
    lag = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
    expected = 4 * 0.5**lag * 4 / 15
    assert (np.abs(rows.mean(0) - expected) < 4 * rows.std(0) / np.sqrt(2000)).all()


def test_least_squares_matches_an_independent_solver(key, dtype):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    inputs, targets = (jnp.asarray(rng.normal(size=(3, 12, size)), dtype) for size in (4, 2))
    expected = [np.linalg.lstsq(x, y)[0].T for x, y in zip(inputs, targets, strict=True)]
    found = ols(inputs, targets)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.stack(expected), rtol=2e4 * float(jnp.finfo(dtype).eps), atol=1e-5)


def test_without_noise_least_squares_is_the_truth(key, dtype):
    model = MultiResponse(clients=4, outputs=6, inputs=5, samples=40, noise=0.0)
    problem = model.generate(key=key, dtype=dtype)
    np.testing.assert_allclose(problem.estimates, problem.weights, atol=200 * float(jnp.finfo(dtype).eps))
    np.testing.assert_array_equal(problem.noiseless().estimates, problem.weights)


def test_jit_and_vmap_change_nothing(key):
    keys = jax.random.split(key, 3)
    batch = jax.jit(jax.vmap(lambda k: SMALL.generate(key=k)))(keys)
    for i in range(3):
        one = SMALL.generate(key=keys[i])
        for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(batch), strict=True):
            np.testing.assert_allclose(left, right[i], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 5}, r"rank must be in \[1, min\(inputs, outputs\)\), got 5\."),
        ({"rank": 0}, r"rank must be in \[1, min\(inputs, outputs\)\), got 0\."),
        ({"samples": 4}, r"samples must be at least inputs = 5, got 4\."),
        ({"clients": 0}, r"clients must be at least 1, got 0\."),
        ({"contaminated_share": 1.0}, r"contaminated_share must be in \[0, 1\), got 1\.0\."),
        ({"contamination": "cauchy"}, r'contamination must be "normal" or "uniform", got \'cauchy\'\.'),
    ],
)
def test_sizes_out_of_range_are_refused(wrong, message):
    sizes = {"clients": 10, "outputs": 7, "inputs": 5, "samples": 60} | wrong
    if "contamination" in wrong:  # the type checker of the tests refuses it before the library does
        with pytest.raises(Exception, match="cauchy"):
            MultiResponse(**sizes)
        return
    with pytest.raises(ValueError, match=message):
        MultiResponse(**sizes)


def errors_of_the_baselines(model, key, replicates):
    """Mean and standard deviation over replicates of the mean error of local, oracle FedAvg and FedAvg."""

    def replicate(key):
        problem = model.generate(key=key, dtype=jnp.float32)
        tried = (
            local(problem.estimates),
            oracle_fedavg(problem.estimates, problem.members),
            fedavg(problem.estimates),
        )
        return jnp.stack([jnp.sum((found - problem.weights) ** 2, (1, 2)).mean() for found in tried])

    values = jax.jit(lambda keys: jax.lax.map(replicate, keys))(jax.random.split(key, replicates))
    return np.asarray(values.mean(0)), np.asarray(values.std(0, ddof=1))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "clients"), TABLE1)
def test_columns_of_table_1(key, size, clients):
    """Within three standard errors of the difference from the printed mean, itself of 100 replicates."""
    model = MultiResponse(clients=clients, outputs=size, inputs=size, samples=SAMPLES[size])
    mean, deviation = errors_of_the_baselines(model, key, 300)
    z = (mean - TABLE1[size, clients]) / (deviation * np.sqrt(1 / 300 + 1 / 100))
    assert (np.abs(z) < 3).all(), (mean, z)


@pytest.mark.slow
def test_the_printed_contamination_does_not_give_the_printed_column(key):
    model = MultiResponse(clients=10, outputs=10, inputs=10, samples=100, contamination="uniform")
    mean, deviation = errors_of_the_baselines(model, key, 100)
    z = (mean - TABLE1[10, 10]) / (deviation * np.sqrt(2 / 100))
    assert abs(z[0]) < 3 and abs(z[1]) < 3 and z[2] < -10
