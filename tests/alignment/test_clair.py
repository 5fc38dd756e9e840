"""`clair` on what clients may report: the set is exact, the refinement is (9), and no outsider moves a member.

All problems have one shape, with out ≠ in, so that each set of static options compiles once.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from compilations import nothing_compiles

from clairjax import Factored, Penalty, ProximalGradient, Status, clair
from clairjax.data import MultiResponse


pytestmark = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="to ten digits, which takes float64")

CLIENTS, OUT, IN, RANK = 10, 14, 10, 2
SECTION_7 = MultiResponse(clients=CLIENTS, outputs=OUT, inputs=IN, samples=100)
BENIGN = MultiResponse(clients=CLIENTS, outputs=OUT, inputs=IN, samples=100, contaminated_share=0.0)


@pytest.fixture(scope="module")
def benign():
    """What ten clients without a contaminated one among them report."""
    return np.asarray(BENIGN.generate(key=jax.random.key(7)).estimates)


@pytest.fixture(scope="module")
def foreign():
    """Perturbations of full rank, of a size between the noise and the shared part."""
    return 0.5 * np.random.default_rng(1).normal(size=(CLIENTS, OUT, IN))


@pytest.fixture(scope="module")
def mixed(benign, foreign):
    """Clients 2, 5 and 9 contaminated."""
    return np.where(indicator(2, 5, 9)[:, None, None], benign + foreign, benign)


def indicator(*clients):
    return np.isin(np.arange(CLIENTS), clients)


def consistent(found, weights, vote_share=0.5):
    """Whatever was found, its parts fit together: the evidence, the vote (8), the refinement (9)."""
    members, row_space = np.asarray(found.members), np.asarray(found.projector)
    scale = np.abs(weights).max()
    evidence = reference.off_subspace(weights, row_space)
    np.testing.assert_allclose(found.off_subspace, evidence, atol=1e-6 * evidence.max() + 1e-12 * scale)
    near = (np.asarray(found.off_subspace) <= found.threshold) & ~np.eye(len(weights), dtype=bool)
    np.testing.assert_allclose(found.votes, near.sum(1) / (len(weights) - 1), rtol=1e-12)
    if members.any():
        np.testing.assert_array_equal(members, np.asarray(found.votes) >= vote_share - 1e-6)
    expected = reference.refine(weights, members, row_space, np.asarray(found.influence))
    np.testing.assert_allclose(found.refined, expected, atol=1e-10 * scale)
    assert not found.declined.any()
    np.testing.assert_array_equal(np.asarray(found.refined)[~members], weights[~members])
    rank = int(found.rank)
    assert not found.basis[:, rank:].any()
    np.testing.assert_allclose(found.basis[:, :rank].T @ found.basis[:, :rank], np.eye(rank), atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_section_7(seed):
    problem = SECTION_7.generate(key=jax.random.key(seed))
    weights = np.asarray(problem.estimates)
    found = clair(problem.estimates)
    assert found.status == Status.converged and int(found.rank) == RANK
    np.testing.assert_array_equal(found.members, problem.members)
    consistent(found, weights)
    assert np.linalg.norm(found.projector - problem.basis @ problem.basis.T, 2) < 0.25
    oracle = reference.refine(weights, np.asarray(problem.members), np.asarray(problem.basis @ problem.basis.T))
    errors = [
        float(((each - problem.weights)[problem.members] ** 2).sum()) for each in (found.refined, oracle, weights)
    ]
    # These four problems only; the experiments measure the error over many.
    assert errors[0] < 1.3 * errors[1] and errors[0] < 0.5 * errors[2]


def contaminated(name, benign, foreign):
    """(reports, who is contaminated)"""
    one = lambda k, matrix: np.where(indicator(k)[:, None, None], matrix, benign)
    cases = {
        "nobody": (benign, ()),
        "one": (one(3, benign + foreign), (3,)),
        "four": (np.where(indicator(0, 1, 6, 8)[:, None, None], benign + foreign, benign), (0, 1, 6, 8)),
        "three colluders": (np.where(indicator(1, 4, 6)[:, None, None], benign[1] + foreign[1], benign), (1, 4, 6)),
        "four colluders": (
            np.where(indicator(1, 4, 6, 7)[:, None, None], benign[1] + foreign[1], benign),
            (1, 4, 6, 7),
        ),
        "benign twins": (benign[[0, 1, 1, 3, 4, 5, 6, 7, 8, 9]], ()),
        "benign triplets and a contaminated client": (
            one(9, benign + foreign)[[0, 0, 0, 3, 4, 5, 6, 7, 8, 9]],
            (9,),
        ),
        "one all zeros": (one(4, np.zeros_like(benign)), (4,)),
        "one a million times larger": (one(4, 1e6 * benign), (4,)),
        "one mirrored": (one(4, -benign), (4,)),
    }
    return cases[name]


@pytest.mark.parametrize(
    "name",
    [
        "nobody",
        "one",
        "four",
        "three colluders",
        "four colluders",
        "benign twins",
        "benign triplets and a contaminated client",
        "one all zeros",
        "one a million times larger",
        "one mirrored",
    ],
)
def test_who_is_contaminated(name, benign, foreign):
    weights, outsiders = contaminated(name, benign, foreign)
    found = clair(weights)
    np.testing.assert_array_equal(found.members, ~indicator(*outsiders))
    assert found.status == Status.converged and int(found.rank) == RANK
    consistent(found, weights)
    # Copies of one matrix count as one client, whoever sent them; all others in full.
    of_each = (weights[:, None] == weights[None]).all((2, 3)).sum(0)
    np.testing.assert_array_equal(np.asarray(found.influence)[found.members], 1 / of_each[found.members])


def test_one_a_million_times_larger_changes_nothing_for_the_others(benign, foreign):
    """As if it had not been there, on a problem where another client is contaminated too."""
    weights = np.where(indicator(7)[:, None, None], benign + foreign, benign)
    others = ~indicator(4)
    without, found = clair(weights[others]), clair(np.where(indicator(4)[:, None, None], 1e6 * weights, weights))
    assert without.status == found.status == Status.converged
    np.testing.assert_array_equal(found.members[others], without.members)
    scale = np.abs(without.refined).max()
    np.testing.assert_allclose(found.refined[others], without.refined, atol=1e-8 * scale)
    np.testing.assert_allclose(found.projector, without.projector, atol=1e-8)
    np.testing.assert_allclose(
        np.asarray(found.off_subspace)[np.ix_(others, others)], without.off_subspace, rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("factor", [1e9, 1e12, 1e18, 1e25, 1e150, 1e200])
@pytest.mark.parametrize("outsiders", [(5,), (2, 5, 9)], ids=["one", "three"])
def test_no_size_of_an_outsider_gets_it_in(mixed, outsiders, factor):
    """Clients of any finite size are found, or the result is declared unusable; they are never let in unseen."""
    weights = np.where(indicator(*outsiders)[:, None, None], factor * mixed, mixed)
    found = clair(weights)
    expected = clair(mixed)
    if factor <= 1e150 or found.members.any():  # beyond, the square overflows
        np.testing.assert_array_equal(found.members, ~indicator(2, 5, 9))
        members, scale = expected.members, np.abs(expected.refined).max()
        np.testing.assert_allclose(found.refined[members], expected.refined[members], atol=1e-8 * scale)
    else:
        assert found.status != Status.converged and not found.members.any()
        np.testing.assert_array_equal(found.refined, weights)


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_all_identical(value):
    weights = np.full((CLIENTS, OUT, IN), value)
    found = clair(weights)
    assert found.status == Status.converged and int(found.rank) == 0
    assert found.members.all() and not found.basis.any()
    np.testing.assert_array_equal(found.votes, np.ones(CLIENTS))
    np.testing.assert_array_equal(found.off_subspace, np.zeros((CLIENTS, CLIENTS)))
    np.testing.assert_allclose(found.refined, weights, rtol=1e-15)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("strangers", [1, 4])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_a_majority_of_copies_needs_no_noise_to_keep_strangers_out(foreign, strangers, size):
    """Untrained clients report the same: and two matrices always share a row space, of their difference."""
    weights = np.repeat(foreign[:1], CLIENTS, axis=0)
    weights[:strangers] += size * foreign[1 : strangers + 1]
    found = clair(weights)
    assert found.status == Status.converged and int(found.rank) == 0
    np.testing.assert_array_equal(found.members, np.arange(CLIENTS) >= strangers)
    consistent(found, weights)


def test_copies_that_are_no_majority_take_nothing_over(benign):
    copied = benign.copy()
    copied[1:3] = copied[0]
    found, honest = clair(copied, vote_share=0.2), clair(benign, vote_share=0.2)
    assert found.members.all() and honest.members.all() and int(found.rank) == int(honest.rank)


@pytest.mark.parametrize("law", ["independent", "colluding", "a common shift"])
def test_half_contaminated_is_no_majority(benign, foreign, law):
    shift = foreign if law == "independent" else foreign[:1]
    start = benign[:1] if law == "colluding" else benign
    weights = np.where(indicator(0, 1, 2, 3, 4)[:, None, None], start + shift, benign)
    found = clair(weights)
    assert found.status == Status.no_majority
    assert not found.members.any()
    np.testing.assert_array_equal(found.refined, weights)


class TestInvariance:
    """What the clients' names, origin, axes and units do to the result: nothing else than to its names, …"""

    def test_order_of_the_clients(self, mixed):
        order = np.random.default_rng(2).permutation(CLIENTS)
        found, expected = clair(mixed[order]), clair(mixed)
        np.testing.assert_array_equal(found.members, expected.members[order])
        np.testing.assert_allclose(found.votes, expected.votes[order], rtol=1e-12)
        np.testing.assert_allclose(found.refined, expected.refined[order], atol=1e-10)
        np.testing.assert_allclose(found.threshold, expected.threshold, rtol=1e-10)

    def test_a_common_backbone(self, mixed, foreign):
        backbone = 1e3 * foreign[:1]
        found, expected = clair(mixed + backbone), clair(mixed)
        np.testing.assert_array_equal(found.members, expected.members)
        np.testing.assert_allclose(found.refined - backbone, expected.refined, atol=1e-9)
        np.testing.assert_allclose(found.projector, expected.projector, atol=1e-9)

    def test_turning_the_inputs_turns_the_row_space(self, mixed):
        turn = np.linalg.qr(np.random.default_rng(3).normal(size=(IN, IN)))[0]
        found, expected = clair(mixed @ turn.T), clair(mixed)
        np.testing.assert_array_equal(found.members, expected.members)
        np.testing.assert_allclose(found.projector, turn @ expected.projector @ turn.T, atol=1e-10)
        np.testing.assert_allclose(found.refined, expected.refined @ turn.T, atol=1e-10)

    def test_turning_the_outputs(self, mixed):
        turn = np.linalg.qr(np.random.default_rng(4).normal(size=(OUT, OUT)))[0]
        found, expected = clair(turn @ mixed), clair(mixed)
        np.testing.assert_array_equal(found.members, expected.members)
        np.testing.assert_allclose(found.projector, expected.projector, atol=1e-10)
        np.testing.assert_allclose(found.refined, turn @ expected.refined, atol=1e-10)

    @pytest.mark.parametrize("factor", [1e-6, 1e6])
    def test_units(self, mixed, factor):
        found, expected = clair(factor * mixed), clair(mixed)
        assert found.status == Status.converged
        np.testing.assert_array_equal(found.members, expected.members)
        np.testing.assert_allclose(found.refined, factor * expected.refined, rtol=1e-9, atol=1e-10 * factor)
        np.testing.assert_allclose(found.threshold, factor * expected.threshold, rtol=1e-9)


