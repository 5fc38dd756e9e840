"""Penalties and a first row space from the data alone: their definition, their units, and what they withstand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from clairjax.alignment._clients import DenseClients
from clairjax.alignment._tuning import PATH, THRESHOLD_SHARE, tune


CLIENTS, OUT, IN, RANK, MAX_RANK = 7, 9, 7, 2, 5  # 21 pairs: their median is one of them
CLOSE = 0.4  # sine of the largest angle: enough for a first vote, the refit does the rest


@pytest.fixture(scope="module")
def weights():
    """Clients 5 and 6 contaminated; returned with the true row space."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(IN, RANK)))[0]
    change = rng.normal(size=(CLIENTS, OUT, RANK)) @ basis.T
    change[5:] = rng.normal(size=(2, OUT, IN))
    return change + 0.1 * rng.normal(size=change.shape), basis @ basis.T


@jax.jit
def tuned(weights, pair_weights):
    return tune(DenseClients.centred(weights), pair_weights, MAX_RANK, None, 0.5, jnp.ones(CLIENTS, weights.dtype))


@jax.jit
def tuned_at_rank_3(weights, pair_weights):
    return tune(DenseClients.centred(weights), pair_weights, MAX_RANK, 3, 0.5, jnp.ones(CLIENTS, weights.dtype))


def table(dtype, weight=1 / CLIENTS):
    return jnp.asarray(weight * (1 - np.eye(CLIENTS)), dtype)


def distance(basis, row_space):
    return np.linalg.norm(np.asarray(basis @ basis.T) - row_space, 2)


def test_penalties_are_a_place_on_the_path(weights, dtype):
    given, _ = weights
    found = tuned(jnp.asarray(given, dtype), table(dtype))
    stack = reference.contrasts(given)
    norms = reference.norms(stack)
    between = np.linalg.norm(given[:, None] - given[None], axis=(2, 3))
    needed = 3  # of the six others
    sparse = THRESHOLD_SHARE * np.sort(np.sort(between, 1)[:, needed])[needed] / CLIENTS
    vanishing = sparse * np.linalg.norm(reference.flat(stack / norms[:, None, None]), 2)
    np.testing.assert_allclose(found.penalty.sparse, sparse, rtol=1e-5)
    assert np.abs(np.asarray(PATH) * vanishing / float(found.penalty.low_rank) - 1).min() < 1e-5


def test_row_space_and_rank(weights, dtype):
    given, row_space = weights
    found = tuned(jnp.asarray(given, dtype), table(dtype))
    assert int(found.rank) == RANK
    assert {leaf.dtype for leaf in (found.basis, found.start.factor, *jax.tree.leaves(found.penalty))} == {dtype}
    assert found.basis.shape == found.start.factor.shape == (IN, MAX_RANK) and not found.basis[:, RANK:].any()
    assert distance(found.basis, row_space) < CLOSE
    np.testing.assert_allclose(found.basis[:, :RANK].T @ found.basis[:, :RANK], np.eye(RANK), atol=1e-5)


def test_a_given_rank_is_kept(weights, dtype):
    given, row_space = weights
    found = tuned_at_rank_3(jnp.asarray(given, dtype), table(dtype))
    assert int(found.rank) == 3 and np.linalg.matrix_rank(np.asarray(found.basis), 1e-3) == 3
    assert np.linalg.norm(row_space - np.asarray(found.basis @ found.basis.T) @ row_space, 2) < CLOSE


def test_units(weights, dtype):
    """Penalties scale with the weights times a pair weight; the row space does not change."""
    given, _ = weights
    usual, large = tuned(jnp.asarray(given, dtype), table(dtype)), tuned(jnp.asarray(1e4 * given, dtype), table(dtype))
    for one, other in zip(jax.tree.leaves(large.penalty), jax.tree.leaves(usual.penalty), strict=True):
        np.testing.assert_allclose(one, 1e4 * other, rtol=1e-3)
    heavy = tuned(jnp.asarray(given, dtype), table(dtype, weight=7.0))
    np.testing.assert_allclose(heavy.penalty.sparse, 7 * CLIENTS * usual.penalty.sparse, rtol=1e-3)
    for other in (large, heavy):
        np.testing.assert_allclose(other.basis @ other.basis.T, usual.basis @ usual.basis.T, atol=1e-3)


OUTSIDERS = {
    "zero": lambda given: 0 * given,
    "colluding": lambda given: np.broadcast_to(given[:1], given.shape),
    "reversed": lambda given: given[:, :, ::-1],
    "a thousand times larger": lambda given: 1e3 * given,
}


@pytest.mark.parametrize("outsiders", OUTSIDERS.values(), ids=OUTSIDERS)
def test_no_minority_decides(weights, outsiders):
    given, row_space = weights
    given = given.copy()
    given[5:] = outsiders(given[5:])
    found = tuned(jnp.asarray(given, jnp.float32), table(jnp.float32))
    assert int(found.rank) == RANK
    assert distance(found.basis, row_space) < CLOSE


@pytest.mark.parametrize("factor", [1.0, 1e3, 1e6])
def test_the_size_of_one_outsider_changes_little(weights, dtype, factor):
    """With the median over pairs, of which ten of 21 are within the five, the scale would be an outsider's."""
    given, row_space = weights
    given = given.copy()
    given[6] *= factor
    found = tuned(jnp.asarray(given, dtype), table(dtype))
    assert int(found.rank) == RANK
    assert distance(found.basis, row_space) < CLOSE


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_identical_clients_are_finite(value, dtype):
    found = tuned(jnp.full((CLIENTS, OUT, IN), value, dtype), table(dtype))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    assert found.penalty.low_rank > 0 and found.penalty.sparse > 0


def test_five_of_seven_identical_are_finite(weights, dtype):
    """Nearly half of the contrasts vanish, and so does every distance of a majority."""
    given, _ = weights
    found = tuned(jnp.asarray(given[[0, 0, 0, 0, 0, 1, 6]], dtype), table(dtype))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    assert found.penalty.low_rank > 0 and found.penalty.sparse > 0
