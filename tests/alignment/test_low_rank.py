"""Clients in factors against the same clients dense: one problem, two routes. out ≠ in and mixed ranks throughout."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import Factored, LowRankMatrices, Penalty, Status, clair, decompose
from clairjax.alignment import compress, refine
from clairjax.alignment._low_rank_clients import LowRankClients


WIDE = jax.config.jax_enable_x64
# Where the joint row and column spaces are reduced (ranks add up to less than either side), and where they are not.
SIZES = {"reduced": (70, 64), "columns alone": (70, 30), "neither": (21, 25)}


def factors(rng, out, in_, *, clients=9, rank=5, shared=2, bad=2, noise=0.1, dtype=np.float64):
    """Ranks `rank` and `rank` + 1 by turns, each client's factors mixed by a matrix of its own, scales from ½ to 2."""
    space, common = rng.normal(size=(shared, in_)), (rng.normal(size=(out, 1)), rng.normal(size=(1, in_)))
    ups, downs, scales = [], [], np.linspace(0.5, 2, clients)
    for k in range(clients):
        rest = rank + k % 2 - shared - 1
        left = [common[0], rng.normal(size=(out, shared)), noise * rng.normal(size=(out, rest))]
        right = [common[1], rng.normal(size=(shared, in_)) if k < bad else space, rng.normal(size=(rest, in_))]
        mix = rng.normal(size=(rank + k % 2,) * 2) + 3 * np.eye(rank + k % 2)
        ups.append((np.concatenate(left, 1) @ mix / scales[k]).astype(dtype))
        downs.append(np.linalg.solve(mix, np.concatenate(right, 0)).astype(dtype))
    return ups, downs, scales.astype(dtype)


def clients(rng, size="reduced", **rest):
    return LowRankMatrices(*factors(rng, *SIZES[size], **rest))


def tolerance(dtype):
    return 1e-9 if dtype == jnp.float64 else 1e-4


@jax.jit
def reduced(weights):
    return weights.clients()


@jax.jit
def all_products(seen, basis, table):
    return (
        seen.lift(basis),
        seen.inner_products(),
        seen.scatter(table),
        seen.project_out(basis).inner_products(),
        seen.times(basis),  # in other coordinates of the columns
    )


@pytest.mark.parametrize("size", SIZES)
def test_products_are_those_of_the_matrices(size, rng, dtype):
    weights = clients(rng, size, dtype=dtype)
    ups, downs, scales = factors(np.random.default_rng(0), *SIZES[size])
    np.testing.assert_allclose(
        LowRankMatrices(ups, downs, scales).dense(),
        [s * up @ down for s, up, down in zip(scales, ups, downs, strict=True)],
        atol=1e-4 if not WIDE else 1e-12,
    )
    seen = reduced(weights)
    assert isinstance(seen, LowRankClients) and seen.dtype == dtype
    dense = np.asarray(weights.dense(), np.float64)
    basis = np.linalg.qr(rng.normal(size=(seen.shape[2], 3)))[0].astype(dtype)
    table = np.abs(rng.normal(size=(len(dense),) * 2))
    table = np.triu(table, 1) + np.triu(table, 1).T
    found = all_products(seen, basis, table.astype(dtype))
    whole, inner, scattered, projected, rows = (np.asarray(each, np.float64) for each in found)
    np.testing.assert_allclose(whole.T @ whole, np.eye(3), atol=1e-5)
    medoid = np.flatnonzero((np.asarray(seen.rows) == 0).all((1, 2)) & (np.asarray(seen.common_rows) == 0).all((1, 2)))
    assert medoid.size == 1
    shifted = dense - dense[medoid]
    scale = np.abs(shifted).max() ** 2 * shifted[0].size
    flat = shifted.reshape(len(dense), -1)
    np.testing.assert_allclose(inner, flat @ flat.T, atol=tolerance(dtype) * scale)
    scatter = sum(
        table[j, k] * (whole.T @ (dense[j] - dense[k]).T @ (dense[j] - dense[k]) @ whole)
        for j in range(len(dense))
        for k in range(j)
    )
    np.testing.assert_allclose(basis.T @ scattered @ basis, scatter, atol=tolerance(dtype) * np.abs(scatter).max())
    outside = shifted - shifted @ whole @ whole.T
    flat = outside.reshape(len(dense), -1)
    np.testing.assert_allclose(projected, flat @ flat.T, atol=tolerance(dtype) * scale)
    along = shifted @ whole
    np.testing.assert_allclose(
        np.einsum("jqr,kqs->jkrs", rows, rows),
        np.einsum("jqr,kqs->jkrs", along, along),
        atol=tolerance(dtype) * scale,
    )