def test_outsiders_move_no_member(mixed, foreign):
    """While clients 2, 5 and 9 stay excluded, what they report leaves no trace in a member's result."""
    expected = clair(mixed)
    outsiders = ~np.asarray(expected.members)
    np.testing.assert_array_equal(outsiders, indicator(2, 5, 9))
    for factor in (-1.0, 3.0, 40.0):
        weights = np.where(outsiders[:, None, None], mixed + factor * foreign[::-1], mixed)
        found = clair(weights)
        np.testing.assert_array_equal(found.members, expected.members)
        scale = np.abs(mixed).max()
        members = expected.members
        np.testing.assert_allclose(found.refined[members], expected.refined[members], atol=1e-12 * scale)
        np.testing.assert_array_equal(found.refined[outsiders], weights[outsiders])


def test_a_given_rank_and_threshold_are_used(mixed):
    free = clair(mixed)
    threshold = float(free.threshold)
    for given in (threshold, jnp.asarray(threshold)):
        found = clair(mixed, rank=3, threshold=given)
        assert int(found.rank) == 3 and found.status == Status.converged
        assert float(found.threshold) == threshold
        np.testing.assert_array_equal(found.members, ~indicator(2, 5, 9))
        consistent(found, mixed)
        # The third direction is added to the two that are found without being asked.
        np.testing.assert_allclose(found.projector @ free.projector, free.projector, atol=1e-10)
    everyone = clair(mixed, rank=3, threshold=1e9)
    assert everyone.members.all() and everyone.status == Status.unequal_noise
    # The three would only harm the others.
    assert everyone.declined.any() and not (everyone.declined & indicator(2, 5, 9)).any()
    np.testing.assert_array_equal(everyone.refined[everyone.declined], mixed[everyone.declined])
    nobody = clair(mixed, rank=3, threshold=0.0)
    assert nobody.status == Status.no_majority and not nobody.members.any()
    np.testing.assert_array_equal(nobody.refined, mixed)


