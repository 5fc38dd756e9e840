"""Clair: a round of it is what alignment's public functions make of the clients' changes, and strangers are named."""

import functools

import equinox as eqx
import fleet
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import alignment, federated, models
from clairjax.federated import Clair, Client, Cohort
from clairjax.federated._aligned import matrix


CLIENTS, FLIPPED, BROKEN, AWAY = 9, 4, 6, 8
DENSE = Clair(layers=lambda model: model.dense, own=lambda model: model.head)


def changes(rng):
    """A common change, and each client's own in one direction; one is flipped, one broken, one not in the round."""
    common, row = rng.standard_normal((6, 26)), rng.standard_normal(26)
    own = 0.3 * rng.standard_normal((CLIENTS, 6, 1)) * row + 0.02 * rng.standard_normal((CLIENTS, 6, 26))
    found = common + own
    found[FLIPPED] *= -1
    found[BROKEN, 2, 3] = np.nan
    found[AWAY] = 0
    return found.astype(np.float32)


@functools.cache
def jitted(strategy):
    return jax.jit(lambda *given: strategy.server_update(*given, key=jax.random.key(1)))


def after(strategy, given, present):
    numbers = jnp.arange(CLIENTS, dtype=jnp.int32)[::-1]  # slots in another order than the clients
    server, _ = strategy.start(fleet.network(), CLIENTS, key=jax.random.key(0))
    cohort = Cohort(numbers, jnp.asarray(present)[numbers], float(CLIENTS))
    return server, jitted(strategy)(server, [jnp.asarray(given)[numbers]], cohort)


def moves(strategy, before, now):
    """How far the layer of each client's own model moved."""
    row = jnp.zeros(1, jnp.int32)
    one = lambda k: Client(jnp.asarray(k, jnp.int32), row, row[0], row, row, fleet.CLASSES)
    own = eqx.filter(fleet.network(), federated.chosen(fleet.network(), strategy.own, "own"))
    model = lambda server, k: strategy.personal(server, own, one(k), key=jax.random.key(0))
    layer = lambda server, k: np.asarray(matrix(model(server, k).dense[0]))
    return np.stack([layer(now, k) - layer(before, k) for k in range(CLIENTS)])


@pytest.fixture(scope="module")
def round_(request):
    given = changes(np.random.default_rng(0))
    return given, *after(DENSE, given, np.arange(CLIENTS) != AWAY)


def test_members_get_what_refine_gives_them_and_others_keep_their_own(round_):
    given, before, now = round_
    members = ~np.isin(np.arange(CLIENTS), (FLIPPED, BROKEN, AWAY))
    expected = alignment.refine(np.nan_to_num(given), members)
    found = moves(DENSE, before, now)
    for k in (*np.flatnonzero(members), FLIPPED):
        np.testing.assert_allclose(found[k], expected[k], rtol=0, atol=2e-6)
    assert abs(expected[0] - given[0]).max() > 0.01  # the refinement is not nothing
    # Whoever was broken stays where it was; who was away gets the members' mean.
    assert abs(found[BROKEN]).max() < 1e-6
    np.testing.assert_allclose(found[AWAY], given[members].mean(0), rtol=0, atol=2e-6)


def test_a_contaminated_client_is_named_with_its_round(round_):
    verdicts = round_[2].verdicts
    assert verdicts.named == {FLIPPED: {"sign-flipped": (1, 1, 1)}, BROKEN: {"absent": (1, 1, 1)}}
    assert str(verdicts).splitlines()[0] == f"client {FLIPPED}: sign-flipped in 1 of 1 rounds, from 1 to 1"
    words = [alignment.VERDICTS[kind] for kind in np.delete(verdicts.latest, AWAY)]
    assert words == ["member"] * 4 + ["sign-flipped", "member", "absent", "member"]
    assert verdicts.latest[AWAY] == -1
    present = jnp.arange(CLIENTS) != 0
    again = verdicts.after(jnp.arange(CLIENTS), jnp.maximum(verdicts.latest, 0), present).after(
        jnp.arange(CLIENTS), jnp.full(CLIENTS, alignment.VERDICTS.index("unrelated")), present
    )
    assert again.named[FLIPPED] == {"sign-flipped": (2, 1, 2), "unrelated": (1, 3, 3)}
    assert set(again.named) == {FLIPPED, BROKEN}
    assert again.times[1].sum() == 3 and again.first[1].max() == 3  # once in three rounds is no name


def test_two_are_no_majority(round_):
    """In a round of two everybody keeps its own change, whatever it is, and nobody is named."""
    given = round_[0]
    before, now = after(DENSE, given, np.isin(np.arange(CLIENTS), (0, FLIPPED)))
    found = moves(DENSE, before, now)
    np.testing.assert_allclose(found[[0, FLIPPED]], given[[0, FLIPPED]], rtol=0, atol=2e-6)
    assert (np.delete(found, (0, FLIPPED), 0) == 0).all() and now.verdicts.named == {}


@pytest.mark.slow
def test_a_round_of_adapters_starts_from_a_new_a_and_no_b(clients):
    """The model computes what the change says; the product is in the weight, and nothing else has moved."""
    model = models.adapt(fleet.network(), lambda m: (*m.dense, m.head), 2, scale=3.0, key=jax.random.key(5))
    strategy = Clair(fleet.local(), shared="columns")
    run = federated.train(model, strategy, clients, rounds=2, key=jax.random.key(2))
    layers = run.server.model.dense[0], run.server.model.head
    for new, old in zip(layers, (model.dense[0], model.head), strict=True):
        assert (new.up == 0).all() and (new.base.bias == old.base.bias).all()
        assert abs(new.down - old.down).max() > 0.1 and abs(run.personal(1).head.base.weight).max() > 0
    moved = run.personal(1).dense[0].base.weight - model.dense[0].base.weight
    assert abs(moved).max() > 1e-3 and np.linalg.matrix_rank(moved, tol=1e-5) <= 6 * 2 * 2
    assert run.losses[1] < run.losses[0] and int(run.server.verdicts.round) == 2


def test_adapters_that_were_trained_before_are_part_of_the_start():
    model = models.adapt(fleet.network(), lambda m: m.dense, 2, key=jax.random.key(5))
    model = eqx.tree_at(lambda m: m.dense[0].up, model, jnp.ones((6, 2), jnp.float32))
    server, _ = Clair().start(model, 3, key=jax.random.key(0))
    np.testing.assert_allclose(matrix(server.model.dense[0]), matrix(model.dense[0]), rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"layers must be a function that picks at least one array of the model, got none\."),
        (
            {"layers": lambda m: m.head.weight},
            r"layers must be a function that picks adapters, or layers whose weight has two axes or more, got \w+\.",
        ),
        (
            {"layers": lambda m: m.dense, "own": lambda m: m.dense[0].bias},
            r"own must be a function that picks nothing of layers, got a part of them\.",
        ),
        ({"layers": lambda m: m}, r"layers must be a function that picks a layer or several, got Network\."),
        (
            {"layers": lambda m: (m.dense[0], m.head, m.dense[0])},
            r"layers must be a function that picks each layer once, got a layer or a part of it twice\.",
        ),
        ({"shared": "both"}, r'shared must be "rows" or "columns", got \'both\'\.'),
        ({"epochs": 0}, r"epochs must be an integer of at least 1, got 0\."),
    ],
)
def test_bad_input_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        Clair(**given).start(fleet.network(), 3, key=jax.random.key(0))
