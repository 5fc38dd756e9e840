"""Refinement (9) against its double sum, the refit against principal components, shrinkage against its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from clairjax.alignment import refine
from clairjax.alignment._clients import DenseClients
from clairjax.alignment._refit import refit_members


CLIENTS, OUT, IN, RANK = 8, 7, 6, 2
MEMBERS = np.arange(CLIENTS) < 5

refine_jit = jax.jit(refine, static_argnames=("rank", "shared", "shrink"))
clients_of = jax.jit(DenseClients.centred)
refit_jit = jax.jit(refit_members, static_argnums=(2, 3))


@pytest.fixture
def problem(key, dtype):
    """(weights, basis): benign clients share a row space up to small noise, three others do not."""
    keys = jax.random.split(key, 4)
    basis = jnp.linalg.qr(jax.random.normal(keys[0], (IN, RANK), dtype))[0]
    shared = jax.random.normal(keys[1], (CLIENTS, OUT, RANK), dtype) @ basis.T
    foreign = jnp.where(MEMBERS[:, None, None], 0, jax.random.normal(keys[2], (CLIENTS, OUT, IN), dtype))
    noise = jnp.asarray(0.1, dtype) * jax.random.normal(keys[3], (CLIENTS, OUT, IN), dtype)
    return shared + foreign + noise, basis


def rounding(dtype, factor=100):
    return factor * float(jnp.finfo(dtype).eps)


def test_refinement_is_the_double_sum(problem, dtype):
    weights, basis = problem
    padded = jnp.concatenate([basis, jnp.zeros((IN, 2), dtype)], 1)
    row_space = np.asarray(basis @ basis.T)
    expected = reference.refine(np.asarray(weights), MEMBERS, row_space)
    for given in (basis, padded):
        found = refine_jit(weights, jnp.asarray(MEMBERS), basis=given, shrink=False)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, atol=rounding(dtype))
        np.testing.assert_array_equal(found[~MEMBERS], weights[~MEMBERS])


def test_members_agree_outside_the_row_space_and_keep_their_own_inside(problem, dtype):
    weights, basis = problem
    found = np.asarray(refine_jit(weights, jnp.asarray(MEMBERS), basis=basis, shrink=False))[MEMBERS]
    inside = np.asarray(basis @ basis.T)
    np.testing.assert_allclose(found @ inside, weights[MEMBERS] @ inside, atol=rounding(dtype))
    outside = found @ (np.eye(IN, dtype=dtype) - inside)
    np.testing.assert_allclose(outside, np.broadcast_to(outside[:1], outside.shape), atol=rounding(dtype))


@pytest.mark.parametrize("shrink", [False, True])
@pytest.mark.parametrize("members", [np.zeros(CLIENTS, bool), np.arange(CLIENTS) == 2])
def test_nobody_or_one_alone_is_finite(problem, members, shrink):
    weights, basis = problem
    found = refine_jit(weights, jnp.asarray(members), basis=basis, shrink=shrink)
    assert jnp.isfinite(found).all()
    if not shrink:
        np.testing.assert_allclose(found, weights, atol=rounding(weights.dtype))


@pytest.mark.parametrize("rank", [0, IN])
def test_no_row_space_is_the_members_mean_and_a_full_one_changes_nothing(problem, rank, dtype):
    weights, _ = problem
    basis = jnp.eye(IN, dtype=dtype)[:, :rank]
    found = refine_jit(weights, jnp.asarray(MEMBERS), basis=basis, shrink=False)[MEMBERS]
    expected = np.broadcast_to(weights[MEMBERS].mean(0), found.shape) if rank == 0 else weights[MEMBERS]
    np.testing.assert_allclose(found, expected, atol=rounding(dtype))


def test_refit_is_principal_components_of_the_members(problem, dtype):
    weights, _ = problem
    basis, found, by_gap, _ = refit_jit(clients_of(weights), jnp.asarray(MEMBERS, dtype), 4, RANK)
    assert not by_gap
    assert basis.dtype == dtype and basis.shape == (IN, 4) and int(found) == RANK
    assert not basis[:, RANK:].any()
    centred = np.asarray(weights)[MEMBERS] - np.asarray(weights)[MEMBERS].mean(0)
    right = np.linalg.svd(centred.reshape(-1, IN), full_matrices=False)[2][:RANK]
    np.testing.assert_allclose(basis @ basis.T, right.T @ right, atol=rounding(dtype, 1e4))


@pytest.mark.parametrize(("bound", "cut_short"), [(1, True), (RANK, False), (4, False)])
def test_a_rank_at_the_bound_is_cut_short_unless_the_rest_is_noise(problem, bound, cut_short):
    weights, _ = problem
    found = refit_jit(clients_of(weights), jnp.asarray(MEMBERS, weights.dtype), bound, None)
    assert int(found.rank) == min(bound, RANK) and bool(found.cut_short) == cut_short


def test_refit_finds_the_rank_and_does_not_see_the_others(problem):
    weights, _ = problem
    members = jnp.asarray(MEMBERS, weights.dtype)
    basis, found, by_gap, _ = refit_jit(clients_of(weights), members, 4, None)
    assert int(found) == RANK and not by_gap
    moved = jnp.where(MEMBERS[:, None, None], weights, 50 * weights[::-1])
    again, found, *_ = refit_jit(clients_of(moved), members, 4, None)
    assert int(found) == RANK
    # The members' own digits: the others are in the same products, with weight zero.
    np.testing.assert_allclose(again @ again.T, basis @ basis.T, atol=rounding(weights.dtype, 1e4))


def test_refit_of_one_member_has_no_directions(problem):
    weights, _ = problem
    basis, found, by_gap, _ = refit_jit(
        clients_of(weights), jnp.asarray(np.arange(CLIENTS) == 3, weights.dtype), 4, None
    )
    assert int(found) == 0 and not basis.any() and not by_gap


def falling(rng, dtype, size, strong):
    """Members whose deviations have `strong` long directions and, after them, ever shorter ones: no flat floor."""
    lengths = np.append(np.full(strong, 10.0), 0.8 ** np.arange(size - strong))
    directions = np.linalg.qr(rng.normal(size=(size, size)))[0] * lengths[:, None] ** 0.5
    return jnp.asarray(rng.normal(size=(6, 30, size)) @ directions @ np.eye(size), dtype), directions


@pytest.mark.parametrize("strong", [1, 3])
@pytest.mark.parametrize("max_rank", [8, 16])
def test_without_a_noise_floor_the_rank_is_at_the_plain_gap_and_said_to_be(rng, dtype, strong, max_rank):
    weights, _ = falling(rng, dtype, 20, strong)
    members = jnp.ones(6, dtype)
    clients = clients_of(weights)
    basis, found, by_gap, _ = refit_jit(clients, members, max_rank, None)
    assert int(found) == strong and bool(by_gap) and not basis[:, strong:].any()
    # A rank that is given is taken, and so is the noise floor where there is one.
    assert int(refit_jit(clients, members, max_rank, 2).rank) == 2
    white = jnp.asarray(rng.normal(size=(6, 30, 20)), dtype).at[:, :, :strong].multiply(8)
    _, found, by_gap, _ = refit_jit(clients_of(white), members, max_rank, None)
    assert int(found) == strong and not by_gap


def test_a_spectrum_that_falls_without_a_plain_gap_reaches_the_bound(rng, dtype):
    weights, _ = falling(rng, dtype, 20, 0)
    _, found, by_gap, _ = refit_jit(clients_of(weights), jnp.ones(6, dtype), 4, None)
    assert int(found) == 4 and not by_gap


def test_shrinkage_is_its_formula(problem, dtype):
    weights, basis = problem
    found = refine_jit(weights, jnp.asarray(MEMBERS), basis=basis, shrink=True)
    assert found.dtype == dtype
    given, inside = np.asarray(weights, float), np.asarray(basis @ basis.T, float)
    mean, freedom = given[MEMBERS].mean(0), OUT * (IN - RANK)
    outside = (given - mean) @ (np.eye(IN) - inside)
    squares = (outside**2).sum((1, 2))
    variance = squares[MEMBERS].sum() / ((MEMBERS.sum() - 1) * freedom)
    noise = variance * np.where(MEMBERS, 1 - 1 / MEMBERS.sum(), 1)
    factor = np.maximum(1 - noise * (freedom - 2) / squares, 0)
    expected = mean + (given - mean) @ inside + factor[:, None, None] * outside
    np.testing.assert_allclose(found, expected, atol=rounding(dtype, 1e3))


@jax.jit
def errors(keys, foreign):
    """Squared errors of (9) and of the shrunk refinement, of each client.

    Noise of variance 0.01 in each entry; members agree outside the row space, others are off by `foreign`.
    """

    def of(key):
        keys = jax.random.split(key, 4)
        basis = jnp.linalg.qr(jax.random.normal(keys[0], (IN, RANK)))[0]
        shared = jax.random.normal(keys[1], (CLIENTS, OUT, RANK)) @ basis.T
        off = foreign * jax.random.normal(keys[2], (CLIENTS, OUT, IN))
        truth = shared + jnp.where(MEMBERS[:, None, None], 0, off)
        weights = truth + 0.1 * jax.random.normal(keys[3], truth.shape)
        refined = [refine(weights, jnp.asarray(MEMBERS), basis=basis, shrink=shrink) for shrink in (False, True)]
        return [jnp.sum((each - truth) ** 2, (1, 2)) for each in refined]

    return jax.vmap(of)(keys)


@pytest.mark.parametrize("foreign", [0.0, 0.1, 0.5, 5.0])
def test_shrinkage_helps_the_others_and_hardly_costs_the_members(key, foreign):
    """Over 400 draws, paired, 3 standard errors.

    Others never lose to keeping their own, whatever their bias (James and Stein), and gain most where it is within
    the noise. Members, for whom (9) is exact, lose at most 5 % to it: the positive part of a factor that should be
    zero, of order 1/√(q(p − r)), squared.
    """
    plain, shrunk = (np.asarray(each) for each in errors(jax.random.split(key, 400), jnp.asarray(foreign)))
    gain = (plain - shrunk)[:, ~MEMBERS].sum(1)
    error = gain.std() / np.sqrt(len(gain))
    assert gain.mean() > -3 * error
    if foreign <= 0.1:
        assert gain.mean() > 0.2 * plain[:, ~MEMBERS].sum(1).mean()
    assert shrunk[:, MEMBERS].mean() < 1.05 * plain[:, MEMBERS].mean()