def test_vote_share(benign, foreign):
    """Six members have five of nine votes, four colluders three of nine: α of Remark 3 in (1/3, 5/9]."""
    weights, outsiders = contaminated("four colluders", benign, foreign)
    threshold = float(clair(weights).threshold)
    for share in (0.34, 0.5, 0.55, jnp.asarray(5 / 9)):
        found = clair(weights, rank=3, threshold=threshold, vote_share=share)
        np.testing.assert_array_equal(found.members, ~indicator(*outsiders))
        consistent(found, weights, float(share))
    nobody = clair(weights, rank=3, threshold=threshold, vote_share=0.56)
    assert nobody.status == Status.no_majority and not nobody.members.any()


def literal(weights, penalty):
    """The paper's procedure from beginning to end, in plain NumPy."""
    solution = reference.algorithm1(weights, penalty, 1 / len(weights), rtol=1e-11)
    row_space = reference.projector(solution.low_rank, 1e-4)
    table = reference.off_subspace(weights, row_space)
    threshold = reference.largest_gap(table)
    members = reference.vote(table, threshold)
    return row_space, table, threshold, members, reference.refine(weights, members, row_space)


def test_the_paper_to_the_letter(mixed):
    penalty = (0.8, 0.3)
    row_space, table, threshold, members, refined = literal(mixed, penalty)
    found = clair(mixed, penalty=Penalty(*penalty), refit=False, solver=ProximalGradient())
    assert found.status == Status.converged
    assert int(found.rank) == np.linalg.matrix_rank(row_space)
    np.testing.assert_allclose(found.projector, row_space, atol=1e-4)
    np.testing.assert_allclose(found.off_subspace, table, atol=1e-4 * table.max())
    np.testing.assert_allclose(found.threshold, threshold, rtol=1e-4)
    np.testing.assert_array_equal(found.members, members)
    np.testing.assert_allclose(found.votes, ((table <= threshold).sum(1) - 1) / (CLIENTS - 1))
    np.testing.assert_allclose(found.refined, refined, atol=1e-4 * np.abs(mixed).max())
    np.testing.assert_array_equal(members, ~indicator(2, 5, 9))  # and it works here


