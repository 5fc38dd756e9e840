"""The error analysis: identities to rounding, expectations within standard errors."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.alignment import _averaging, _gain
from clairjax.alignment._gain import even_mse_factor
from clairjax.alignment._reports import members_mean
from clairjax.data import MultiResponse


collaboration, projected_errors = jax.jit(_gain.collaboration), jax.jit(_gain.projected_errors)
decomposition_cost, label_oracle = jax.jit(_gain.decomposition_cost), jax.jit(_averaging.label_oracle)
estimate_collaboration = jax.jit(_gain.estimate_collaboration, static_argnames="fitted")

REPLICATES = 4 * int(os.environ.get("CLAIRJAX_TEST_REPLICATES", "100"))
SMALL = MultiResponse(clients=10, outputs=7, inputs=5, samples=60)


@pytest.fixture
def rng(key):
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


@jax.jit
def principal_basis(problem):
    centred = problem.estimates - members_mean(problem.estimates, problem.members)[None]
    centred = jnp.where(problem.members[:, None, None], centred, 0).reshape(-1, centred.shape[2])
    return jnp.linalg.eigh(centred.T @ centred)[1][:, -problem.basis.shape[1] :]


def squared(errors):
    return jnp.sum(errors**2, (1, 2))


def replicates(model, key, count, function):
    """`function(problem)` of independent problems, in one compiled loop."""
    run = jax.jit(lambda keys: jax.lax.map(lambda k: function(model.generate(key=k)), keys))
    return jax.tree.map(np.asarray, run(jax.random.split(key, count)))


def within(values, expected, errors=3.0):
    """Is the mean of these replicates within so many of its standard errors?"""
    return abs(values.mean() - expected) < errors * values.std(ddof=1) / np.sqrt(len(values))


def test_projected_errors(rng, dtype):
    root, basis = rng.normal(size=(3, 5, 5)), np.linalg.qr(rng.normal(size=(5, 2)))[0]
    moments, padded = root @ root.swapaxes(1, 2), np.pad(basis, ((0, 0), (0, 1)))
    outside, inside = projected_errors(jnp.asarray(moments, dtype), jnp.asarray(padded, dtype))
    row_space = basis @ basis.T
    expected = [np.trace(row_space @ m @ row_space) for m in moments]
    rest = np.eye(5) - row_space
    np.testing.assert_allclose(inside, expected, rtol=1e-5)
    np.testing.assert_allclose(outside, [np.trace(rest @ m @ rest) for m in moments], rtol=1e-4)


def test_the_printed_quantities(dtype):
    outside, inside = jnp.asarray([4.0, 8.0, 1.0, 50.0], dtype), jnp.asarray([1.0, 2.0, 1.0, 5.0], dtype)
    members = jnp.array([True, True, True, False])
    found = collaboration(outside, inside, members, jnp.asarray([0.5, 0.5, 0.5, 9.0], dtype))
    gain = np.array([4, 8, 1]) - 13 / 9
    np.testing.assert_allclose(found.oracle_gain, [*gain, 0], rtol=1e-6)
    np.testing.assert_allclose(found.averaged_share, [*(gain / [4, 8, 1]), 0], rtol=1e-6)
    np.testing.assert_allclose(found.reducible_share, [0.8, 0.8, 0.5, 10 / 11], rtol=1e-6)
    np.testing.assert_allclose(found.cost, [0.1, 0.05, 0.25, 0], rtol=1e-6)
    np.testing.assert_allclose(found.mse_factor, [*(1 - gain / [5, 10, 2]), 1], rtol=1e-6)
    assert found.worthwhile.tolist() == [False, True, False, False]
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {dtype}


def test_clients_of_one_law_have_the_closed_forms():
    members = jnp.arange(7) < 5
    found = collaboration(jnp.full(7, 8.0), jnp.full(7, 2.0), members)
    np.testing.assert_allclose(found.averaged_share[:5], 4 / 5, rtol=1e-6)
    np.testing.assert_allclose(found.mse_factor[:5], even_mse_factor(5, 2, 10), rtol=1e-6)
    assert even_mse_factor(1, 2, 10) == 1


def test_the_averaged_share_is_below_one(rng):
    """φ_k ≤ 1 − 1/|C|², however uneven the clients are."""
    outside = jnp.asarray(np.exp(4 * rng.normal(size=(50, 6))))
    found = jax.vmap(collaboration, (0, None, None))(outside, jnp.ones(6), jnp.ones(6, bool))
    assert float(found.averaged_share.max()) <= 1 - 1 / 36 + 1e-6


def test_condition_34_is_searched_out(rng):
    """`worthwhile` and `guaranteed_share` are what a search over ζ in (0, φ) finds."""
    outside, inside, cost = (jnp.asarray(scale * rng.uniform(size=40)) for scale in (1.0, 1.0, 0.3))
    found = collaboration(outside, inside, jnp.ones(40, bool), cost)
    grid = np.linspace(0, 1, 20002)[1:-1, None]
    theta, phi, cost = (
        np.asarray(found.reducible_share),
        np.asarray(found.averaged_share),
        np.asarray(found.cost),
    )
    zeta = grid * np.maximum(phi, 0)
    holds = (phi > 0) & (cost < (np.sqrt(1 - zeta * theta) - np.sqrt(1 - np.maximum(phi, 0) * theta)) ** 2)
    assert (holds.any(0) == np.asarray(found.worthwhile)).all()
    assert 5 < holds.any(0).sum() < 35
    np.testing.assert_allclose(found.guaranteed_share, np.where(holds, zeta, 0).max(0), atol=1e-4)


def test_degenerate_errors_are_finite():
    for members in (jnp.zeros(3, bool), jnp.arange(3) < 1, jnp.ones(3, bool)):
        found = collaboration(jnp.zeros(3), jnp.zeros(3), members)
        np.testing.assert_array_equal(found.mse_factor, 1)
        assert not bool(found.worthwhile.any())
        same = estimate_collaboration(jnp.ones((3, 2, 4)), members, jnp.eye(4)[:, :1])
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(same))
        assert not bool(same.worthwhile.any())


def test_a_member_that_is_not_finite_shows():
    weights = jnp.ones((4, 2, 3)).at[0, 0, 0].set(jnp.nan)
    assert bool(jnp.isnan(estimate_collaboration(weights, jnp.ones(4, bool), jnp.eye(3)[:, :1]).mse_factor).all())
    others = estimate_collaboration(weights, jnp.arange(4) > 0, jnp.eye(3)[:, :1])
    assert bool(jnp.isfinite(others.mse_factor).all())


def test_the_error_is_theorem_4s_plus_the_cost(key, rng):
    """W̃ − W = (Ξ̄ P_⊥ + Ξ_k P_A) + (the term whose squared norm is the cost), row spaces being only close."""
    problem = SMALL.generate(key=key)
    weights = problem.weights + jnp.asarray(0.1 * rng.normal(size=problem.weights.shape))
    estimates, members = problem.estimates - problem.weights + weights, problem.members
    basis = principal_basis(problem)
    noise = estimates - weights
    oracle = label_oracle(noise, members, problem.basis)
    rest = label_oracle(estimates, members, basis) - weights - oracle
    cost = decomposition_cost(estimates, weights, members, basis, problem.basis)
    np.testing.assert_allclose(cost, jnp.where(members, squared(rest), 0), rtol=1e5 * float(jnp.finfo(cost.dtype).eps))


def test_jit_vmap_and_dtype(key, dtype):
    problems = [SMALL.generate(key=k, dtype=dtype) for k in jax.random.split(key, 3)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
    found = jax.jit(jax.vmap(estimate_collaboration))(batch.estimates, batch.members, batch.basis)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {dtype}
    for i, problem in enumerate(problems):
        one = estimate_collaboration(problem.estimates, problem.members, problem.basis)
        for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(found), strict=True):
            np.testing.assert_allclose(left, right[i], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("clients", "outputs", "inputs"), [(5, 8, 10), (10, 12, 6), (20, 6, 12)])
def test_theorem_4_on_the_papers_model(key, clients, outputs, inputs):
    """The errors' ratio is the closed form, within three standard errors."""
    model = MultiResponse(clients=clients, outputs=outputs, inputs=inputs, samples=8 * inputs)
    factor = even_mse_factor(clients - model.contaminated, 2, inputs)

    def difference(problem):
        refined = label_oracle(problem.estimates, problem.members, problem.basis)
        gap = squared(refined - problem.weights) - factor * squared(problem.estimates - problem.weights)
        return jnp.where(problem.members, gap, 0).sum()

    assert within(replicates(model, key, 400, difference), 0.0)


