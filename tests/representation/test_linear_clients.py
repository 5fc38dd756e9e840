"""The clients' sufficient statistics against the data, exact heads, and what bad data gets."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_numpy as reference

from clairjax import Status
from clairjax.representation import LinearClients, Representation, _linear
from clairjax.representation._data import validate_linear, validate_truth
from clairjax.representation._linear import input_status, mean_distance


CLIENTS, FEATURES, RANK = 5, 6, 3

least_squares_heads, solve_positive = jax.jit(_linear.least_squares_heads), jax.jit(_linear.solve_positive)


@pytest.fixture(params=[20, 6, 4], ids=["Gram", "as many", "data"])
def data(request, rng):
    return reference.draw(rng, CLIENTS, request.param, FEATURES)


def clients_of(data, dtype=jnp.float64):
    return LinearClients.of(jnp.asarray(data.inputs, dtype), jnp.asarray(data.targets, dtype))


def test_gram_matrices_are_kept_where_they_are_smaller(data):
    clients = clients_of(data)
    assert (clients.gram is None) == (data.inputs.shape[1] <= FEATURES)
    assert (clients.gram is None) != (clients.inputs is None)


def test_gradient_and_risk_are_their_definitions(data, rng, dtype):
    clients, eps = clients_of(data, dtype), float(jnp.finfo(dtype).eps)
    coefficients = rng.standard_normal((CLIENTS, FEATURES))
    residuals = np.einsum("mnd,md->mn", data.inputs, coefficients) - data.targets
    gradient = np.einsum("mnd,mn->md", data.inputs, residuals) / residuals.shape[1]
    found = clients.gradient(jnp.asarray(coefficients, dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, gradient, rtol=0, atol=100 * eps * np.abs(gradient).max())
    risk = clients.risk(jnp.asarray(coefficients, dtype))
    np.testing.assert_allclose(risk, (residuals**2).mean(1), rtol=0, atol=400 * eps * (residuals**2).mean())


def test_gradient_is_the_derivative_of_half_the_risk(data, rng, check_derivative):
    clients = clients_of(data)
    coefficients = jnp.asarray(rng.standard_normal((CLIENTS, FEATURES)))
    derivative = jax.grad(lambda theta: clients.risk(theta).sum() / 2)(coefficients)
    np.testing.assert_allclose(derivative, clients.gradient(coefficients), atol=1e-12)
    check_derivative(lambda theta: clients_of(data).risk(theta), coefficients)


def test_heads_are_each_clients_least_squares(data, rng, dtype):
    basis = rng.standard_normal((FEATURES, RANK))
    found = least_squares_heads(clients_of(data, dtype), jnp.asarray(basis, dtype))
    assert found.dtype == dtype
    tolerance = 1e-9 if dtype == jnp.float64 else 2e-2
    np.testing.assert_allclose(found, reference.heads_of(data, basis), rtol=tolerance, atol=tolerance)


def test_heads_without_enough_samples_fit_the_data(rng):
    data = reference.draw(rng, CLIENTS, 2, FEATURES)
    basis = rng.standard_normal((FEATURES, RANK))
    heads = np.asarray(least_squares_heads(clients_of(data), jnp.asarray(basis)))
    fitted = np.einsum("mnd,dk,mk->mn", data.inputs, basis, heads)
    np.testing.assert_allclose(fitted, data.targets, atol=1e-9 * np.abs(data.targets).max())


@pytest.mark.parametrize("size", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_positive_systems_at_any_scale(rng, dtype, scale, size):
    if dtype == jnp.float32 and scale != 1.0:
        scale = scale**0.5
    root = rng.standard_normal((4, 3 * size + 3, size))
    matrix, right = scale * root.swapaxes(1, 2) @ root, rng.standard_normal((4, size))
    found = solve_positive(matrix.astype(dtype), right.astype(dtype))
    expected = np.linalg.solve(matrix, right[..., None])[..., 0]
    tolerance = 1e5 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("size", [2, 3, 4, 5, 9])
def test_singular_systems_have_finite_solutions(rng, dtype, size):
    """Zero; one direction only, at any scale; all directions but one."""
    ones, zero = np.ones((1, size, size)), np.zeros((1, size, size))
    roots = rng.standard_normal((200, size, size - 1))
    lines, most = roots[:, :, :1] * 10.0 ** rng.uniform(-8, 8, (200, 1, 1)), roots
    matrices = np.concatenate([ones, zero, lines @ lines.swapaxes(1, 2), most @ most.swapaxes(1, 2)])
    right = np.einsum("nij,nj->ni", matrices, rng.standard_normal((402, size)))  # each in its range
    right[0] = size
    found = np.asarray(solve_positive(matrices.astype(dtype), right.astype(dtype)), float)
    np.testing.assert_allclose(found[0].sum(), size, rtol=1e-4)
    np.testing.assert_array_equal(found[1], 0)
    left = np.einsum("nij,nj->ni", matrices, found) - right
    assert (np.linalg.norm(left, axis=1) <= 1e-2 * np.linalg.norm(right, axis=1)).all()


def test_a_representation_predicts(rng):
    basis, heads = rng.standard_normal((FEATURES, RANK)), rng.standard_normal((CLIENTS, RANK))
    found = Representation(jnp.asarray(basis), jnp.asarray(heads), None, Status.converged)
    inputs = rng.standard_normal((CLIENTS, 7, FEATURES))
    expected = np.stack([x @ basis @ w for x, w in zip(inputs, heads, strict=True)])
    np.testing.assert_allclose(found.predict(jnp.asarray(inputs)), expected, atol=1e-12)
    np.testing.assert_allclose(found.coefficients, heads @ basis.T, atol=1e-12)
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (found.basis, found.heads))
    for given in (inputs, inputs.tolist()):  # of another dtype than the model
        np.testing.assert_allclose(found.predict(given), expected, atol=1e-12)
        predicted = Representation(*narrow, None, Status.converged).predict(given)
        assert predicted.dtype == jnp.float32
        np.testing.assert_allclose(predicted, expected, atol=1e-4)
    with pytest.raises(ValueError, match=r"^inputs must be an array, got a list of different lengths\.$"):
        found.predict([[[1.0]], [[1.0], [2.0]]])


@pytest.mark.parametrize("shape", [(CLIENTS, 7, 1), (1, 7, FEATURES), (CLIENTS + 1, 7, FEATURES)])
def test_it_does_not_predict_for_others(rng, shape):
    """Shapes that would broadcast."""
    basis, heads = rng.standard_normal((FEATURES, RANK)), rng.standard_normal((CLIENTS, RANK))
    found = Representation(jnp.asarray(basis), jnp.asarray(heads), None, Status.converged)
    with pytest.raises(ValueError) as error:
        found.predict(jnp.zeros(shape))
    expected = f"({CLIENTS}, samples, {FEATURES})"
    assert str(error.value) == (
        f"inputs must be of shape (clients, samples, features) = {expected}, got shape {shape}."
    )


REFUSED_BELOW_THE_TYPE_CHECKER = """
import numpy as np, jax
from clairjax.representation import *
x, y, key = np.ones((4, 6, 3)), np.ones((4, 6)), jax.random.key(0)
moments, noise = PerturbedMoments(1.0, 2.0), dict(key=key, noise_multiplier=1.0)
for run in (
    lambda: fedrep(x, y, 2.0, key=key),
    lambda: best_of_rank(x[:, 0], True),
    lambda: flute(x, y, 2, key=key, gammas=(0.1,)),
    lambda: flute(x, y, 2, key=key, gammas=0.1),
    lambda: flute(x, y, 2, key=key, gammas=(np.ones(2), 0.1)),
    lambda: flute(x, y, 2, key=key, step_size=np.ones(3)),
    lambda: fedrep(x, y, 2, key=key, step_size=np.ones((1, 1))),
    lambda: jax.jit(lambda step: fedrep(x, y, 2, key=key, step_size=step))(np.ones(4)),
    lambda: centaur(x, y, 2, key=key, noise_multiplier=np.ones(2)),
    lambda: centaur(x, y, 2, init=moments, **noise),
    lambda: centaur(x, y, 2, true_basis="span", **noise),
    lambda: perturbed_least_squares(x, y, 2, rounds=1, clip_norms=(1.0, 1.0), init=None, **noise),
):
    try:
        run()
    except ValueError as error:
        print(error)