def test_a_bound_on_the_rank_that_binds_is_reported(mixed):
    found = clair(mixed, solver=Factored(max_rank=1))
    assert found.status == Status.rank_at_bound
    assert found.basis.shape == (IN, 1) and int(found.rank) == 1


class TestShrink:
    def test_outsiders_move_no_member(self, mixed, foreign):
        expected = clair(mixed, shrink=True)
        np.testing.assert_array_equal(expected.members, ~indicator(2, 5, 9))
        members, scale = expected.members, np.abs(mixed).max()
        for factor in (-1.0, 3.0, 40.0):
            weights = np.where(members[:, None, None], mixed, mixed + factor * foreign[::-1])
            found = clair(weights, shrink=True)
            np.testing.assert_array_equal(found.members, members)
            np.testing.assert_allclose(found.refined[members], expected.refined[members], atol=1e-12 * scale)

    def test_moves_along_the_part_outside_the_row_space_alone(self, mixed):
        found = clair(mixed, shrink=True)
        members, refined, inside = (np.asarray(leaf) for leaf in (found.members, found.refined, found.projector))
        mean = mixed[members].mean(0)
        np.testing.assert_allclose(refined @ inside, mixed @ inside, atol=1e-10)
        outside = (mixed - mean) @ (np.eye(IN) - inside)
        kept = (refined - mean) @ (np.eye(IN) - inside)
        factor = (kept * outside).sum((1, 2)) / (outside**2).sum((1, 2))
        np.testing.assert_allclose(kept, factor[:, None, None] * outside, atol=1e-10)
        assert ((factor > -1e-12) & (factor < 1)).all()
        assert (factor[members] < 0.3).all() and (factor[~members] > 0.5).all()

    def test_the_set_is_the_same(self, mixed):
        plain, shrunk = clair(mixed), clair(mixed, shrink=True)
        np.testing.assert_array_equal(plain.members, shrunk.members)
        np.testing.assert_array_equal(plain.basis, shrunk.basis)
        assert np.abs(plain.refined - shrunk.refined)[indicator(2, 5, 9)].max() > 1e-3

    def test_an_outsider_far_away_is_left_alone(self, mixed):
        weights = np.where(indicator(5)[:, None, None], 1e3 * mixed, mixed)
        found = clair(weights, shrink=True)
        assert not found.members[5]
        np.testing.assert_allclose(found.refined[5], weights[5], rtol=1e-3)

    def test_half_contaminated_is_left_alone(self, benign, foreign):
        weights = np.where(indicator(0, 1, 2, 3, 4)[:, None, None], benign + foreign, benign)
        found = clair(weights, shrink=True)
        assert found.status == Status.no_majority
        np.testing.assert_array_equal(found.refined, weights)


