"""FedRep against an independent loop, its two starts, and what every driver promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_numpy as reference

from clairjax import Status
from clairjax.representation import LinearClients, fedrep, local_least_squares, moment_basis
from clairjax.representation._fedrep import alternate, largest_safe_step
from clairjax.representation._initialise import orthonormal_start, random_start
from clairjax.subspaces import projector, subspace_distance


CLIENTS, FEATURES, RANK = 7, 5, 2


@pytest.mark.parametrize("samples", [12, 4])
def test_it_is_the_algorithm(key, rng, samples):
    """Heads by lstsq, a client at a time, then the step and NumPy's QR, from the same start."""
    data = reference.draw(rng, CLIENTS, samples, FEATURES)
    inputs, targets = jnp.asarray(data.inputs), jnp.asarray(data.targets)
    start = np.asarray(orthonormal_start(inputs, targets, RANK, "random", key=key))
    basis, heads, errors = reference.fedrep(data, start, step=0.02, rounds=40)
    found = fedrep(
        inputs, targets, RANK, key=key, rounds=40, step_size=0.02, init="random", true_coefficients=data.truth
    )
    for ours, theirs in ((found.basis, basis), (found.heads, heads), (found.errors, errors)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_the_spectral_start_is_the_method_of_moments(rng):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    found = moment_basis(jnp.asarray(data.inputs), jnp.asarray(data.targets), RANK)
    _, vectors = np.linalg.eigh(reference.moment_matrix(data))
    expected = vectors[:, -RANK:]
    np.testing.assert_allclose(projector(found), expected @ expected.T, atol=1e-10)


def test_the_moment_matrix_has_the_mean_that_its_docstring_says(rng):
    """E[y² x xᵀ] = 2 φφᵀ + (‖φ‖² + σ²) I for standard normal x: within four standard errors of a large sample."""
    data = reference.draw(rng, 2, 40_000, 3, noise=0.5)
    basis = moment_basis(jnp.asarray(data.inputs), jnp.asarray(data.targets), 1)
    mean = data.truth.T @ data.truth
    leading = np.linalg.eigh(mean)[1][:, -1:]
    assert float(subspace_distance(basis, jnp.asarray(leading))) < 0.03


def test_the_random_start_spans_what_flute_starts_from(key, rng):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    inputs, targets = jnp.asarray(data.inputs), jnp.asarray(data.targets)
    start = orthonormal_start(inputs, targets, RANK, "random", key=key)
    basis, _ = random_start(CLIENTS, FEATURES, RANK, 0.02, key=key, dtype=jnp.float64)
    np.testing.assert_allclose(projector(start) @ basis, basis, atol=1e-12)
    np.testing.assert_allclose(start.T @ start, np.eye(RANK), atol=1e-12)


def test_both_starts_end_at_a_stationary_point_of_the_same_risk(key, rng):
    """Heads exact (normal equations hold), the gradient in B zero: a stationary point of the empirical risk."""
    data = reference.draw(rng, CLIENTS, 20, FEATURES)
    ends = [fedrep(data.inputs, data.targets, RANK, key=key, init=init) for init in ("spectral", "random")]
    clients = LinearClients.of(jnp.asarray(data.inputs), jnp.asarray(data.targets))
    for found in ends:
        assert found.status == Status.converged
        np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(RANK), atol=1e-12)
        gradient = np.asarray(clients.gradient(found.coefficients))
        np.testing.assert_allclose(gradient @ np.asarray(found.basis), 0, atol=1e-9)
        np.testing.assert_allclose(gradient.T @ np.asarray(found.heads), 0, atol=1e-3)
    risks = [float(clients.risk(found.coefficients).sum()) for found in ends]
    np.testing.assert_allclose(risks[0], risks[1], rtol=1e-4)


def test_no_round_at_the_default_step_raises_the_risk(key, rng):
    data = reference.draw(rng, CLIENTS, 20, FEATURES)
    inputs, targets = jnp.asarray(data.inputs), jnp.asarray(data.targets)
    clients = LinearClients.of(inputs, targets)
    start = orthonormal_start(inputs, targets, RANK, "random", key=key)
    one_round = jax.jit(lambda basis: alternate(clients, largest_safe_step(clients), basis, 1, None)[0])
    risks = []
    for _ in range(30):
        start, heads = one_round(start)
        risks.append(float(clients.risk(heads @ start.T).sum()))
    assert (np.diff(risks) <= 1e-12 * risks[0]).all()


