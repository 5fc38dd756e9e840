"""Incoherence and overlap against their definitions, penalty interval and vote share against a search."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.alignment import _theory
from clairjax.alignment._theory import (
    corrupted_pairs,
    penalty_ratio_bounds,
    penalty_ratio_interval,
    vote_share_interval,
)
from clairjax.data import MultiResponse


incoherence, column_overlap = jax.jit(_theory.incoherence), jax.jit(_theory.column_overlap)


def problem_of(key, dtype):
    return MultiResponse(clients=10, outputs=7, inputs=5, samples=60).generate(key=key, dtype=dtype)


def column_space(blocks):
    """An orthonormal basis of the column space of the stack, as blocks [pairs, out, rank]."""
    left, values, _ = np.linalg.svd(blocks.reshape(-1, blocks.shape[-1]), full_matrices=False)
    kept = left[:, values > 1e-5 * values[0]]
    return kept.reshape(*blocks.shape[:2], -1)


def stacks(weights, members, basis):
    """All contrasts inside the row space, and which of them are benign."""
    weights, members = np.asarray(weights, float), np.asarray(members)
    pairs = list(itertools.combinations(range(len(weights)), 2))
    row_space = np.asarray(basis, float) @ np.asarray(basis, float).T
    blocks = np.stack([(weights[j] - weights[k]) @ row_space for j, k in pairs])
    return blocks, np.array([members[j] and members[k] for j, k in pairs])


@pytest.mark.parametrize("reported", ["weights", "estimates"])
def test_incoherence_is_its_definition(key, dtype, reported):
    problem = problem_of(key, dtype)
    weights = getattr(problem, reported)
    blocks, benign = stacks(weights, problem.members, problem.basis)
    columns = column_space(blocks * benign[:, None, None])
    expected = (columns**2).sum((1, 2)).max() * len(blocks) / columns.shape[-1]
    found = incoherence(weights, problem.members, problem.basis)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=2e3 * float(jnp.finfo(dtype).eps))
    assert float(found) >= len(blocks) / benign.sum() * (1 - 1e-5)


@pytest.mark.parametrize("reported", ["weights", "estimates"])
def test_overlap_is_its_definition(key, dtype, reported):
    problem = problem_of(key, dtype)
    weights = getattr(problem, reported)
    blocks, benign = stacks(weights, problem.members, problem.basis)
    corrupted = column_space(blocks)[~benign].reshape(-1, problem.basis.shape[1])
    found = column_overlap(weights, problem.members, problem.basis)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.linalg.norm(corrupted, 2) ** 2, atol=2e3 * float(jnp.finfo(dtype).eps))


def test_padding_of_the_basis_changes_nothing(key, dtype):
    problem = problem_of(key, dtype)
    padded = jnp.concatenate([jnp.zeros((5, 1), dtype), problem.basis, jnp.zeros((5, 2), dtype)], 1)
    for function in (incoherence, column_overlap):
        bare = function(problem.weights, problem.members, problem.basis)
        np.testing.assert_allclose(
            function(problem.weights, problem.members, padded), bare, rtol=2e3 * float(jnp.finfo(dtype).eps)
        )


def test_the_backbone_and_the_scale_change_nothing(key):
    problem = problem_of(key, float)
    tolerance = 1e4 * float(jnp.finfo(problem.weights.dtype).eps)
    moved = 1e3 * problem.weights + jnp.ones_like(problem.backbone)[None]
    for function in (incoherence, column_overlap):
        before = function(problem.weights, problem.members, problem.basis)
        np.testing.assert_allclose(function(moved, problem.members, problem.basis), before, rtol=tolerance)


def test_overlap_reaches_one_when_members_miss_a_direction():
    weights = np.zeros((5, 2, 3))
    weights[0, 0, 0], weights[1, 1, 0] = 1.0, -1.0  # members differ in the first direction only
    weights[4, 0] = [0.0, 2.0, 0.0]
    members, basis = jnp.array([True] * 4 + [False]), jnp.eye(3)[:, :2]
    assert float(column_overlap(jnp.asarray(weights), members, basis)) == pytest.approx(1.0)
    assert float(column_overlap(jnp.asarray(weights), members, basis[:, :1])) < 1


@pytest.mark.parametrize("function", [incoherence, column_overlap])
def test_degenerate_sets_are_finite(function, dtype):
    same = jnp.ones((4, 2, 3), dtype)
    basis = jnp.eye(3, dtype=dtype)[:, :2]
    for members in (jnp.ones(4, bool), jnp.zeros(4, bool), jnp.arange(4) < 1):
        assert float(function(same, members, basis)) == (1.0 if function is incoherence else 0.0)
    one = same.at[0, 0, 0].set(2)
    assert math.isfinite(float(function(one, jnp.arange(4) < 1, basis)))


def test_jit_and_vmap(key, dtype):
    problems = [problem_of(k, dtype) for k in jax.random.split(key, 3)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
    for function in (incoherence, column_overlap):
        found = jax.jit(jax.vmap(function))(batch.weights, batch.members, batch.basis)
        each = [function(one.weights, one.members, one.basis) for one in problems]
        np.testing.assert_allclose(found, each, rtol=1e-4)


@pytest.mark.parametrize(("benign", "clients"), [(3, 5), (6, 10), (12, 20), (1, 4), (0, 3), (3, 3)])
def test_corrupted_pairs(benign, clients):
    found = int(corrupted_pairs(jnp.arange(clients) < benign))
    pairs = itertools.combinations(range(clients), 2)
    assert found == sum(j >= benign or k >= benign for j, k in pairs)
    share, total = benign / clients, math.comb(clients, 2)
    assert found / total == pytest.approx(1 - share**2 + share * (1 - share) / (clients - 1))


def equation_25(mu, rank, s, pairs, a, b):
    """As printed: the interval, or None where its premise fails."""
    x = math.sqrt(mu * rank * s / pairs)
    if not x < a * b / (1 + a) ** 2:
        return None
    return math.sqrt(mu * rank / pairs) / (b - (1 + a) * x), a / ((1 + a) * math.sqrt(s))


CASES = [(1.5, 1, 59, 1770), (1.6, 2, 119, 7140), (1.2, 3, 20, 4950), (3.0, 2, 10, 45), (1.0, 1, 1, 17)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("slack", [(0.9, 0.99), (0.5, 0.9), (0.2, 0.5), (0.99, 0.999)])
def test_given_slacks_give_equation_25(case, slack):
    expected = equation_25(*case, *slack)
    found = penalty_ratio_interval(*case, row_slack=slack[0], block_slack=slack[1])
    assert (found is None) == (expected is None)
    if expected is not None:
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("block_slack", [1.0, 0.9])
def test_without_a_row_slack_the_interval_is_the_union(case, block_slack):
    found = penalty_ratio_interval(*case, block_slack=block_slack)
    each = [equation_25(*case, a, block_slack) for a in np.linspace(0, 1, 4002)[1:-1]]
    each = [interval for interval in each if interval is not None]
    assert (found is None) == (not each)
    if not each:
        return
    lower, upper = (np.array(ends) for ends in zip(*each, strict=True))
    assert (lower[6:] < upper[5:-1]).all()  # neighbours overlap: the union is one interval
    assert found == pytest.approx((lower.min(), upper.max()), rel=2e-3)
    assert found[0] <= lower.min() and found[1] >= upper.max()


def test_bounds_are_traced_and_keep_their_dtype(dtype):
    found = jax.jit(penalty_ratio_bounds)(jnp.asarray(1.5, dtype), jnp.asarray(1), jnp.asarray(59), 1770)
    assert {end.dtype for end in found} == {dtype}
    np.testing.assert_allclose(found, penalty_ratio_interval(1.5, 1, 59, 1770), rtol=1e-5)


def test_without_corrupted_pairs_any_large_ratio_will_do(dtype):
    lower, upper = penalty_ratio_bounds(jnp.asarray(2.0, dtype), 2, 0, 45)
    np.testing.assert_allclose(lower, math.sqrt(4 / 45), rtol=1e-6)
    assert math.isinf(float(upper))
    assert penalty_ratio_interval(math.nan, 2, 3, 45) is None


def test_one_contaminated_client_needs_more_than_32_r_plus_2():
    for rank in (1, 2, 3):
        for clients in (32 * rank + 1, 32 * rank + 3):
            pairs, s = math.comb(clients, 2), clients - 1
            best = penalty_ratio_interval(pairs / (pairs - s), rank, s, pairs)
            assert (best is not None) == (clients > 32 * rank + 2)


@pytest.mark.parametrize("clients", range(2, 12))
def test_vote_shares_that_separate_in_the_worst_case(clients):
    """All contaminated clients agree with each other, none with a member."""
    for members in range(1, clients + 1):
        interval = vote_share_interval(members, clients)
        good = np.full(clients, members - 1) / (clients - 1)
        good[members:] = (clients - members - 1) / (clients - 1)
        tried = {share / (2 * clients - 2) for share in range(1, 2 * clients - 1)}
        works = {s for s in tried if ((good >= s) == (np.arange(clients) < members)).all()}
        if interval is None:
            assert 2 * members <= clients and not works
        else:
            assert works == {s for s in tried if interval[0] < s <= interval[1]}
            assert interval[0] < 0.5 <= interval[1]


@pytest.mark.parametrize(("members", "clients"), [(0, 5), (6, 5), (1, 1)])
def test_vote_share_refuses_impossible_counts(members, clients):
    with pytest.raises(ValueError, match=f"got {members} of {clients}"):
        vote_share_interval(members, clients)