@pytest.mark.parametrize("size", SIZES)
def test_the_program_has_the_same_optimum(size, rng, dtype):
    weights = clients(rng, size, dtype=dtype)
    penalty = Penalty(2.0, 1.0)
    found, expected = decompose(weights, penalty), decompose(weights.dense(), penalty)
    assert found.status == expected.status == Status.converged
    close = 1e-5 if dtype == jnp.float64 else 1e-3
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-9 if dtype == jnp.float64 else 1e-4)
    assert found.basis.shape[0] == weights.shape[2] and found.rank == expected.rank
    np.testing.assert_allclose(found.projector, expected.projector, atol=close)


@pytest.mark.parametrize(("dtype", "shrink"), [(np.float32, False), (np.float64, False), (np.float64, True)])
def test_clair_in_factors_is_clair(shrink, rng, dtype):
    """Given the rank and the threshold. Left to itself the dense vote takes q(p − r) numbers to be set by noise, more
    than products of low rank have: it then finds differences of noise significant, and at times excludes a member."""
    weights = clients(rng, dtype=dtype)
    found = clair(weights, rank=2, shrink=shrink)
    assert found.members.tolist() == [False] * 2 + [True] * 7
    expected = clair(weights.dense(), rank=2, threshold=found.threshold, shrink=shrink)
    assert expected.members.tolist() == found.members.tolist()
    np.testing.assert_allclose(found.projector, expected.projector, atol=1e-5)
    scale = float(jnp.abs(weights.dense()).max())
    # Degrees of freedom differ: a product of rank r has fewer than a matrix. Shrinkage sees it by a part in d.
    atol = 1e-3 if shrink else 1e-8 if dtype == jnp.float64 else 1e-5
    np.testing.assert_allclose(found.refined.dense(), expected.refined, atol=atol * scale)
    assert found.refined.shape == weights.shape


def test_the_rank_is_that_of_the_shared_row_space(rng, dtype):
    """Noise of low rank is not white in `in` dimensions: the rows that carry it are counted instead."""
    found = clair(clients(rng, dtype=dtype))
    assert found.rank == 2 and found.status == Status.converged
    assert found.members.tolist() == [False] * 2 + [True] * 7


def test_one_adapter_from_everyone_comes_back(rng, dtype):
    """The identity: aggregating one product gives that product, the scale applied once. Shapes of the next test."""
    up, down = rng.normal(size=(40, 2)).astype(dtype), rng.normal(size=(2, 50)).astype(dtype)
    weights = LowRankMatrices([up] * 10, [down] * 10, 0.5)
    refined = clair(weights).refined
    np.testing.assert_allclose(refined.dense(), np.stack([0.5 * up @ down] * 10), atol=1e-4)
    again = compress(refined, 2)
    np.testing.assert_allclose(again.dense(), refined.dense(), atol=1e-4)


