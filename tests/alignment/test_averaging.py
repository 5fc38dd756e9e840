"""The matrix baselines, against the plain NumPy reference and at the edges of their inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from clairjax.alignment._averaging import fedavg, label_oracle, local, oracle_fedavg


@pytest.fixture
def case(key, dtype):
    weights = jax.random.normal(key, (6, 4, 5), dtype)
    basis, _ = jnp.linalg.qr(jax.random.normal(jax.random.fold_in(key, 1), (5, 2), dtype))
    return weights, jnp.array([True, False, True, True, False, True]), basis


def test_means(case, dtype):
    weights, members, _ = case
    table = np.asarray(weights)
    tolerance = 10 * float(jnp.finfo(dtype).eps)
    np.testing.assert_array_equal(local(weights), table)
    np.testing.assert_allclose(fedavg(weights), np.broadcast_to(table.mean(0), table.shape), atol=tolerance)
    mean = table[np.asarray(members)].mean(0)
    expected = np.where(np.asarray(members)[:, None, None], mean, table)
    np.testing.assert_allclose(oracle_fedavg(weights, members), expected, atol=tolerance)


def test_label_oracle_is_equation_9(case, dtype):
    weights, members, basis = case
    row_space = np.asarray(basis) @ np.asarray(basis).T
    expected = reference.refine(np.asarray(weights), np.asarray(members), row_space)
    tolerance = 40 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(label_oracle(weights, members, basis), expected, atol=tolerance)


def test_zero_columns_of_the_basis_are_padding(case):
    weights, members, basis = case
    padded = jnp.concatenate([basis, jnp.zeros((5, 3), basis.dtype)], 1)
    np.testing.assert_allclose(
        label_oracle(weights, members, padded), label_oracle(weights, members, basis), atol=1e-6
    )
    nothing_shared = label_oracle(weights, members, jnp.zeros((5, 3), basis.dtype))
    np.testing.assert_allclose(nothing_shared, oracle_fedavg(weights, members), atol=1e-6)


def test_the_whole_space_leaves_everyone_alone(case):
    weights, members, basis = case
    np.testing.assert_allclose(label_oracle(weights, members, jnp.eye(5, dtype=basis.dtype)), weights, atol=1e-6)


def test_without_members_nothing_moves(case):
    weights, members, basis = case
    nobody = jnp.zeros_like(members)
    np.testing.assert_array_equal(oracle_fedavg(weights, nobody), weights)
    np.testing.assert_array_equal(label_oracle(weights, nobody, basis), weights)


def test_a_non_finite_client_that_is_no_member_spoils_nobody(case):
    weights, members, basis = case
    broken = weights.at[1].set(jnp.nan)
    for method in (oracle_fedavg(broken, members), label_oracle(broken, members, basis)):
        assert bool(jnp.isfinite(method[members]).all())
        assert bool(jnp.isnan(method[1]).all())


def test_jit_vmap_and_dtype(case, dtype):
    weights, members, basis = case
    batch = jnp.stack([weights, 2 * weights, weights[::-1]])
    for method in (
        local,
        fedavg,
        lambda w: oracle_fedavg(w, members),
        lambda w: label_oracle(w, members, basis),
    ):
        found = jax.jit(jax.vmap(method))(batch)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, np.stack([method(one) for one in batch]), atol=1e-5)
