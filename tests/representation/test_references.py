"""Each reference against NumPy and by its optimality conditions; FLUTE's limit beside centralised least squares."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_numpy as reference

from clairjax import Status
from clairjax.data import LinearTasks
from clairjax.representation import (
    LinearClients,
    alternating_least_squares,
    best_of_rank,
    flute,
    local_least_squares,
    local_ridge,
    truncated_ridge,
)
from clairjax.representation._linear import mean_distance
from clairjax.representation._references import least_squares_basis


REPLICATES = int(os.environ.get("CLAIRJAX_TEST_REPLICATES", "100"))
CLIENTS, FEATURES, RANK = 7, 5, 2


@pytest.mark.parametrize("samples", [12, 5])
def test_local_least_squares(rng, dtype, samples):
    data = reference.draw(rng, CLIENTS, samples, FEATURES)
    expected = [np.linalg.lstsq(x, y)[0] for x, y in zip(data.inputs, data.targets, strict=True)]
    found = local_least_squares(data.inputs.astype(dtype), data.targets.astype(dtype))
    assert found.dtype == dtype
    if dtype == jnp.float64 or samples == 12:
        np.testing.assert_allclose(found, expected, atol=1e-6 if dtype == jnp.float64 else 1e-2)


def test_least_squares_needs_samples_enough_and_names_what_does_not():
    message = r"^samples must be at least as many as features = 3 .*\(use local_ridge\), got 2\.$"
    with pytest.raises(ValueError, match=message):
        local_least_squares(np.ones((4, 2, 3)), np.ones((4, 2)))


@pytest.mark.parametrize("samples", [12, 3])
def test_local_ridge(rng, dtype, samples):
    data = reference.draw(rng, CLIENTS, samples, FEATURES)
    inputs, targets = data.inputs.astype(dtype), data.targets.astype(dtype)
    given = local_ridge(inputs, targets, penalty=0.1)
    assert given.dtype == dtype
    tolerance = 1e-10 if dtype == jnp.float64 else 1e-4
    np.testing.assert_allclose(given, reference.ridge(data, 0.1), atol=tolerance)
    found = truncated_ridge(inputs, targets, RANK).penalty
    np.testing.assert_allclose(
        local_ridge(inputs, targets), local_ridge(inputs, targets, penalty=found), atol=tolerance
    )


@pytest.mark.parametrize("shape", [(CLIENTS, FEATURES), (FEATURES, CLIENTS)])
def test_the_best_of_a_rank_is_the_singular_value_decomposition(rng, shape):
    truth = rng.standard_normal(shape)
    values = np.linalg.svd(truth, compute_uv=False)
    for rank in (1, 2, 5):
        found = best_of_rank(jnp.asarray(truth), rank)
        np.testing.assert_allclose(found.coefficients, reference.truncated(truth, rank), atol=1e-10)
        missed = np.linalg.norm(found.coefficients - truth)
        np.testing.assert_allclose(missed, np.linalg.norm(values[rank:]), atol=1e-10)
        np.testing.assert_allclose(
            found.errors, [np.linalg.norm(found.coefficients - truth, axis=1).mean()], atol=1e-12
        )
    with pytest.raises(ValueError, match=r"^rank must be between 1 and min\(features, clients\) = 5, got 6\.$"):
        best_of_rank(jnp.asarray(truth), 6)
    bad = jax.jit(best_of_rank, static_argnums=1)(jnp.asarray(truth).at[0, 0].set(jnp.nan), 2)
    assert bad.status == Status.nonfinite_input and bool(jnp.isnan(bad.basis).all())


def test_the_basis_is_least_squares_over_all_samples(rng):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    heads = rng.standard_normal((CLIENTS, RANK))
    clients = LinearClients.of(jnp.asarray(data.inputs), jnp.asarray(data.targets))
    found = least_squares_basis(clients.gram, clients.moment, jnp.asarray(heads))
    np.testing.assert_allclose(found, reference.basis_of(data, heads), atol=1e-9)


@pytest.mark.parametrize("samples", [12, 5])
def test_alternation_ends_where_both_gradients_vanish(rng, samples):
    data = reference.draw(rng, CLIENTS, samples, FEATURES)
    found = alternating_least_squares(data.inputs, data.targets, RANK, rounds=400, true_coefficients=data.truth)
    assert found.status == Status.converged and found.errors.shape == (400,)
    clients = LinearClients.of(jnp.asarray(data.inputs), jnp.asarray(data.targets))
    gradient = np.asarray(clients.gradient(found.coefficients))
    scale = np.abs(clients.moment).max() * np.abs(found.heads).max() * np.abs(found.basis).max()
    np.testing.assert_allclose(gradient @ np.asarray(found.basis), 0, atol=1e-9 * scale)
    np.testing.assert_allclose(gradient.T @ np.asarray(found.heads), 0, atol=1e-4 * scale)
    np.testing.assert_allclose(
        found.errors[-1], mean_distance(found.coefficients, jnp.asarray(data.truth)), rtol=1e-12
    )


def test_no_round_raises_the_squared_error(rng):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    clients = LinearClients.of(jnp.asarray(data.inputs), jnp.asarray(data.targets))
    heads, risks = jnp.asarray(rng.standard_normal((CLIENTS, RANK))), []
    for _ in range(6):
        basis = least_squares_basis(clients.gram, clients.moment, heads)
        risks.append(float(clients.risk(heads @ basis.T).sum()))
        heads = jnp.asarray(reference.heads_of(data, np.asarray(basis)))
        risks.append(float(clients.risk(heads @ basis.T).sum()))
    assert (np.diff(risks) <= 1e-12 * risks[0]).all()


def test_bad_rounds_and_bad_data_inside_a_trace(rng):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    with pytest.raises(ValueError, match=r"^rounds must be an integer of at least 1, got 0\.$"):
        alternating_least_squares(data.inputs, data.targets, RANK, rounds=0)
    inputs = jnp.asarray(data.inputs).at[3, 0, 0].set(jnp.inf)
    found = jax.jit(lambda x, y: alternating_least_squares(x, y, RANK, rounds=5))(inputs, jnp.asarray(data.targets))
    assert found.status == Status.nonfinite_input and bool(jnp.isnan(found.heads).all())


@pytest.mark.slow
@pytest.mark.parametrize("rank", [2, 4, 6, 8])
@pytest.mark.parametrize("clients", [15, 30])
def test_flutes_limit_is_centralised_least_squares(key, clients, rank):
    """Within 2 % at N = 20, on C.1's model."""

    def one(key):
        data_key, start_key = jax.random.split(key)
        data = LinearTasks(clients, 10, 20).generate(key=data_key, dtype=jnp.float64)
        descended = flute(data.inputs, data.targets, rank, key=start_key, rounds=2000, step_size=0.03)
        central = alternating_least_squares(data.inputs, data.targets, rank, rounds=150)
        return jnp.stack([mean_distance(each.coefficients, data.truth) for each in (descended, central)])

    keys = jax.random.split(key, REPLICATES)
    found, central = np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=25))(keys)).T
    assert abs(found.mean() - central.mean()) < 0.02 * central.mean()
