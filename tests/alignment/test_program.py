"""The program's parts: Laplacians against explicit contrasts, and the certificate against its definition."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from clairjax.alignment import Penalty, contrasts
from clairjax.alignment._clients import DenseClients
from clairjax.alignment._contrasts import laplacian_times, pair_index, pair_squared_distances, pair_sum
from clairjax.alignment._factored import _pair_grams, contrast_products
from clairjax.alignment._program import certify, residual_weights


CLIENTS, OUT, IN, COLUMNS = 5, 3, 4, 2
PAIRS = np.triu_indices(CLIENTS, 1)

wide = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="to twelve digits, which takes float64")
seeds = st.integers(0, 2**31)
# Some pair weights are exactly zero, as those of pairs outside the members are.
shares = st.sampled_from([1.0, 0.6])


def draw(seed, share=1.0, scale=0.0):
    """Clients and a table of pair weights; `scale` makes some clients larger than others by up to ten to it."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(CLIENTS, OUT, IN)) * 10 ** rng.uniform(0, scale, (CLIENTS, 1, 1))
    table = np.triu(rng.uniform(size=(CLIENTS, CLIENTS)) * (rng.uniform(size=(CLIENTS, CLIENTS)) < share), 1)
    return weights, table + table.T


def test_contrasts_are_the_papers_in_its_order(dtype):
    weights = jnp.arange(CLIENTS * OUT * IN, dtype=dtype).reshape(CLIENTS, OUT, IN) ** 2
    found = contrasts(weights)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, reference.contrasts(np.asarray(weights)))
    np.testing.assert_array_equal(pair_index(CLIENTS), PAIRS)


@jax.jit
def by_laplacian(values, table, basis, rows):
    clients = DenseClients(values)
    products, cross = contrast_products(clients, basis)
    return {
        "distances": pair_squared_distances(clients.inner_products()),
        "quadratic": jnp.sum(values * laplacian_times(table, values)),
        "scatter": clients.scatter(table),
        "bilinear": clients.adjoint_times(laplacian_times(table, rows)),
        "products": products,
        "cross": (cross + cross.swapaxes(0, 1)) / 2,
        "lengths": jnp.diagonal(cross, axis1=2, axis2=3),
        "grams": _pair_grams(jnp.stack([table, table**2]), products[:, None, 0] + products[None, :, 0], cross),
        "outside": pair_squared_distances(clients.project_out(basis).inner_products()),
        "sum": pair_sum(table),
    }


def by_contrasts(values, table, basis, rows):
    stack, weights = reference.contrasts(values), reference.pair_vector(table, CLIENTS)
    times = stack @ basis
    scaled = times * ((values @ basis)[PAIRS[0]] + (values @ basis)[PAIRS[1]])[:, None, 0]

    def symmetric(of_pairs):
        found = np.zeros((CLIENTS, CLIENTS, *of_pairs.shape[1:]))
        found[PAIRS] = of_pairs
        return found + found.swapaxes(0, 1)

    return {
        "distances": symmetric(reference.norms(stack) ** 2),
        "quadratic": np.sum(weights * reference.norms(stack) ** 2),
        "scatter": np.einsum("g,gqi,gqj->ij", weights, stack, stack),
        "bilinear": np.einsum("g,gqi,gqr->ir", weights, stack, reference.contrasts(rows)),
        "products": values @ basis,
        "cross": symmetric(np.einsum("gqr,gqs->grs", times, times)),
        "lengths": symmetric((times**2).sum(1)),
        "grams": np.einsum("tg,gqr,gqs->trs", np.stack([weights, weights**2]), scaled, scaled),
        "outside": symmetric(reference.norms(stack - times @ basis.T) ** 2),
        "sum": weights.sum(),
    }


@wide
@given(seed=seeds, share=shares, scale=st.sampled_from([0.0, 2.0]))
def test_laplacians_are_sums_over_contrasts(seed, share, scale):
    values, table = draw(seed, share, scale)
    rng = np.random.default_rng(seed + 1)
    basis, rows = np.linalg.qr(rng.normal(size=(IN, COLUMNS)))[0], rng.normal(size=(CLIENTS, OUT, COLUMNS))
    found, expected = by_laplacian(values, table, basis, rows), by_contrasts(values, table, basis, rows)
    size = np.abs(values).max() ** 2
    chex.assert_trees_all_close(found, expected, rtol=1e-11, atol=1e-12 * max(size, 1))


@wide
@given(seed=seeds)
def test_centring_moves_the_medoid_to_zero_and_no_contrast(seed):
    values, _ = draw(seed)
    values[seed % CLIENTS] *= 1e6
    found = np.asarray(jax.jit(DenseClients.centred)(jnp.asarray(values)).values)
    distances = ((values[:, None] - values[None]) ** 2).sum((2, 3))
    medoid = np.argmin(np.median(distances, 1))
    assert medoid != seed % CLIENTS
    np.testing.assert_array_equal(found, values - values[medoid])