@pytest.mark.parametrize("strangers", [0, 1])
def test_copies_of_one_adapter_leave_no_rounding(strangers, rng, dtype):
    up, down = rng.normal(size=(1, 40, 2)).astype(dtype), rng.normal(size=(1, 2, 50)).astype(dtype)
    ups, downs = np.repeat(up, 10, 0), np.repeat(down, 10, 0)
    ups[:strangers] = rng.normal(size=(strangers, 40, 2))
    downs[:strangers] = rng.normal(size=(strangers, 2, 50))
    found = clair(LowRankMatrices(ups, downs))
    assert found.members.tolist() == [k >= strangers for k in range(10)] and int(found.rank) == 0


@pytest.mark.skipif(not WIDE, reason="to 1e-9, which takes float64")
def test_only_the_products_matter(rng):
    """Factors turned by any invertible matrix, scales moved into factors, rows and columns rotated."""
    ups, downs, scales = factors(rng, *SIZES["reduced"])
    expected = clair(LowRankMatrices(ups, downs, scales), rank=2)
    turns = [rng.normal(size=(up.shape[1],) * 2) + 2 * np.eye(up.shape[1]) for up in ups]
    turned = clair(
        LowRankMatrices(
            [s * up @ turn for s, up, turn in zip(scales, ups, turns, strict=True)],
            [np.linalg.solve(turn, down) for turn, down in zip(turns, downs, strict=True)],
        ),
        rank=2,
    )
    np.testing.assert_allclose(turned.refined.dense(), expected.refined.dense(), atol=1e-8)
    left, right = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in SIZES["reduced"])
    rotated = clair(LowRankMatrices([left @ up for up in ups], [down @ right for down in downs], scales), rank=2)
    np.testing.assert_allclose(rotated.refined.dense(), left @ expected.refined.dense() @ right, atol=1e-7)
    assert rotated.members.tolist() == turned.members.tolist() == expected.members.tolist()


def test_an_inflated_client_costs_the_others_nothing(rng, dtype):
    ups, downs, scales = factors(rng, *SIZES["reduced"], dtype=dtype)
    expected = clair(LowRankMatrices(ups, downs, scales), rank=2)
    scales = scales.copy()
    scales[0] *= 1e4
    found = clair(LowRankMatrices(ups, downs, scales), rank=2)
    assert found.members.tolist() == expected.members.tolist()
    members = np.asarray(found.members)
    expected, found = (np.asarray(each.refined.dense())[members] for each in (expected, found))
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("rank", [1, 3, 8, 40])
def test_compression_is_the_best_of_its_rank(rank, rng, dtype):
    refined = clair(clients(rng, "columns alone", dtype=dtype), rank=2, shrink=True).refined
    exact = np.asarray(refined.dense(), np.float64)
    left, values, right = np.linalg.svd(exact, full_matrices=False)
    best = (left[:, :, :rank] * values[:, None, :rank]) @ right[:, :rank]
    found = compress(refined, rank)
    assert found.up.shape[2] == rank
    distance = np.linalg.norm(np.asarray(found.dense()) - exact, axis=(1, 2))
    optimum = np.linalg.norm(best - exact, axis=(1, 2))
    np.testing.assert_allclose(distance, optimum, atol=tolerance(dtype) * values[:, 0].max())
    lengths = jnp.linalg.norm(found.up, axis=1), jnp.linalg.norm(found.down, axis=2)
    np.testing.assert_allclose(*lengths, atol=1e-2)  # balanced


def test_compression_and_change_of_the_transposed(rng):
    """Of the dual: what is refined there, turned back, has its common columns in no client's factor.

    Nothing else says that it was turned: the structure is that of shared rows.
    """
    weights = clients(rng, "columns alone")
    refined = clair(weights, rank=2, shared="columns").refined
    assert jax.tree.structure(refined) == jax.tree.structure(clair(weights, rank=2).refined)
    exact, found = np.asarray(refined.dense()), compress(refined, 8)
    values = np.linalg.svd(exact, compute_uv=False)
    distance = np.linalg.norm(np.asarray(found.dense()) - exact, axis=(1, 2))
    np.testing.assert_allclose(distance, np.linalg.norm(values[:, 8:], axis=1), atol=1e-9 * values.max())
    assert (np.linalg.norm(exact - np.asarray(weights.dense()), axis=(1, 2)) > 0).any()


