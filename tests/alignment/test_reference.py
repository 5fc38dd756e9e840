"""The plain NumPy reference against a convex modelling library, before it judges anything else."""

import numpy as np
import pytest
import reference


@pytest.fixture
def weights():
    """Five clients of 3 × 4, rank one apart, the last two contaminated."""
    rng = np.random.default_rng(5)
    factor = rng.normal(size=(1, 4))
    benign = rng.normal(size=(5, 3, 1)) @ factor
    benign[3:] = rng.normal(size=(2, 3, 4))
    return rng.normal(size=(3, 4)) + benign + 0.05 * rng.normal(size=(5, 3, 4))


def test_stack_order(weights):
    stack = reference.contrasts(weights)
    np.testing.assert_array_equal(stack[0], weights[0] - weights[1])
    np.testing.assert_array_equal(stack[-1], weights[3] - weights[4])
    table = np.arange(25.0).reshape(5, 5)
    assert reference.pair_vector(table + table.T, 5)[3] == table[0, 4] + table[4, 0]


@pytest.mark.parametrize("penalty", [(0.4, 0.3), (0.1, 0.06), (1.0, 0.6), (0.05, 1.0), (4.0, 0.3)])
def test_algorithm_1_matches_a_convex_modelling_library(weights, penalty):
    found = reference.algorithm1(weights, penalty, pair_weights=0.2)
    expected = reference.convex_program(weights, penalty, pair_weights=0.2)
    assert found.gap <= 1e-10 * found.objective
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-6)
    np.testing.assert_allclose(found.low_rank, expected.low_rank, atol=1e-4)
    np.testing.assert_allclose(found.sparse, expected.sparse, atol=1e-4)
    if np.linalg.norm(found.low_rank) > 0:
        rows = [reference.projector(one.low_rank, 1e-3) for one in (found, expected)]
        np.testing.assert_allclose(*rows, atol=1e-4)


def test_algorithm_1_with_a_weight_per_pair(weights):
    rng = np.random.default_rng(6)
    table = rng.uniform(0.5, 2.0, (5, 5))
    table = table + table.T
    found = reference.algorithm1(weights, (1.0, 0.5), table)
    expected = reference.convex_program(weights, (1.0, 0.5), table)
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-6)


def test_the_gap_bounds_the_distance_to_the_optimum(weights):
    omega = reference.pair_vector(0.2, 5)
    best = reference.algorithm1(weights, (0.5, 0.3), 0.2).objective
    for steps in (1, 5, 20, 80):
        found = reference.algorithm1(weights, (0.5, 0.3), 0.2, max_steps=steps)
        stack = reference.contrasts(weights)
        gap = reference.duality_gap(stack, found.low_rank, found.sparse, (0.5, 0.3), omega)
        assert found.objective - best <= gap + 1e-12


def test_a_target_stops_and_the_gram_route_is_the_same(weights):
    best = reference.algorithm1(weights, (0.5, 0.3), 0.2)
    early = reference.algorithm1(weights, (0.5, 0.3), 0.2, target=best.objective * (1 + 1e-3), rtol=None)
    assert early.steps < best.steps and early.objective <= best.objective * (1 + 1e-3)
    gram = reference.algorithm1(weights, (0.5, 0.3), 0.2, threshold_singular_values=reference.svt_gram)
    np.testing.assert_allclose(gram.objective, best.objective, rtol=1e-9)
    np.testing.assert_allclose(gram.low_rank, best.low_rank, atol=1e-6)


def test_the_noiseless_program_is_the_limit_of_small_penalties(weights):
    exact = reference.convex_program(weights, (1.0, 0.6), exact=True)
    scaled = [reference.convex_program(weights, (t, 0.6 * t)).objective / t for t in (1e-1, 1e-3)]
    assert scaled[0] < scaled[1] < exact.objective * (1 + 1e-6)
    np.testing.assert_allclose(scaled[1], exact.objective, rtol=1e-2)


def test_vote_gap_and_refinement(weights):
    factor = np.linalg.svd((weights[:3] - weights[:3].mean(0)).reshape(-1, 4))[2][:1]
    row_space = factor.T @ factor
    table = reference.off_subspace(weights, row_space)
    members = reference.vote(table, reference.largest_gap(table))
    np.testing.assert_array_equal(members, [True, True, True, False, False])
    refined = reference.refine(weights, members, row_space)
    mean = weights[:3].mean(0)
    np.testing.assert_allclose(refined[1], mean + (weights[1] - mean) @ row_space, atol=1e-12)
    np.testing.assert_array_equal(refined[4], weights[4])
