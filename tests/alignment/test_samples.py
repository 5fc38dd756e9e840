"""What numbers of samples do: weights of the best mean and of the row space, units of the vote."""

import jax
import numpy as np
import pytest

from clairjax import Status, clair


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