def test_small_matrices_are_formed(rng):
    """Where the factors hold more numbers than the matrices."""
    weights = LowRankMatrices(rng.normal(size=(5, 4, 3)), rng.normal(size=(5, 3, 6)))
    assert not isinstance(weights.clients(), LowRankClients)
    found, expected = (decompose(each, Penalty(2.0, 1.0)) for each in (weights, weights.dense()))
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-6)
    members = np.arange(5) > 0
    found, expected = (refine(each, members, rank=2) for each in (weights, weights.dense()))
    np.testing.assert_allclose(found.dense(), expected, atol=1e-4)


def test_jit_vmap_and_a_status_for_bad_numbers():
    weights = [clients(np.random.default_rng(seed)) for seed in range(2)]
    bad = LowRankMatrices(weights[0].up.at[3, 0, 0].set(jnp.nan), weights[0].down, weights[0].scale)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *weights, bad)
    found = jax.jit(jax.vmap(lambda each: clair(each, rank=2)))(stacked)
    dense = jax.vmap(lambda refined: refined.dense())(found.refined)
    for place, each in enumerate(weights):
        np.testing.assert_allclose(dense[place], clair(each, rank=2).refined.dense(), atol=1e-3)
    assert (found.status == Status.nonfinite_input).tolist() == [False, False, True] and not found.members[2].any()


UP, DOWN = np.ones((4, 5, 2)), np.ones((4, 2, 3))
SHAPES = {
    "down must be from 4 clients, as up is, got 3.": (UP, DOWN[:3]),
    "down of client 0 must be of as many rows as up has columns, 2, got 1.": (UP, DOWN[:, :1]),
    "factors of client 1 must be (5, r) and (r, 3), as of client 0": ([UP[0], UP[1, :4]], [DOWN[0], DOWN[1]]),
    "up must be of three axes, clients first, none of them empty, got shape (5, 2).": (UP[0], DOWN),
    "scale must be a number or of shape (4,), got shape (3,).": (UP, DOWN, np.ones(3)),
    "up must be from at least 3 clients, for a majority to be defined, got 0.": ([], []),
    "up of client 1 must be a matrix without an empty axis, got shape (5, 0).": (
        [UP[0], UP[1, :, :0]],
        list(DOWN[:2]),
    ),
}


@pytest.mark.parametrize("message", SHAPES)
def test_factors_that_do_not_fit_are_refused(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        LowRankMatrices(*SHAPES[message])


def test_drivers_refuse_what_they_cannot_take(rng):
    weights = clients(rng, dtype=np.float32)
    with pytest.raises(ValueError, match=r"^weights must be from at least 3 clients, .* got 2\.$"):
        clair(LowRankMatrices(weights.up[:2], weights.down[:2]))
    with pytest.raises(
        ValueError, match=r"^weights must be finite, got NaN or infinite values from client\(s\) 1, 4\.$"
    ):
        clair(LowRankMatrices(weights.up.at[jnp.array([1, 4]), 0, 0].set(jnp.inf), weights.down))
    with pytest.raises(ValueError, match=r"^weights must be float32 or float64 in both factors"):
        clair(LowRankMatrices(weights.up.astype(jnp.bfloat16), weights.down.astype(jnp.bfloat16)))
    with pytest.raises(ValueError, match=r"^rank must be between 1 and the sum of the clients' ranks = 6, got 7\.$"):
        clair(LowRankMatrices(weights.up[:3, :, :2], weights.down[:3, :2]), rank=7)
    with pytest.raises(ValueError, match=r"^rank must be an integer of at least 1, got 0\.$"):
        compress(clair(weights, rank=2, solver=Factored()).refined, 0)