def test_theorem_4_with_unequal_clients(rng):
    """Errors with another covariance for each client: the factor of each is 1 − φ_k θ_k."""
    basis = jnp.asarray(np.linalg.qr(rng.normal(size=(5, 2)))[0])
    roots = rng.normal(size=(4, 5, 5)) * np.array([0.2, 1.0, 1.0, 2.0])[:, None, None]
    members = jnp.array([True, True, False, True])
    outside, inside = projected_errors(jnp.asarray(3 * roots @ roots.swapaxes(1, 2)), basis)
    expected = collaboration(outside, inside, members)
    noise = jnp.asarray(rng.normal(size=(4000, 4, 3, 5)) @ roots.swapaxes(1, 2))
    refined = jax.jit(jax.vmap(label_oracle, (0, None, None)))(noise, members, basis)
    values = (np.asarray(refined) ** 2).sum((2, 3)) / np.asarray(outside + inside)
    for k in range(4):
        assert within(values[:, k], float(expected.mse_factor[k]))
    assert float(expected.mse_factor[0]) > 1  # the most exact client loses by collaborating


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "outputs", "inputs"), [(5, 12, 10), (10, 18, 20)])
def test_estimates_are_right_on_average(key, clients, outputs, inputs):
    """E_⊥ without bias; the cost, which is of first order, within 10 %; the expected error within 5 %: of 400."""
    model = MultiResponse(clients=clients, outputs=outputs, inputs=inputs, samples=10 * inputs)

    def look(problem):
        members, basis, share = problem.members, principal_basis(problem), inputs / (inputs - 2)
        average = lambda values: jnp.where(members, values, 0).sum() / members.sum().astype(values.dtype)
        noise = problem.estimates - problem.weights
        outside = squared(noise - noise @ problem.basis @ problem.basis.T)
        ours = estimate_collaboration(problem.estimates, members, basis)
        known = estimate_collaboration(problem.estimates, members, problem.basis, fitted=False)
        reducible = lambda found: found.oracle_gain / jnp.where(members, found.averaged_share, 1)
        cost = decomposition_cost(problem.estimates, problem.weights, members, basis, problem.basis)
        refined = label_oracle(problem.estimates, members, basis) - problem.weights
        return {
            "fitted": average(reducible(ours) - outside),
            "known": average(reducible(known) - outside),
            "outside": average(outside),
            "cost": average(cost),
            "estimated cost": average(ours.cost * reducible(ours) * share),
            "refined": average(squared(refined)),
            "expected": average(ours.mse_factor_expected * reducible(ours) * share),
        }

    found = replicates(model, key, REPLICATES, look)
    wider = max(1.0, (400 / REPLICATES) ** 0.5)
    assert within(found["known"], 0.0)
    assert abs(found["fitted"].mean()) < 0.02 * wider * found["outside"].mean()
    np.testing.assert_allclose(found["estimated cost"].mean(), found["cost"].mean(), rtol=0.1 * wider)
    np.testing.assert_allclose(found["expected"].mean(), found["refined"].mean(), rtol=0.05 * wider)


def test_who_should_collaborate(rng):
    """Ten ordinary clients and one with a hundredfold sample: all but that one should."""
    basis = np.linalg.qr(rng.normal(size=(8, 2)))[0]
    scale = np.where(np.arange(11) == 3, 0.01, 0.1)[:, None, None]
    estimates = rng.normal(size=(11, 9, 2)) @ basis.T + scale * rng.normal(size=(11, 9, 8))
    found = estimate_collaboration(jnp.asarray(estimates), jnp.ones(11, bool), jnp.asarray(basis), fitted=False)
    assert found.worthwhile.tolist() == [k != 3 for k in range(11)]
