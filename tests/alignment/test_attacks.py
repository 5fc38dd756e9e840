"""What strangers can do: a minority of any kind moves no honest client far, and denies nobody a majority.

NumPy draws, at the shape that test_clair compiles.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import Status, clair
from clairjax.alignment._influence import common_shifts
from clairjax.alignment._unequal import declining


pytestmark = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="the shape is compiled in float64")

CLIENTS, OUT, IN, RANK = 10, 14, 10, 2
NOISE, DRAWS = 0.1, 6
FREEDOM = OUT * (IN - RANK)
HONEST = np.arange(CLIENTS) >= 4


@pytest.fixture
def problem(rng):
    """(reports, what honest clients estimate, projector onto what is outside the row space), `DRAWS` of each."""
    basis = np.linalg.qr(rng.normal(size=(DRAWS, IN, RANK)))[0]
    common = rng.normal(size=(DRAWS, 1, OUT, IN))
    truth = common + rng.normal(size=(DRAWS, CLIENTS, OUT, RANK)) @ basis.swapaxes(1, 2)[:, None]
    reports = truth + NOISE * rng.normal(size=truth.shape)
    return reports, truth, np.eye(IN) - basis @ basis.swapaxes(1, 2)


def flat(rng, outside):
    """Outside the row space, of length 1 and without a direction that stands out."""
    matrix = np.linalg.svd(rng.normal(size=(OUT, IN)), full_matrices=False)
    matrix = matrix[0] @ matrix[2] @ outside
    return matrix / np.linalg.norm(matrix)


def moved(reports, outside, rng, distance, quiet=1.0):
    """Four colluders with this share of their noise, all moved by so many honest distances."""
    step = distance * NOISE * np.sqrt(2 * FREEDOM) * flat(rng, outside)
    mean = reports[HONEST].mean(0)
    return reports - (1 - quiet) * (reports - mean) @ outside + step


ATTACKS = {
    "one shift": moved,
    "one shift, quiet": lambda *given: moved(*given, quiet=0.15),
    "one direction": lambda reports, outside, rng, distance: (
        reports
        + distance * NOISE * np.sqrt(2 * FREEDOM) * np.outer(rng.normal(size=OUT), rng.normal(size=IN)) / 12 @ outside
    ),
    "ladder": lambda reports, outside, rng, distance: np.concatenate(
        [moved(reports, outside, np.random.default_rng(0), distance * 1.6**k)[k : k + 1] for k in range(CLIENTS)]
    ),
}


def errors(given, truth, outside, honest=HONEST):
    """Of the honest clients: refined, and with the true set and the true row space; who is a member."""
    found = clair(given)
    mean = given[honest].mean(0)
    oracle = given - (given - mean) @ outside
    return (*(np.square(each - truth)[honest].sum() for each in (found.refined, oracle)), found)


@pytest.mark.parametrize("distance", [0.3, 0.5, 0.8, 1.5])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_four_of_ten_move_the_others_far(attack, distance, problem, rng):
    refined = oracle = 0.0
    for reports, truth, outside in zip(*problem, strict=True):
        attacked = ATTACKS[attack](reports, outside, rng, distance)
        given = np.where(HONEST[:, None, None], reports, attacked)
        each = errors(given, truth, outside)
        refined, oracle = refined + each[0], oracle + each[1]
        assert each[2].members[HONEST].all()
    assert refined < 1.3 * oracle


@pytest.mark.parametrize("jitter", [1e-3, 0.2, 0.6])
def test_colluders_beside_one_client_deny_no_majority(jitter, problem, rng):
    honest = np.arange(CLIENTS) >= 3  # with one more they are half
    for reports, truth, outside in zip(*problem, strict=True):
        beside = reports[3] + jitter * NOISE * rng.normal(size=reports.shape)
        refined, oracle, found = errors(np.where(honest[:, None, None], reports, beside), truth, outside, honest)
        assert found.status == Status.converged and found.members.all() and refined < 1.3 * oracle
        # The four share one vote in the mean.
        np.testing.assert_allclose(np.asarray(found.influence)[:4], 0.25)
        np.testing.assert_array_equal(found.influence[4:], 1)


@pytest.mark.parametrize("jitter", [0.2, 0.6])
def test_colluders_that_are_half_with_the_client_beside_them_deny_no_majority(jitter, problem, rng):
    """They are as far from the others as these are from each other: whoever is honest, all belong."""
    refined = oracle = 0.0
    for reports, truth, outside in zip(*problem, strict=True):
        beside = reports[4] + jitter * NOISE * rng.normal(size=reports.shape)
        each = errors(np.where(HONEST[:, None, None], reports, beside), truth, outside)
        refined, oracle = refined + each[0], oracle + each[1]
        assert each[2].status == Status.converged and each[2].members.all()
    assert refined < 1.3 * oracle


def test_honest_clients_of_unequal_noise_keep_what_is_better(problem, rng):
    """Eight with much noise, two with little, and nobody says so: the two would lose by the mean."""
    for reports, truth, _ in zip(*problem, strict=True):
        noise = np.where(np.arange(CLIENTS) < 8, 1.0, 0.1)[:, None, None]
        given = truth + noise * (reports - truth)
        found = clair(given)
        assert found.status == Status.unequal_noise and found.members.all()
        np.testing.assert_array_equal(found.declined, np.arange(CLIENTS) >= 8)
        np.testing.assert_array_equal(found.refined[8:], given[8:])
        own, refined = (np.square(each - truth).sum((1, 2)) for each in (given, found.refined))
        assert (refined[:8] < own[:8]).all()
        helped = clair(given, samples=1 / noise.ravel() ** 2)
        assert helped.status == Status.converged and not helped.declined.any()
        assert (np.square(helped.refined - truth).sum((1, 2)) < own).all()


def test_clean_data_have_weights_of_exactly_one(problem):
    for reports in problem[0]:
        found = clair(reports)
        assert found.status == Status.converged and found.members.all() and not found.declined.any()
        np.testing.assert_array_equal(found.influence, 1)


def test_too_few_numbers_to_tell_refine_nothing(rng):
    """q (p − r) of 6: the row space takes in the stranger, and everyone is near."""
    weights = rng.normal(size=(6, 3, 1)) @ rng.normal(size=(1, 3)) + 0.1 * rng.normal(size=(6, 3, 3))
    weights[:2] += rng.normal(size=(2, 3, 3))
    found = clair(weights)
    assert found.status == Status.too_small and not found.members.any()
    np.testing.assert_array_equal(found.refined, weights)


def squares_of(points):
    return jnp.asarray(np.square(points[:, None] - points[None]).sum(2))


shifts, declines = jax.jit(common_shifts), jax.jit(declining)
EVERYONE, EQUAL = jnp.ones(CLIENTS, bool), jnp.ones(CLIENTS)


def test_who_is_moved_together_is_seen_and_counted(rng):
    points = rng.normal(size=(CLIENTS, 400))
    np.testing.assert_array_equal(shifts(squares_of(points), EVERYONE, 400.0, EQUAL), 1)
    along = rng.normal(size=400) / 20
    for distances in ([20] * 4, [15, 20, 30, 45]):
        points[:4] += np.outer(distances, along)
        np.testing.assert_array_equal(shifts(squares_of(points), EVERYONE, 400.0, EQUAL), [4] * 4 + [1] * 6)
    # Two to one side and two to the other; who is out of the vote is out of this, whatever it holds.
    points = rng.normal(size=(CLIENTS, 400))
    points[:4] += np.outer([25, 25, -25, -25], along)
    members = jnp.arange(CLIENTS) != 9
    found = shifts(squares_of(points).at[9].set(jnp.inf).at[:, 9].set(jnp.inf), members, 400.0, EQUAL)
    np.testing.assert_array_equal(found, [2] * 4 + [1] * 6)


def test_who_declines_is_by_the_noise_that_pairs_show(rng):
    """Against the definition: a member's own squared noise, solved for from all ‖W_k − W̄‖², beside the mean's."""
    noise = np.array([1, 1, 1, 1, 1, 1, 1, 1, 0.05, 0.3])
    points = rng.normal(size=(CLIENTS, 400)) * noise[:, None]
    weights = np.array([1, 1, 1, 1, 1, 1, 1, 0, 1, 1.0])
    share = weights / weights.sum()
    to_mean = np.square(points - share @ points).sum(1)
    table = np.diag(1 - 2 * share) + share**2  # E‖W_k − W̄‖² = (1 − 2π_k) e_k + Σ π_j² e_j
    own = np.linalg.solve(table, to_mean)
    expected = (weights > 0) & (own < 1.5 * (share**2 @ own))
    found = declines(squares_of(points), jnp.asarray(weights), jnp.int32(400))
    np.testing.assert_array_equal(found, expected)
    assert found[8] and not found[7]
