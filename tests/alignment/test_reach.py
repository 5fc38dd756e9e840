"""One verdict from many layers: reaches by hand, what they do not depend on, and what votes add."""

import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.alignment._reach import FAR, NEGLIGIBLE, pooled_verdict


def judged(whole, outside=None, members=None, present=None):
    """As if nobody was voted out and all were in every layer, unless told."""
    everyone = np.ones(np.shape(whole)[:2], bool)
    outside = whole if outside is None else outside
    members, present = (everyone if each is None else each for each in (members, present))
    reaches, belongs = pooled_verdict(*map(jnp.asarray, (whole, outside, members, present)))
    return np.asarray(reaches), np.asarray(belongs)


def between(points):
    """Distances of clients that are points, [layers, clients, clients]."""
    return np.linalg.norm(points[:, :, None] - points[:, None], axis=-1)


def simplex(far, count=9):
    """Clients in the corners of a simplex, the last equally far from all others."""
    table = np.where(np.eye(count, dtype=bool), 0.0, 1.0)
    table[-1, :-1] = table[:-1, -1] = far
    return table[None]


@pytest.mark.parametrize("count", [3, 8, 9])
def test_reaches_by_hand(count, dtype):
    reaches, belongs = judged(simplex(1.5, count).astype(dtype))
    assert reaches.dtype == dtype
    np.testing.assert_allclose(reaches, [1] * (count - 1) + [1.5], rtol=1e-6)
    assert belongs.all()


@pytest.mark.parametrize("side", [0.99, 1.01])
def test_of_two_kinds_it_is_the_geometric_mean(side):
    reaches, belongs = judged(simplex(FAR * side), simplex(FAR * side**3))
    np.testing.assert_allclose(reaches[-1], FAR * side**2, rtol=1e-12)
    assert belongs.tolist() == [True] * 8 + [side < 1]


def test_reaches_are_of_ratios_and_of_no_order(rng):
    points = rng.normal(size=(4, 9, 60))
    points[:, 2] *= 3
    whole, outside = between(points), between(points[:, :, :40])
    reaches, belongs = judged(whole, outside)
    np.testing.assert_array_equal(belongs, np.arange(9) != 2)
    units = np.array([1.0, 1e-3, 7.0, 1e5])[:, None, None]
    np.testing.assert_allclose(judged(whole * units, 5 * units * outside)[0], reaches, rtol=1e-12)
    order = rng.permutation(9)
    shuffled = [table[:, order][:, :, order] for table in (whole, outside)]
    np.testing.assert_allclose(judged(*shuffled)[0], reaches[order], rtol=1e-12)


def test_a_client_far_in_one_layer_of_many_stays(rng):
    whole = between(rng.normal(size=(8, 9, 60)))
    whole[0, 3] *= 2
    whole[0, :, 3] *= 2
    assert judged(whole)[1].all()


def test_most_layers_votes_are_enough_and_half_are_not(rng):
    whole = between(rng.normal(size=(4, 9, 60)))
    members = np.ones((4, 9), bool)
    members[:2, 1] = members[:3, 2] = False
    np.testing.assert_array_equal(judged(whole, members=members)[1], np.arange(9) != 2)
    present = np.ones((4, 9), bool)
    present[2:, 1] = False  # its two layers are all it is in
    assert np.flatnonzero(~judged(whole, members=members, present=present)[1]).tolist() == [1, 2]


def test_layers_that_a_client_is_not_in_say_nothing_of_it(rng):
    """What stands in their place in the tables is not looked at."""
    points = rng.normal(size=(3, 8, 200))
    points[:, 6] *= 3
    whole, present = between(points), np.ones((3, 8), bool)
    present[0, [5, 6]] = present[1:, 7] = present[:, 4] = False
    hidden = ~(present[:, :, None] & present[:, None, :])
    reaches, belongs = judged(np.where(hidden, 1e6, whole), present=present)
    np.testing.assert_array_equal(judged(np.where(hidden, np.nan, whole), present=present)[0], reaches)
    assert np.isnan(reaches[4]) and np.abs(np.log(reaches[[0, 1, 2, 3, 5, 7]])).max() < 0.2 and reaches[6] > FAR
    np.testing.assert_array_equal(belongs, ~np.isin(np.arange(8), [4, 6]))


def test_equal_clients_all_belong():
    reaches, belongs = judged(np.zeros((2, 5, 5)))
    np.testing.assert_array_equal(reaches, np.ones(5))
    assert belongs.all()


def test_rounding_outside_the_row_space_sets_nobody_apart(rng):
    """As of clients whose row spaces are one to the last digit: all but a stranger are near."""
    whole = between(rng.normal(size=(2, 9, 60)))
    noise = np.abs(rng.normal(size=(2, 9, 9))) ** 4
    outside = 0.01 * NEGLIGIBLE * (noise + noise.swapaxes(1, 2)) / noise.max()
    assert judged(whole, outside)[1].all()
    outside[:, 0] = outside[:, :, 0] = whole[:, 0]
    np.testing.assert_array_equal(judged(whole, outside)[1], np.arange(9) > 0)


def test_no_layer_judges_nobody():
    reaches, belongs = judged(simplex(1.0), present=np.zeros((1, 9), bool))
    assert np.isnan(reaches).all() and not belongs.any()


def test_strangers_do_not_set_what_is_usual_for_who_is_in_other_layers():
    """Three of ten are far in one layer, where most pairs hold one of them; others are in another layer alone."""
    far, near = np.ones((10, 10)), np.ones((13, 13))
    far[7:] = far[:, 7:] = 3.5
    near[:10, :10] = far
    present = np.zeros((2, 13), bool)
    present[0, :10] = present[1, 10:] = True
    reaches, belongs = judged(np.stack([near, near]), present=present)
    np.testing.assert_allclose(reaches, [1] * 7 + [3.5] * 3 + [1] * 3, rtol=1e-6)
    np.testing.assert_array_equal(belongs, (np.arange(13) < 7) | (np.arange(13) > 9))


def test_pairs_that_are_not_to_be_compared_count_for_nothing(rng):
    whole = between(rng.normal(size=(8, 9, 60)))
    group = np.arange(9) >= 4
    same = np.broadcast_to(group[:, None] & group, whole.shape).copy()
    same[0] = False
    reaches, belongs = judged(np.where(same, np.nan, whole), whole)
    assert belongs.all() and np.abs(np.log(reaches)).max() < 0.3


def test_reaches_are_finite_in_float32():
    far = simplex(1e25).astype(np.float32)
    reaches, belongs = judged(far)
    assert np.isfinite(reaches).all() and belongs.tolist() == [True] * 8 + [False]