"""
SPOKEN = """
rank must be an integer, static inside a trace, got 2.0.
rank must be an integer, static inside a trace, got True.
gammas must be a pair of numbers (γ1, γ2), got (0.1,).
gammas must be a pair of numbers (γ1, γ2), got 0.1.
gammas: each must be one number, got shape (2,).
step_size must be one number, got shape (3,).
step_size must be one number, got shape (1, 1).
step_size must be one number, got shape (4,).
noise_multiplier must be one number, got shape (2,).
init must be None, a PrivatePowerMethod or an array of shape (features, rank) = (3, 2), got a PerturbedMoments.
true_basis must be an array of shape (features, rank) = (3, 2), got a str.
init must be a PerturbedMoments or an array of shape (features, rank) = (3, 2), got a NoneType.
"""


def test_what_the_type_checker_of_the_tests_refuses_first_is_refused_without_it():
    environment = os.environ | {"JAX_ENABLE_X64": "1"}
    probe = [sys.executable, "-c", REFUSED_BELOW_THE_TYPE_CHECKER]
    done = subprocess.run(probe, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == SPOKEN.strip(), done.stderr


def test_the_distance_is_the_mean_of_norms(rng):
    first, second = rng.standard_normal((2, CLIENTS, FEATURES))
    expected = np.linalg.norm(first - second, axis=1).mean()
    np.testing.assert_allclose(mean_distance(jnp.asarray(first), jnp.asarray(second)), expected, rtol=1e-12)


GOOD = (np.zeros((3, 4, 2)), np.zeros((3, 4)))


def spoiled(array, index, value=np.nan):
    array = array.copy()
    array[index] = value
    return array


BAD = {
    "two axes": (
        (GOOD[0][0], GOOD[1]),
        1,
        r"inputs must be of shape \(clients, samples, features\), got shape \(4, 2\)\.",
    ),
    "no client": ((GOOD[0][:0], GOOD[1][:0]), 1, r"inputs must be without an empty axis, got shape \(0, 4, 2\)\."),
    "other samples": ((GOOD[0], GOOD[1][:, :3]), 1, r"targets must be of shape .* = \(3, 4\), got shape \(3, 3\)\."),
    "integers": ((GOOD[0].astype(int), GOOD[1]), 1, r"inputs must be float32 or float64 \(.*\), got int64\."),
    "half": ((GOOD[0], GOOD[1].astype(np.float16)), 1, r"targets must be float32 or float64 \(.*\), got float16\."),
    "two dtypes": ((GOOD[0], GOOD[1].astype(np.float32)), 1, r"targets must be of the dtype .*float64, got float32\."),
    "ragged": (([[[1.0]], [[1.0], [2.0]]], GOOD[1]), 1, r"inputs must be an array, got a list of different lengths\."),
    "NaN input": ((spoiled(GOOD[0], (1, 0, 0)), GOOD[1]), 1, r"inputs must be finite, got .* client\(s\) 1\."),
    "infinite target": (
        (GOOD[0], spoiled(spoiled(GOOD[1], (0, 1), np.inf), (2, 3))),
        1,
        r"targets must be finite, got NaN or infinite values from client\(s\) 0, 2\.",
    ),
    "rank above features": (GOOD, 3, r"rank must be between 1 and min\(features, clients\) = 2, got 3\."),
    "rank above clients": (
        (np.zeros((2, 4, 5)), np.zeros((2, 4))),
        3,
        r"rank must be between 1 and min\(features, clients\) = 2, got 3\.",
    ),
    "rank zero": (GOOD, 0, r"rank must be between 1 and min\(features, clients\) = 2, got 0\."),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused(case):
    (inputs, targets), rank, message = BAD[case]
    with pytest.raises(ValueError, match=f"^{message}$"):
        validate_linear(inputs, targets, rank)


def test_lists_are_data():
    inputs, targets, _ = validate_linear([[[1.0, 2.0]], [[3.0, 4.0]]], [[1.0], [2.0]], 2)
    assert inputs.shape == (2, 1, 2) and targets.shape == (2, 1)


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (
            np.zeros((3, 3)),
            r"true_coefficients must be of shape \(clients, features\) = \(3, 2\), got shape \(3, 3\)\.",
        ),
        (
            np.full((3, 2), np.inf),
            r"true_coefficients must be finite, got NaN or infinite values from client\(s\) 0, 1, 2\.",
        ),
    ],
)
def test_a_bad_truth_is_refused(truth, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        validate_truth(truth, jnp.asarray(GOOD[0]))


@pytest.mark.parametrize("samples", [8, 2])
@pytest.mark.parametrize(("value", "expected"), [(np.nan, True), (np.inf, True), (1e200, True), (1.0, False)])
def test_traced_bad_data_is_a_status(samples, value, expected):
    """Squares that overflow count."""
    inputs = spoiled(np.ones((3, samples, 4)), (1, 0, 0), value)
    status = jax.jit(lambda x, y: input_status(LinearClients.of(x, y)))(jnp.asarray(inputs), jnp.ones((3, samples)))
    assert bool(status == Status.nonfinite_input) == expected