def test_distances_are_zero_on_the_diagonal_and_never_negative(dtype):
    rng = np.random.default_rng(0)
    rows = (1e3 * rng.normal(size=OUT * IN) + 1e-6 * rng.normal(size=(CLIENTS, OUT * IN))).astype(dtype)
    found = jax.jit(pair_squared_distances)(rows @ rows.T)
    assert found.dtype == dtype and (found >= 0).all()
    np.testing.assert_array_equal(jnp.diagonal(found), np.zeros(CLIENTS))


def test_residual_weights_at_zero_at_the_threshold_and_beyond(dtype):
    omega = jnp.full((2, 2), 0.5, dtype)
    norms = jnp.asarray([[0.0, 1.0], [4.0, 8.0]], dtype)
    found = residual_weights(norms, omega, Penalty(jnp.ones((), dtype), jnp.asarray(2.0, dtype)))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, [[0.5, 0.5], [0.5, 0.25]])  # min(ω, λ_S/‖R‖), ω where R = 0


@jax.jit
def certificate(stack, low_rank, table, penalty):
    residual = stack - low_rank

    def symmetric(of_pairs):
        found = jnp.zeros((CLIENTS, CLIENTS), of_pairs.dtype).at[PAIRS].set(of_pairs)
        return found + found.T

    norms = symmetric(jnp.sqrt(jnp.sum(residual**2, (1, 2))))
    products = symmetric(jnp.sum(residual * stack, (1, 2)))
    weights = residual_weights(norms, table, penalty)[PAIRS]
    rows = lambda blocks: blocks.reshape(-1, IN)
    dual_norm = jnp.linalg.norm(rows(weights[:, None, None] * residual), 2)
    values = jnp.linalg.svd(rows(low_rank), compute_uv=False)
    lengths = jnp.linalg.norm(rows(weights[:, None, None] * residual), axis=0)  # along the unit vectors
    return certify(jnp.eye(IN, dtype=values.dtype), values, norms, products, dual_norm, lengths, table, penalty)


@wide
@given(seed=seeds, low=st.floats(0.01, 10), sparse=st.floats(0.01, 10), zero=st.booleans())
def test_certificate_is_its_definition_at_any_point(seed, low, sparse, zero):
    """Objective at the best S for L, and the dual value of Z_g = min(ω, λ_S/‖R_g‖) R_g scaled until feasible."""
    weights, table = draw(seed)
    table = table + (1 - np.eye(CLIENTS)) * 0.1
    stack, omega = reference.contrasts(weights), reference.pair_vector(table, CLIENTS)
    rng = np.random.default_rng(seed + 1)
    low_rank = 0 * stack if zero else stack @ rng.normal(size=(IN, 1)) @ rng.normal(size=(1, IN))
    penalty = Penalty(jnp.asarray(low), jnp.asarray(sparse))
    found = certificate(jnp.asarray(stack), jnp.asarray(low_rank), jnp.asarray(table), penalty)

    residual = stack - low_rank
    norms = reference.norms(residual)
    best = residual * np.maximum(1 - sparse / omega / norms, 0)[:, None, None]
    objective = reference.objective(stack, low_rank, best, (low, sparse), omega)
    np.testing.assert_allclose(found.objective, objective, rtol=1e-10)
    multiplier = np.minimum(omega, sparse / norms)[:, None, None] * residual
    multiplier /= max(np.linalg.norm(reference.flat(multiplier), 2) / low, 1)
    gap = objective - reference.dual_value(stack, multiplier, omega)
    np.testing.assert_allclose(found.optimality, gap / objective, rtol=1e-8, atol=1e-12)
    assert found.optimality > -1e-14


def test_nothing_to_explain_is_optimal(dtype):
    zero = jnp.zeros((CLIENTS * (CLIENTS - 1) // 2, OUT, IN), dtype)
    table = jnp.ones((CLIENTS, CLIENTS), dtype) - jnp.eye(CLIENTS, dtype=dtype)
    found = certificate(zero, zero, table, Penalty(jnp.ones((), dtype), jnp.ones((), dtype)))
    assert found.objective.dtype == found.optimality.dtype == dtype
    assert float(found.objective) == float(found.optimality) == 0


def test_a_penalty_is_two_traced_numbers():
    leaves, structure = jax.tree.flatten(Penalty(1.0, 2.0))
    assert leaves == [1.0, 2.0]
    assert jax.tree.unflatten(structure, [3.0, 4.0]) == Penalty(3.0, 4.0)
