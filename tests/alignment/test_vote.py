"""The vote (8) against its definition, and the two thresholds on distances whose answer is known."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from clairjax.alignment._majority import votes_needed
from clairjax.alignment._vote import largest_gap_threshold, majority_vote, vote


CLIENTS = 10
TABLES = 20 * int(os.environ.get("CLAIRJAX_TEST_REPLICATES", "100"))

wide = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="ties are float64's")
vote_jit = jax.jit(vote)


@jax.jit
def majority_jit(off_subspace, separations, freedom, share):
    return majority_vote(off_subspace, separations, freedom, share, jnp.ones(len(off_subspace), off_subspace.dtype))


@st.composite
def tables(draw):
    """Symmetric, zero diagonal, many ties."""
    upper = np.zeros((CLIENTS, CLIENTS))
    values = st.integers(0, 6)
    upper[np.triu_indices(CLIENTS, 1)] = draw(st.lists(values, min_size=45, max_size=45))
    return upper + upper.T


thresholds = st.integers(-1, 7).map(float)
vote_shares = st.integers(1, 8).map(lambda votes: votes / 9)


@wide
@given(table=tables(), threshold=thresholds, share=vote_shares)
def test_vote_is_its_definition(table, threshold, share):
    found = vote_jit(jnp.asarray(table), threshold, share)
    expected = [sum(table[j, k] <= threshold for k in range(CLIENTS) if k != j) for j in range(CLIENTS)]
    np.testing.assert_allclose(found.votes, np.array(expected) / 9, rtol=1e-15)
    # A share that is m/9 up to rounding takes m votes: hence votes and not shares are compared.
    np.testing.assert_array_equal(found.members, np.array(expected) >= round(9 * share))
    assert bool(found.majority) == found.members.any() and float(found.threshold) == threshold


@wide
@given(table=tables(), share=vote_shares)
def test_members_only_join_as_the_threshold_rises(table, share):
    members = [np.asarray(vote_jit(jnp.asarray(table), float(t), share).members) for t in range(-1, 8)]
    for before, after in itertools.pairwise(members):
        assert not (before & ~after).any()
    assert not members[0].any() and members[-1].all()


@wide
@given(table=tables(), threshold=thresholds)
def test_members_only_leave_as_the_share_rises(table, threshold):
    members = [np.asarray(vote_jit(jnp.asarray(table), threshold, votes / 9).members) for votes in range(1, 9)]
    for before, after in itertools.pairwise(members):
        assert not (after & ~before).any()


@wide
@given(table=tables(), threshold=thresholds, share=vote_shares, order=st.permutations(range(CLIENTS)))
def test_the_vote_permutes_with_the_clients(table, threshold, share, order):
    order = np.array(order)
    given, moved = jnp.asarray(table), jnp.asarray(table[np.ix_(order, order)])
    for ballots in (
        (vote_jit(moved, threshold, share), vote_jit(given, threshold, share)),
        (majority_jit(1 + moved, 1 + moved, 50, 0.5), majority_jit(1 + given, 1 + given, 50, 0.5)),
    ):
        found, expected = ballots
        np.testing.assert_array_equal(found.members, expected.members[order])
        np.testing.assert_allclose(found.votes, expected.votes[order], rtol=1e-15)
        assert float(found.threshold) == float(expected.threshold)
        assert bool(found.majority) == bool(expected.majority)


@wide
@given(table=tables())
def test_largest_gap(table):
    found = float(largest_gap_threshold(jnp.asarray(table)))
    values = table[np.triu_indices(CLIENTS, 1)]
    assert found == (values[0] if (values == values[0]).all() else reference.largest_gap(table))


@pytest.mark.parametrize(
    ("count", "share", "needed"),
    [(5, 0.5, 2), (10, 0.5, 5), (10, 5 / 9, 5), (11, 0.5, 5), (3, 0.5, 1), (101, 0.07, 7)],
)
def test_votes_needed(count, share, needed):
    assert int(votes_needed(count, share)) == needed
    assert int(votes_needed(count, jnp.asarray(share, jnp.float32))) == needed  # 0.07 · 100 > 7 in float32


def between(points):
    return np.sqrt(((points[:, None] - points[None]) ** 2).sum(2))


def distances(seed, contaminated, freedom, spread=3.0):
    """Of clients with noise of one variance outside the row space, the last ones perturbed besides; who is not."""
    rng = np.random.default_rng(seed)
    outside = np.arange(CLIENTS) >= CLIENTS - contaminated
    points = rng.normal(size=(CLIENTS, freedom))
    points[outside] += spread * rng.normal(size=(contaminated, freedom))
    return between(points), ~outside


def elect(table, freedom):
    """On distances whose members differ inside the row space as well, by ten times as much."""
    table = jnp.asarray(table)
    return majority_jit(table, 10 * table, freedom, 0.5)


class TestMajority:
    """`majority_vote` on distances made of noise with a known number of degrees of freedom."""

    @pytest.mark.parametrize("freedom", [40, 200, 2000])
    @pytest.mark.parametrize("contaminated", [0, 1, 3, 4])
    def test_members_are_who_differs_by_noise(self, contaminated, freedom):
        table, members = distances(contaminated, contaminated, freedom)
        found = elect(table, freedom)
        np.testing.assert_array_equal(found.members, members)
        assert bool(found.majority)
        if contaminated:
            assert table[np.ix_(members, members)].max() < found.threshold
            assert table[np.ix_(members, ~members)].min() > found.threshold
        else:
            np.testing.assert_allclose(found.threshold, table.max(), rtol=1e-6)

    @pytest.mark.parametrize("contaminated", [4, 5])
    def test_a_group_of_half_is_no_majority_and_one_of_four_is_outvoted(self, contaminated):
        """The contaminated clients agree with each other as well as the members do."""
        outside = np.arange(CLIENTS) >= CLIENTS - contaminated
        points = np.random.default_rng(1).normal(size=(CLIENTS, 200)) + 2.0 * outside[:, None]
        found = elect(between(points), 200)
        assert bool(found.majority) == (contaminated == 4)
        if contaminated == 4:
            np.testing.assert_array_equal(found.members, ~outside)

    def test_copies_are_no_group(self):
        table, _ = distances(2, 0, 200)
        copies = np.array([0, 0, 0, 0, 4, 5, 6, 7, 8, 9])
        found = elect(table[np.ix_(copies, copies)], 200)
        assert bool(found.majority) and found.members.all()

    @pytest.mark.parametrize("clients", [3, 4])
    def test_few_clients(self, clients):
        outside = np.arange(clients) == 0
        points = np.random.default_rng(clients).normal(size=(clients, 500)) + 3.0 * outside[:, None]
        found = elect(between(points), 500)
        np.testing.assert_array_equal(found.members, ~outside)
        assert bool(found.majority)

    def test_all_the_same_place(self, dtype):
        zero = jnp.zeros((CLIENTS, CLIENTS), dtype)
        found = majority_jit(zero, zero, 20, 0.5)
        assert found.threshold.dtype == found.votes.dtype == dtype
        assert found.members.all() and bool(found.majority) and float(found.threshold) == 0

    @pytest.mark.slow
    def test_rarely_excludes_a_member(self):
        """Without contamination somebody is lost in at most 2 % of the tables, within 3 standard errors."""
        tables = np.stack([distances(seed, 0, 80)[0] for seed in range(TABLES)])
        found = jax.vmap(lambda table: majority_jit(table, table, 80, 0.5))(jnp.asarray(tables))
        lost = float((~found.members).any(1).mean())
        assert lost <= 0.02 + 3 * np.sqrt(0.02 * 0.98 / TABLES)
