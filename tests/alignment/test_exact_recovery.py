"""Theorem 1: the noiseless program (24) finds the row space exactly, by its own solver and as a limit of (7).

(24) minimises λ_L ‖L‖_* + λ_S Σ‖S_g‖_F over L + S = D. With penalties ε·(1, ratio) the program (7) tends to it and
its row space to P_A, at a distance proportional to ε: ε = 1e-7 of a contrast leaves 1e-9.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import registry

from clairjax import Factored, Penalty, Status, decompose
from clairjax.alignment import Multipliers, corrupted_pairs, incoherence, penalty_ratio_interval


pytestmark = [
    pytest.mark.skipif(not jax.config.jax_enable_x64, reason="to 1e-8, which takes float64"),
    pytest.mark.optimised,
]

FACTORED = Factored(max_rank=4, rtol=1e-8)
SIZES = {"rank one": (1, 6, 60, 60), "rank two": (2, 6, 40, 120)}  # r, p, q, K


def instance(seed, size, contamination):
    """A backbone, benign clients that share a row space exactly, and one client that does not."""
    rank, inputs, outputs, clients = size
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(inputs, rank)))[0]
    weights = rng.normal(size=(clients, outputs, rank)) @ basis.T
    weights[-1] = contamination * rng.normal(size=(outputs, inputs))
    weights += 10 * rng.normal(size=(outputs, inputs))
    members = np.arange(clients) < clients - 1
    return jnp.asarray(weights), jnp.asarray(members), jnp.asarray(basis)


def admissible(weights, members, basis):
    clients, corrupted = len(weights), int(corrupted_pairs(members))
    mu = incoherence(weights, members, basis)
    return penalty_ratio_interval(mu, basis.shape[1], corrupted, clients * (clients - 1) // 2)


def exactly(weights, ratio):
    return decompose(weights, Penalty(1.0, ratio), solver=Multipliers())


def in_the_limit(weights, ratio, epsilon=1e-7):
    low = epsilon * float(jnp.linalg.norm(weights[0] - weights[1]))
    return decompose(weights, Penalty(low, ratio * low), solver=FACTORED)


def error(found, basis):
    return float(np.linalg.norm(found.projector - basis @ basis.T, 2))


CASES = [(exactly, SIZES["rank one"]), (in_the_limit, SIZES["rank one"]), (in_the_limit, SIZES["rank two"])]


@pytest.mark.parametrize("contamination", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("route", "size"), CASES, ids=["exactly, r = 1", "in the limit, r = 1", "in the limit, r = 2"]
)
def test_recovery_wherever_the_theorem_applies(route, size, seed, contamination):
    weights, members, basis = instance(seed, size, contamination)
    interval = admissible(weights, members, basis)
    assert interval is not None
    for place in (0.02, 0.5, 0.98):
        ratio = interval[0] ** (1 - place) * interval[1] ** place
        found = route(weights, ratio)
        assert found.status == Status.converged and int(found.rank) == basis.shape[1]
        assert error(found, basis) <= 1e-8


def test_the_error_of_the_limit_falls_in_proportion_to_the_penalties():
    weights, members, basis = instance(7, SIZES["rank one"], 1.0)
    ratio = np.sqrt(np.prod(admissible(weights, members, basis)))
    errors = [error(in_the_limit(weights, ratio, epsilon), basis) for epsilon in 10.0 ** -np.arange(2, 8)]
    np.testing.assert_allclose(np.diff(np.log10(errors)), -1, atol=0.02)


@pytest.mark.parametrize("route", [exactly, in_the_limit])
def test_below_the_interval_all_becomes_sparse(route):
    """From 1/‖stack of D_g/‖D_g‖‖_op down."""
    weights, members, basis = instance(7, SIZES["rank one"], 1.0)
    stack = reference.contrasts(np.asarray(weights))
    unit = stack / reference.norms(stack)[:, None, None]
    vanishing = 1 / np.linalg.norm(reference.flat(unit), 2)
    lower, upper = admissible(weights, members, basis)
    assert vanishing < lower
    assert [int(route(weights, ratio).rank) for ratio in (0.8 * vanishing, np.sqrt(lower * upper))] == [0, 1]


@pytest.mark.parametrize("ratio", [0.3, 0.45, 0.6, 1.0, 3.0])
def test_noiseless_program_against_a_convex_modelling_library(ratio):
    """On noisy contrasts, where the two parts share them in a way that no theorem tells."""
    weights = registry.shared_row_space(15, 1, 1)
    expected = reference.convex_program(weights, (1.0, ratio), exact=True)
    found = decompose(jnp.asarray(weights), Penalty(1.0, ratio), solver=Multipliers())
    assert found.status == Status.converged
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-6)
    values = np.linalg.svd(reference.flat(expected.low_rank), compute_uv=False)
    np.testing.assert_allclose(found.singular_values, values, atol=1e-3 * (1 + values[0]))
    rank = int(found.rank)
    if 0 < rank < registry.IN:
        right = np.linalg.svd(reference.flat(expected.low_rank), full_matrices=False)[2][:rank]
        np.testing.assert_allclose(found.projector, right.T @ right, atol=1e-4)


def test_noiseless_program_has_no_scale():
    """Only the ratio of the penalties matters, and the weights' units do not."""
    weights = registry.shared_row_space(15, 1, 1)
    usual = decompose(jnp.asarray(weights), Penalty(1.0, 0.45), solver=Multipliers())
    for factor, penalty in ((1.0, Penalty(1e3, 450.0)), (1e4, Penalty(1.0, 0.45))):
        found = decompose(jnp.asarray(factor * weights), penalty, solver=Multipliers())
        np.testing.assert_allclose(found.projector, usual.projector, atol=1e-6)
        np.testing.assert_allclose(found.objective, usual.objective * factor * penalty.low_rank, rtol=1e-6)
