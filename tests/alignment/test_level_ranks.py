"""Clients of several ranks as the vote sees them: what is cut, what stays, and that the vote is right."""

import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import LowRankMatrices, clair
from clairjax.alignment import level_ranks, refine


OUT, IN = 32, 40
NINE = [4, 4, 8, 16, 4, 8, 4, 16, 4]


def spectrum(rng, values):
    """Factors of a matrix with these singular values, turned by a matrix of their own."""
    left, right = (np.linalg.qr(rng.normal(size=(size, len(values))))[0] for size in (OUT, IN))
    turn = rng.normal(size=(len(values),) * 2) + 3 * np.eye(len(values))
    return left * values @ turn, np.linalg.solve(turn, right.T)


def weights(clients, scale=1.0, dtype=np.float64):
    ups, downs = ([side.astype(dtype) for side in sides] for sides in zip(*clients, strict=True))
    return LowRankMatrices(ups, downs, scale)


def falling(rank):
    """A spectrum without a gap, as of trained adapters."""
    return 0.6 ** np.arange(rank)


def planted(rng, ranks, *, stranger=None, shared=1, noise=0.05):
    """B · A = a common part + an own part in a shared row space + noise in the other directions alike; of a rank too
    small for that, the first so many directions."""
    space, up, down = (rng.normal(size=size) for size in ((shared, IN), (OUT, 1), (1, IN)))
    clients = []
    for k, rank in enumerate(ranks):
        rest = max(rank - 1 - shared, 0)
        rows = rng.normal(size=space.shape) if k == stranger else space
        left = [up, rng.normal(size=(OUT, shared)), noise * rng.normal(size=(OUT, rest))]
        right = [down, rows, rng.normal(size=(rest, IN))]
        clients.append((np.concatenate(left, 1)[:, :rank], np.concatenate(right)[:rank]))
    return clients


def tolerance(dtype):
    return 1e-12 if dtype == jnp.float64 else 1e-5


def truncated(matrices, rank):
    left, values, right = np.linalg.svd(np.asarray(matrices, np.float64), full_matrices=False)
    return left[..., :rank] * values[..., None, :rank] @ right[..., :rank, :]


def test_of_equal_ranks_it_is_the_same_object(rng, dtype):
    same = weights([spectrum(rng, falling(5)) for _ in range(4)], dtype=dtype)
    assert level_ranks(same) is same


def test_without_a_gap_larger_ranks_are_cut_and_smaller_ones_stay(rng, dtype):
    ranks = [6, 3, 9, 4, 4, 9, 3]
    scale = np.linspace(0.5, 2, len(ranks)).astype(dtype)
    given = weights([spectrum(rng, falling(rank)) for rank in ranks], scale, dtype)
    found = level_ranks(given)
    assert found.dtype == dtype and found.shape == given.shape and found.up.shape[2] == 4
    assert found.ranks.tolist() == [4, 3, 4, 4, 4, 4, 3]
    np.testing.assert_allclose(found.dense(), truncated(given.dense(), 4), atol=tolerance(dtype))


def test_everyone_has_as_much_noise_and_what_is_before_it_stays(rng, dtype):
    """Two plain directions, and three of noise at the level: a part of the noise, all of it, or some that is drawn."""
    noises = {rank: 0.1 * (1 + rng.random(rank - 2)) for rank in (2, 4, 5, 12)}
    ranks = [12, 5, 2, 5, 4, 12, 5]
    given = weights([spectrum(rng, np.r_[9, 6, np.sort(noises[rank])[::-1]]) for rank in ranks], dtype=dtype)
    found = level_ranks(given)
    assert found.ranks.tolist() == [5] * 7
    plain = truncated(given.dense(), 2)
    rest = np.asarray(found.dense(), np.float64) - plain
    squares = {rank: np.sum(rest[k] ** 2) for k, rank in enumerate(ranks)}
    own = {rank: np.sum(noise**2) for rank, noise in noises.items()}
    close = {"rtol": 100 * tolerance(dtype)}
    np.testing.assert_allclose(squares[5], own[5], **close)
    # Of ten directions of noise, seven more than the level has, 2/32 is in the columns of the plain ones.
    np.testing.assert_allclose(squares[12], own[12] / 10 * (3 - 7 * 2 / OUT), **close)
    np.testing.assert_allclose(squares[2], own[5], rtol=0.5)
    np.testing.assert_allclose(squares[4], own[4] + own[5] / 3, rtol=0.3)
    whole = [k for k, rank in enumerate(ranks) if rank >= 5]
    np.testing.assert_allclose(truncated(found.dense(), 2)[whole], plain[whole], atol=10 * tolerance(dtype))
    np.testing.assert_array_equal(level_ranks(given).up, found.up)
    drawn, other = rest[[2, 4]].reshape(2, -1)
    assert abs(drawn @ other) < 0.3 * np.linalg.norm(drawn) * np.linalg.norm(other)