def test_shared_coefficients_without_noise_are_recovered(key, rng):
    """Where the truth has rank k, the subspace and every client's coefficients are exact."""
    basis = np.linalg.qr(rng.standard_normal((FEATURES, RANK)))[0]
    heads, inputs = rng.standard_normal((CLIENTS, RANK)), rng.standard_normal((CLIENTS, 20, FEATURES))
    truth = heads @ basis.T
    targets = np.einsum("mnd,md->mn", inputs, truth)
    found = fedrep(inputs, targets, RANK, key=key, rounds=1000)
    assert found.status == Status.converged
    assert float(subspace_distance(found.basis, jnp.asarray(basis))) < 1e-7
    np.testing.assert_allclose(found.coefficients, truth, atol=1e-7)


def test_at_full_rank_it_is_each_clients_least_squares(key, rng):
    data = reference.draw(rng, 6, 9, 3)
    found = fedrep(data.inputs, data.targets, 3, key=key, rounds=1)
    np.testing.assert_allclose(found.coefficients, local_least_squares(data.inputs, data.targets), atol=1e-10)


def test_order_of_clients_and_rotation_of_features(rng):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    order, turn = rng.permutation(CLIENTS), np.linalg.qr(rng.standard_normal((FEATURES, FEATURES)))[0]
    start = np.linalg.qr(rng.standard_normal((FEATURES, RANK)))[0]
    run = jax.jit(lambda x, y, basis: alternate(LinearClients.of(x, y), jnp.asarray(0.02), basis, 100, None)[0])
    inputs, targets = jnp.asarray(data.inputs), jnp.asarray(data.targets)
    basis, heads = run(inputs, targets, jnp.asarray(start))
    moved = run(inputs[order] @ turn, targets[order], jnp.asarray(turn.T @ start))
    np.testing.assert_allclose(projector(moved[0]), turn.T @ projector(basis) @ turn, atol=1e-9)
    np.testing.assert_allclose(moved[1] @ moved[0].T, (heads @ basis.T)[order] @ turn, atol=1e-9)


def test_oscillation_is_a_status(key, rng):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    found = fedrep(data.inputs, data.targets, RANK, key=key, rounds=200, step_size=5.0)
    assert found.status == Status.max_steps_reached
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(RANK), atol=1e-12)


DATA = (np.ones((4, 6, 3)), np.ones((4, 6)))
BAD = {
    "rounds": ({"rounds": 0}, r"rounds must be an integer of at least 1, got 0\."),
    "step_size": ({"step_size": np.nan}, r"step_size must be positive and finite, got nan\."),
    "true_coefficients": (
        {"true_coefficients": np.ones((4, 2))},
        r"true_coefficients must be of shape \(clients, features\) = \(4, 3\), got .*\.",
    ),
    "rank": ({"rank": 4}, r"rank must be between 1 and min\(features, clients\) = 3, got 4\."),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused(key, case):
    options, message = BAD[case]
    with pytest.raises(ValueError, match=f"^{message}$"):
        fedrep(*DATA, **({"rank": 2, "key": key} | options))


@pytest.mark.parametrize("step_size", [np.nan, -0.1, 0.0, np.inf])
def test_a_traced_step_out_of_range_is_a_status_and_no_numbers(key, rng, step_size):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    run = jax.jit(
        lambda step: fedrep(
            data.inputs, data.targets, RANK, key=key, rounds=2, step_size=step, true_coefficients=data.truth
        )
    )
    assert run(0.02).status == Status.max_steps_reached
    found = run(step_size)
    assert found.status == Status.invalid_argument
    assert all(bool(jnp.isnan(array).all()) for array in (found.basis, found.heads, found.errors))


def test_an_unknown_start_is_refused(key):
    with pytest.raises(Exception, match="warm"):  # the type checker of the tests refuses it first
        fedrep(*DATA, 2, key=key, init="warm")