def test_values_options_and_kinds_of_array_compile_nothing_new(benign, mixed):
    clair(mixed)
    kinds = (benign, jnp.asarray(mixed), mixed.tolist(), 1e6 * mixed)
    with nothing_compiles():
        for weights in kinds:
            clair(weights)
            clair(weights, vote_share=0.55, pair_weights=2.0)
            clair(weights, pair_weights=np.full((CLIENTS, CLIENTS), 0.1))


@pytest.mark.parametrize(("strangers", "taken"), [(2, False), (5, True)])
def test_half_with_one_row_space_of_their_own_are_inside_the_sum_of_both(strangers, taken):
    """Nothing is outside a row space that holds the members' and theirs, so that no vote can tell."""
    draw = np.random.default_rng(5)
    out = indicator(*range(strangers))[:, None, None]
    shared, own = draw.normal(size=(RANK, IN)), draw.normal(size=(1, IN))
    weights = draw.normal(size=(CLIENTS, OUT, RANK)) @ shared + out * (draw.normal(size=(CLIENTS, OUT, 1)) @ own)
    found = clair(weights + 0.1 * draw.normal(size=weights.shape))
    assert found.status == Status.converged and int(found.rank) == RANK + taken
    np.testing.assert_array_equal(found.members, taken | ~out[:, 0, 0])