@pytest.mark.parametrize("minority", [1, 4, 30])
def test_no_minority_takes_a_plain_direction_from_the_others(minority, rng):
    """Whatever its rank and spectrum: without a gap, with one in another place, zeros, a single direction."""
    honest = [spectrum(rng, np.r_[4, 3, 2, 0.1 * np.ones(rank - 3)]) for rank in (8, 8, 16, 8, 16)]
    others = [falling(minority), 100.0 ** -np.arange(minority), np.zeros(minority), np.eye(minority)[0]]
    given = weights([*honest, *(spectrum(rng, values) for values in others)])
    kept = truncated(given.dense(), 3)[:5]
    np.testing.assert_allclose(truncated(level_ranks(given).dense(), 3)[:5], kept, atol=tolerance(given.dtype))


def test_what_counts_is_the_products_rank(rng, dtype):
    """Not that of factors with zeros, repeated columns or more columns than a side has."""
    plain = [spectrum(rng, falling(4)) for _ in range(5)]
    repeated = [(np.concatenate([up, up], 1), np.concatenate([down, -0.5 * down])) for up, down in plain[:3]]
    wide = [(np.pad(up, ((0, 0), (0, 60))), rng.normal(size=(64, IN))) for up, _ in plain[3:4]]
    wide[0][1][:4] = plain[3][1]
    given = weights([*repeated, *wide, plain[4]], dtype=dtype)
    found = level_ranks(given)
    assert found.ranks.tolist() == [4] * 5
    np.testing.assert_allclose(found.dense(), given.dense(), atol=tolerance(dtype))


def test_it_refuses_what_clair_refuses(rng):
    clients = [spectrum(rng, falling(rank)) for rank in (2, 3, 4)]
    clients[1][0][0, 0] = np.nan
    with pytest.raises(ValueError, match=r"^weights must be finite, got NaN or infinite values from client\(s\) 1\.$"):
        level_ranks(weights(clients))


@pytest.mark.parametrize("noise", [0.01, 0.2])
@pytest.mark.parametrize("stranger", [None, 4, 2, 3], ids=["nobody", "of rank 4", "of rank 8", "of rank 16"])
def test_rank_alone_sets_nobody_apart_and_hides_nobody(stranger, noise, rng):
    given = weights(planted(rng, NINE, stranger=stranger, noise=noise), dtype=np.float32)
    found = clair(level_ranks(given))
    assert found.members.tolist() == [k != stranger for k in range(len(NINE))]


@pytest.mark.parametrize("few", [1, 4])
def test_a_rank_too_small_for_what_is_shared_costs_the_others_nothing(few, rng):
    """At rank 1 nine clients do not show a row space of dimension 3."""
    given = weights(planted(rng, [1] * few + [8] * (9 - few), stranger=8, shared=3), dtype=np.float32)
    found = clair(level_ranks(given))
    assert found.members.tolist() == [True] * 8 + [False] and found.rank == 3


def test_who_has_no_noise_is_no_group_apart(rng):
    """A third of the clients are of a rank with room for what they learned alone."""
    given = weights(planted(rng, [2, 4, 8] * 3, stranger=4), dtype=np.float32)
    assert clair(given).members.tolist() == [k != 4 and k % 3 < 2 for k in range(9)]
    assert clair(level_ranks(given)).members.tolist() == [k != 4 for k in range(9)]


def test_members_are_refined_as_they_are(rng):
    """Of the whole factors, a direction beyond the level included."""
    given = weights(planted(rng, NINE, stranger=4), dtype=np.float32)
    found = clair(level_ranks(given))
    refined = refine(given, found.members)
    np.testing.assert_allclose(refined.dense()[4], given.dense()[4], atol=1e-4)
    inside = jnp.matmul(given.dense() - refined.dense(), found.projector)
    assert np.abs(inside[3]).max() < 0.1 * np.abs(given.dense()[3]).max()
    assert refined.own_up.shape[2] == 16
