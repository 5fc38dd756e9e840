"""Theorem 1: the noiseless program (24), as the limit of small penalties, finds the row space exactly.

(24) minimises ‖L‖_* + (λ_S/λ_L) Σ‖S_g‖_F over L + S = D. With penalties ε·(1, ratio) the program (7) tends to it,
and its row space to P_A at a distance proportional to ε, so that ε = 1e-7 of a contrast leaves 1e-9.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from clairjax import Factored, Penalty, Status, decompose
from clairjax.alignment import corrupted_pairs, incoherence, penalty_ratio_interval


pytestmark = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="to 1e-8, which takes float64")

SOLVER = Factored(max_rank=4, rtol=1e-8)
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


def recovery_error(weights, basis, ratio, epsilon):
    low = epsilon * float(jnp.linalg.norm(weights[0] - weights[1]))
    found = decompose(weights, Penalty(low, ratio * low), solver=SOLVER)
    assert found.status == Status.converged and int(found.rank) == basis.shape[1]
    return float(jnp.linalg.norm(found.projector - basis @ basis.T, 2))


@pytest.mark.parametrize("contamination", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_recovery_wherever_the_theorem_applies(size, seed, contamination):
    weights, members, basis = instance(seed, size, contamination)
    interval = admissible(weights, members, basis)
    assert interval is not None
    for place in (0.02, 0.5, 0.98):
        ratio = interval[0] ** (1 - place) * interval[1] ** place
        assert recovery_error(weights, basis, ratio, 1e-7) <= 1e-8


def test_the_error_falls_in_proportion_to_the_penalties():
    weights, members, basis = instance(7, SIZES["rank one"], 1.0)
    lower, upper = admissible(weights, members, basis)
    errors = [recovery_error(weights, basis, np.sqrt(lower * upper), epsilon) for epsilon in 10.0 ** -np.arange(2, 8)]
    np.testing.assert_allclose(np.diff(np.log10(errors)), -1, atol=0.02)


def test_below_the_interval_all_becomes_sparse():
    """From 1/‖stack of D_g/‖D_g‖‖_op down."""
    weights, members, basis = instance(7, SIZES["rank one"], 1.0)
    stack = reference.contrasts(np.asarray(weights))
    unit = stack / reference.norms(stack)[:, None, None]
    vanishing = 1 / np.linalg.norm(reference.flat(unit), 2)
    lower, upper = admissible(weights, members, basis)
    assert vanishing < lower
    low = 1e-7 * float(jnp.linalg.norm(weights[0] - weights[1]))
    ranks = [
        int(decompose(weights, Penalty(low, ratio * low), solver=SOLVER).rank)
        for ratio in (0.8 * vanishing, np.sqrt(lower * upper))
    ]
    assert ranks == [0, 1]
