"""One verdict from many layers: what is named and how, and what it does not depend on."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clairjax as cj
from clairjax.alignment import evidence, pool


LAYERS, OUT, IN, RANK = 6, 24, 20, 4


def fleet(rng, count=9, *, own_start=False, rank=RANK, noise=0.6):
    """Factors (B, A) of clients with one task, [client][layer]; each from one A a layer, or from its own."""
    task = rng.normal(size=(LAYERS, OUT, IN))
    starts = rng.normal(size=(LAYERS, rank, IN))
    return [
        [
            ((task[m] + noise * rng.normal(size=(OUT, IN))) @ np.linalg.pinv(down), down)
            for m in range(LAYERS)
            for down in [rng.normal(size=(rank, IN)) if own_start else starts[m] + 0.1 * rng.normal(size=(rank, IN))]
        ]
        for _ in range(count)
    ]


def judged(clients, have=None):
    """`have`: of each layer the clients that are in it."""
    have = have or [range(len(clients))] * LAYERS
    layers = [
        cj.LowRankMatrices([clients[k][m][0] for k in here], [clients[k][m][1] for k in here])
        for m, here in enumerate(have)
    ]
    return pool(layers, have)


def scaled(client, factor):
    return [(factor * up, down) for up, down in client]


def stranger(rng, like):
    return [(rng.normal(size=up.shape) * up.std(), down) for up, down in like]


KINDS = {
    "sign-flipped": lambda rng, like: scaled(like, -1),
    "unrelated": stranger,
    "member": lambda rng, like: like,
}


@pytest.mark.parametrize("own_start", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_direction_is_named_whatever_its_size_and_the_others_stay(kind, own_start, rng):
    clients = fleet(rng, own_start=own_start)
    clients[2] = KINDS[kind](rng, clients[2])
    for factor in (1, 3, 10, 1 / 50):
        found = judged([*clients[:2], scaled(clients[2], factor), *clients[3:]])
        word = "rescaled" if kind == "member" and factor != 1 else kind
        assert found.words == ["member"] * 2 + [word] + ["member"] * 6
        np.testing.assert_array_equal(found.members, (np.arange(9) != 2) | (kind == "member"))
        np.testing.assert_allclose(found.size[2], factor * judged(clients).size[2], rtol=0.02)


@pytest.mark.parametrize("count", [5, 6, 11])
def test_as_many_flips_as_are_no_majority_are_flips(count, rng):
    """However many collude, and whether by one adapter or by their own."""
    bad = (count - 1) // 2
    clients = fleet(rng, count)
    words = ["sign-flipped"] * bad + ["member"] * (count - bad)
    assert judged([scaled(each, -1) for each in clients[:bad]] + clients[bad:]).words == words


def test_strangers_that_agree_with_each_other_are_named_with_one_another(rng):
    clients, others = fleet(rng, 12), fleet(rng, 3)
    clients[:3], clients[5] = others, stranger(rng, clients[5])
    found = judged(clients)
    assert found.words == ["unrelated"] * 3 + ["member"] * 2 + ["unrelated"] + ["member"] * 6
    expected = np.zeros((12, 12), bool)
    expected[:3, :3] = ~np.eye(3, dtype=bool)
    np.testing.assert_array_equal(found.together, expected)


def along(rng, degrees, lengths=1.0, noise=0.3):
    """Clients from one A, whose tasks lie on an arc between two; `lengths`: how much of them each has learned."""
    tasks, starts = rng.normal(size=(LAYERS, 2, OUT, IN)), rng.normal(size=(LAYERS, RANK, IN))
    lengths = np.broadcast_to(lengths, len(degrees))[:, None]
    shares = lengths * [(np.cos(angle), np.sin(angle)) for angle in np.deg2rad(degrees)]
    return [
        [
            ((np.tensordot(share, tasks[m], 1) + noise * rng.normal(size=(OUT, IN))) @ np.linalg.pinv(down), down)
            for m, down in enumerate(starts)
        ]
        for share in shares
    ]


@pytest.mark.parametrize("noise", [0.3, 0.8])
def test_a_client_at_the_edge_is_a_member_if_it_has_a_neighbour(noise, rng):
    """It agrees with most as little as a stranger does, and with a member as members do. Alone it is named, and so
    are two that have each other alone."""
    middle = [0] * 7
    clients = along(rng, [*middle, 40, 75, 0], noise=noise)
    clients[9] = stranger(rng, clients[9])
    found = judged(clients)
    assert found.relative[8] < 0.4 and found.words == ["member"] * 9 + ["unrelated"]
    assert np.flatnonzero(found.together[8]).tolist() == [7] and not found.together[:8].any()
    assert judged(along(rng, [*middle, 0, 75])).words == ["member"] * 8 + ["unrelated"]
    assert judged(along(rng, [*middle, 75, 75])).words == ["member"] * 7 + ["unrelated"] * 2


def test_a_client_that_learned_little_is_a_member_if_it_has_of_its_own_what_others_have(rng):
    """A stranger with as little in common has more of its own. Where members have more of their own than in common,
    nothing tells the two apart, and both are named."""
    for noise, little in ((0.4, True), (1.5, False)):
        clients = along(rng, np.zeros(9), [1] * 8 + [0.1], noise)
        found = judged(clients)
        assert found.relative[8] < 0.45 and found.members.tolist() == [True] * 8 + [little]
        assert judged([*clients[:8], scaled(clients[8], 3 if little else 1)]).words[8] == "unrelated"


def test_clients_that_spread_are_members_where_they_have_most_in_common_and_a_stranger_is_not(rng):
    """Their agreements differ by more than a third of the usual one, and the others explain each of them."""
    clients = along(rng, np.linspace(0, 130, 10))
    clients[4] = stranger(rng, clients[4])
    found = judged(clients)
    assert found.spread > 0.3 * found.usual and not found.decided
    assert found.words == ["member"] * 4 + ["undecided"] + ["member"] * 5


@pytest.mark.parametrize("factors", [np.ones(8), np.arange(1.0, 9.0)])
def test_copies_have_one_vote_together_however_scaled(factors, rng):
    """Eight of fifteen send what a stranger sent."""
    clients = fleet(rng, 7)
    copied = stranger(rng, clients[0])
    found = judged([*(scaled(copied, factor) for factor in factors), *clients])
    assert found.words[8:] == ["member"] * 7 and set(found.words[:8]) == {"unrelated"}
    group = np.arange(15) < 8
    np.testing.assert_array_equal(found.copies, group[:, None] & group & ~np.eye(15, dtype=bool))


def test_where_few_are_left_without_copies_all_vote(rng):
    one, other = fleet(rng, 2)
    assert judged([one] * 4 + [stranger(rng, other)]).words == ["member"] * 4 + ["unrelated"]
    assert judged([one] * 3).words == ["member"] * 3


def planted(rng, count, poisoned, common=1.0, noise=0.2):
    """What clients learn is their own, in a row space that all share but those who are poisoned."""
    clients = [[] for _ in range(count)]
    for _ in range(LAYERS):
        shared, up, down = rng.normal(size=(2, IN)), rng.normal(size=(OUT, 1)), rng.normal(size=(1, IN))
        for k in range(count):
            rows = rng.normal(size=(2, IN)) if k in poisoned else shared
            rest = rng.normal(size=(OUT, RANK)), rng.normal(size=(RANK, IN))
            left = [common * up, rng.normal(size=(OUT, 2)), noise * rest[0]]
            clients[k].append((np.concatenate(left, 1), np.concatenate([down, rows, rest[1]])))
    return clients


@pytest.mark.parametrize("common", [0.0, 1.0, 2.5])
@pytest.mark.parametrize(("count", "poisoned"), [(6, [1]), (10, [0, 4, 5]), (20, [19])])
def test_a_poisoned_row_space_is_named_whether_directions_tell_or_not(count, poisoned, common, rng):
    words = judged(planted(rng, count, poisoned, common)).words
    assert [k for k, word in enumerate(words) if word == "other rows"] == poisoned
    assert {word for k, word in enumerate(words) if k not in poisoned} == {"member" if common else "undecided"}


def test_clients_with_tasks_of_their_own_are_undecided_and_sizes_are_told(rng):
    clients = [fleet(rng, 1)[0] for _ in range(9)]
    clients[3] = scaled(clients[3], 20)
    found = judged(clients)
    assert found.words == ["undecided"] * 3 + ["rescaled"] + ["undecided"] * 5
    assert not found.members.any() and not found.decided


@pytest.mark.parametrize("count", [3, 4, 60])
def test_of_honest_clients_nobody_is_named(count, rng):
    for start in (False, True):
        assert judged(fleet(rng, count, own_start=start)).words == ["member"] * count


def test_layers_that_a_client_is_not_in_say_nothing_of_it(rng):
    clients = fleet(rng, 8)
    clients[6] = stranger(rng, clients[6])
    have = [[k for k in range(8) if k != 4 and (k != 7 or m > 2) and (k != 6 or m < 3)] for m in range(LAYERS)]
    found = judged(clients, have)
    assert found.words == ["member"] * 4 + ["absent"] + ["member", "unrelated", "member"]
    assert np.isnan(found.layer_size[3:, 6]).all() and not np.isnan(found.layer_agreement[:, :4]).any()


def test_it_is_of_the_clients_and_not_of_their_order_factors_or_coordinates(rng):
    clients = fleet(rng, 8)
    clients[1], clients[5] = stranger(rng, clients[1]), scaled(clients[5], -4)
    found = judged(clients)
    order = rng.permutation(8)
    left, right = (np.linalg.qr(rng.normal(size=(side, side)))[0] for side in (OUT, IN))
    mixed = [rng.normal(size=(RANK, RANK)) + 3 * np.eye(RANK) for _ in clients]
    wide = [np.zeros((OUT, k % 3)) for k in range(8)]
    others = {
        "order": ([clients[k] for k in order], order),
        "factors": (
            [[(b @ g, np.linalg.solve(g, a)) for b, a in each] for each, g in zip(clients, mixed, strict=True)],
            range(8),
        ),
        "coordinates": ([[(left @ b, a @ right) for b, a in each] for each in clients], range(8)),
        "empty directions": (
            [[(np.hstack([b, z]), np.vstack([a, np.ones((z.shape[1], IN))])) for b, a in each]
             for each, z in zip(clients, wide, strict=True)],
            range(8),
        ),
    }  # fmt: skip
    for name, (same, places) in others.items():
        again = judged(same)
        assert again.words == [found.words[k] for k in places], name
        for field in ("agreement", "relative", "surprise", "size", "rows"):
            expected = getattr(found, field)[np.array(places)]
            np.testing.assert_allclose(
                getattr(again, field), expected, rtol=1e-4, atol=1e-6, err_msg=f"{name} {field}"
            )


def test_ranks_alone_set_nobody_apart(rng):
    """A larger rank or another start has a smaller cosine with all others, and the overlap says so."""
    clients = [
        fleet(np.random.default_rng(5), 9, rank=rank)[k] for k, rank in enumerate([4, 4, 8, 16, 4, 8, 4, 16, 4])
    ]
    assert judged(clients).words == ["member"] * 9


def test_evidence_by_the_definition(rng):
    """Factors, with zeros among them, and their products; against dense linear algebra."""
    up, down = rng.normal(size=(5, 9, 3)), rng.normal(size=(5, 3, 7))
    down[1, 2], up[4] = 0, 0
    dense = up @ down
    ranks = [np.linalg.matrix_rank(each) for each in dense]
    projectors = [np.linalg.pinv(each) @ each for each in dense]
    unit = dense / np.maximum(np.linalg.norm(dense, axis=(1, 2)), 1e-300)[:, None, None]
    own_grams = [each.T @ each for each in unit - unit[:4].mean(0)]  # a client of zeros is not there
    for seen, whole_mean in ((evidence((up, down)), False), (evidence(dense), True)):
        np.testing.assert_array_equal(seen.present, np.arange(5) < 4)
        for j in range(4):
            for k in range(4):
                one, two = dense[j], dense[k]
                sizes = np.linalg.norm(one) * np.linalg.norm(two)
                grams = one.T @ one, two.T @ two
                np.testing.assert_allclose(seen.cosine[j, k], np.sum(one * two) / sizes, atol=1e-12)
                overlap = np.sum(projectors[j] * projectors[k]) / np.sqrt(ranks[j] * ranks[k])
                np.testing.assert_allclose(seen.overlap[j, k], overlap, atol=1e-9)
                np.testing.assert_allclose(seen.chance[j, k], np.sum(grams[0] * grams[1]) / sizes**2 / 9, atol=1e-12)
                rows = np.sum(grams[0] * grams[1]) / np.linalg.norm(grams[0]) / np.linalg.norm(grams[1])
                np.testing.assert_allclose(seen.rows[j, k], rows, atol=1e-12)
                own = [own_grams[place] / np.linalg.norm(own_grams[place]) for place in (j, k)]
                if whole_mean:  # factors take its leading directions
                    np.testing.assert_allclose(seen.apart[j, k], np.sum(own[0] * own[1]), atol=1e-9)
        assert not seen.near.any() and seen.cosine[4].any() == False  # noqa: E712


@pytest.mark.parametrize("kind", ["factors", "matrices"])
def test_clients_of_zeros_change_nothing_for_the_others(kind, rng):
    """A cohort is filled up with empty places, as many as the devices ask for."""
    factors = rng.normal(size=(5, 9, 3)), rng.normal(size=(5, 3, 7))
    filled = [np.concatenate([each, np.zeros_like(each[:3])]) for each in factors]
    seen, beside = (evidence((up, down) if kind == "factors" else up @ down) for up, down in (factors, filled))
    for name in ("cosine", "rows", "overlap", "apart", "chance"):
        np.testing.assert_allclose(getattr(beside, name)[:5, :5], getattr(seen, name), rtol=1e-12, atol=1e-12)


def test_chance_is_the_variance_of_the_cosine_of_unrelated_columns(rng):
    down = rng.normal(size=(2, 3, 20))
    up = rng.normal(size=(400, 2, 15, 3))
    cosines = [evidence((each, down)).cosine[0, 1] for each in up]
    chance = np.mean([evidence((each, down)).chance[0, 1] for each in up])
    np.testing.assert_allclose(np.var(cosines), chance, rtol=4 * np.sqrt(2 / 400))


def test_inside_a_trace_it_says_the_same(rng):
    clients = fleet(rng, 7)
    clients[2], clients[4] = stranger(rng, clients[2]), scaled(clients[4], -3)
    up, down = (np.stack([[each[m][side] for each in clients] for m in range(LAYERS)]) for side in (0, 1))
    expected = pool([(cj.LowRankMatrices(b, a)) for b, a in zip(up, down, strict=True)])

    @jax.jit
    def traced(up, down):
        return pool(jax.lax.map(lambda factors: evidence(cj.LowRankMatrices(*factors)), (up, down)))

    for dtype in (jnp.float32, jnp.float64):
        found = traced(jnp.asarray(up, dtype), jnp.asarray(down, dtype))
        assert found.words == expected.words and found.agreement.dtype == dtype
        np.testing.assert_allclose(found.agreement, expected.agreement, rtol=1e-4, atol=1e-5)


def test_nothing_is_compiled_outside_a_trace(rng, caplog):
    layers = [rng.normal(size=(5, 11, 13)) for _ in range(2)]
    seen = [evidence((rng.normal(size=(5, 11, 3)), rng.normal(size=(5, 3, 13))))]
    with caplog.at_level("WARNING"), jax.log_compiles():
        assert len(pool([evidence(layer) for layer in layers] + seen).words) == 5
    assert not [each for each in caplog.messages if "ompil" in each]


ONES = np.ones((4, 3, 4))
REFUSED = {
    "no layer": ([], None, "layers must be at least one layer, got none."),
    "two clients": (
        [ONES[:2]],
        None,
        "layers[0] must be from at least 3 clients, for a majority to be defined, got 2.",
    ),
    "not a number": (
        [np.nan * ONES],
        None,
        "layers[0] must be finite, got NaN or infinite values from client(s) 0, 1, 2, 3.",
    ),
    "another number of clients": (
        [ONES, ONES[:3]],
        None,
        "layers[1] must be from 4 clients, as layers[0] is, if clients is None, got 3.",
    ),
    "too few places": ([ONES], [], "clients must be of as many layers as layers, got 0."),
    "too many": ([ONES], [range(4), [0]], "clients must be of as many layers as layers, 1, got more."),
    "places of others": (
        [ONES],
        [[0, 1]],
        "clients[0] must be 4 integers, the places of the clients of layers[0], got [0, 1].",
    ),
    "one place twice": ([ONES], [[0, 1, 1, 2]], "clients[0] must be different places, from 0, got [0, 1, 1, 2]."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(name):
    layers, clients, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pool(layers, clients)
