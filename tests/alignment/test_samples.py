"""What numbers of samples do: weights of the best mean and of the row space, units of the vote."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import LowRankMatrices, Status, clair
from clairjax.alignment import elect, refine


pytestmark = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="to ten digits, which takes float64")

CLIENTS, OUT, IN, RANK = 10, 14, 10, 2  # as of test_clair
SAMPLES = np.array([30, 30, 60, 120, 300, 300, 700, 1500, 3000, 3000.0])


@pytest.fixture
def weights(rng):
    """Clients that share a row space, with noise of variance 1/samples; client 4 has a shift of its own."""
    basis = np.linalg.qr(rng.normal(size=(IN, RANK)))[0]
    noise = rng.normal(size=(CLIENTS, OUT, IN)) / np.sqrt(SAMPLES)[:, None, None]
    shift = rng.normal(size=(OUT, IN)) * (np.arange(CLIENTS) == 4)[:, None, None]
    return rng.normal(size=(CLIENTS, OUT, RANK)) @ basis.T + rng.normal(size=(OUT, IN)) + noise + shift


def same(one, other):
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("equal", [1.0, 7, 0.1, 1e-300])
def test_equal_samples_are_none_bit_for_bit(weights, equal):
    same(clair(weights, samples=[equal] * CLIENTS, shrink=True), clair(weights, shrink=True))


def test_members_and_the_mean_are_those_of_the_samples(weights):
    found = clair(weights, samples=SAMPLES)
    assert found.status == Status.converged and int(found.rank) == RANK
    np.testing.assert_array_equal(found.members, np.arange(CLIENTS) != 4)
    counted = np.where(np.asarray(found.members), SAMPLES, 0)
    mean = np.einsum("k,kqp->qp", counted / counted.sum(), weights)
    inside = np.asarray(found.projector)
    expected = np.where(np.asarray(found.members)[:, None, None], mean + (weights - mean) @ inside, weights)
    np.testing.assert_allclose(found.refined, expected, atol=1e-12)


def test_the_scale_of_samples_changes_nothing(weights):
    found, expected = clair(weights, samples=8 * SAMPLES), clair(weights, samples=SAMPLES)
    same(found, expected)  # a power of two, so that ratios are the same bits


def test_samples_permute_with_the_clients(weights, rng):
    order = rng.permutation(CLIENTS)
    found, expected = clair(weights[order], samples=SAMPLES[order]), clair(weights, samples=SAMPLES)
    np.testing.assert_array_equal(found.members, expected.members[order])
    np.testing.assert_allclose(found.refined, expected.refined[order], atol=1e-10)
    np.testing.assert_allclose(found.off_subspace, expected.off_subspace[order][:, order], atol=1e-10)


def test_the_mean_has_the_least_noise_of_all_weighted_means():
    """In variance: 1/Σ n for weights in proportion to samples, and more for any others."""
    count, basis = 5, jnp.zeros((IN, RANK))  # no row space: the whole mean
    samples = np.array([10.0, 20, 40, 300, 1000])
    units = np.zeros((count, count, OUT, IN))
    units[np.arange(count), np.arange(count), 0, 0] = 1  # draws: only client j reports anything
    refine_all = jax.vmap(lambda each: refine(each, jnp.ones(count, bool), basis=basis, samples=samples))
    shares = np.asarray(refine_all(jnp.asarray(units)))[:, 0, 0, 0]
    np.testing.assert_allclose(shares, samples / samples.sum(), rtol=1e-14)
    np.testing.assert_allclose((shares**2 / samples).sum(), 1 / samples.sum(), rtol=1e-14)


@pytest.mark.parametrize("shrink", [False, True])
def test_factors_are_the_dense_matrices(weights, shrink):
    members = jnp.arange(CLIENTS) != 4
    left, values, right = np.linalg.svd(weights, full_matrices=False)
    factors = LowRankMatrices(left * values[:, None], right)
    found = refine(factors, members, rank=RANK, samples=SAMPLES, shrink=shrink).dense()
    np.testing.assert_allclose(found, refine(weights, members, rank=RANK, samples=SAMPLES, shrink=shrink), atol=1e-9)
    if not shrink:
        np.testing.assert_allclose(clair(factors, samples=SAMPLES).refined.dense(), found, atol=1e-9)


def test_shrinkage_is_its_formula_with_samples(weights):
    members = np.arange(CLIENTS) != 4
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(IN, RANK)))[0]
    found = refine(weights, members, basis=basis, samples=SAMPLES, shrink=True)
    noise, freedom = np.median(SAMPLES) / SAMPLES, OUT * (IN - RANK)
    share = np.where(members, SAMPLES, 0) / SAMPLES[members].sum()
    mean = np.einsum("k,kqp->qp", share, weights)
    outside = (weights - mean) @ (np.eye(IN) - basis @ basis.T)
    squares = (outside**2).sum((1, 2))
    own = noise - np.where(members, noise * share, 0)  # of the best mean H = v_k π_k for every member
    variance = (squares / noise)[members].sum() / (members.sum() - 1) / freedom
    factor = np.maximum(1 - variance * own * (freedom - 2) / squares, 0)
    expected = weights - outside + factor[:, None, None] * outside
    np.testing.assert_allclose(found, expected, atol=1e-12)


BAD = {
    "samples must be of shape (10,), got shape (3,).": np.ones(3),
    "samples must be of shape (10,), got shape ().": 5.0,
    "samples must be positive and finite, got 0 from client 2, -1 from client 7.": [1, 1, 0, 1, 1, 1, 1, -1, 1, 1],
    "samples must be positive and finite, got nan from client 1.": [1, np.nan] + [1] * 8,
    "samples must be positive and finite, got inf from client 0.": [np.inf] + [1] * 9,
    "samples must be numbers of shape (10,), got 'many'.": "many",
}


@pytest.mark.parametrize("message", BAD)
def test_samples_that_are_none(weights, message):
    for driver in (clair, elect, lambda given, **rest: refine(given, np.ones(CLIENTS, bool), **rest)):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            driver(weights, samples=BAD[message])


def test_inside_a_trace_a_status_says_so(weights):
    found = jax.jit(lambda samples: clair(weights, samples=samples))(jnp.asarray([-1.0] + [1] * 9))
    assert found.status == Status.invalid_argument and not found.members.any()
    np.testing.assert_array_equal(found.refined, weights)
