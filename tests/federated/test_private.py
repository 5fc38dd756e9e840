"""Privacy of a round: one clipping of the whole update, noise on the sum, a public divisor, σ for an ε."""

import equinox as eqx
import fleet
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import federated, privacy
from clairjax.federated import Centaur, Cohort, DPFedAvg, Local, Privacy, sgd
from clairjax.federated._pmtl import square_distance
from clairjax.federated._private import difference, prepared


LOCAL = Local(sgd(5.0), batch=None)  # every update is far longer than the clip norm
CLIP = 0.01


def train(clients, strategy, **more):
    given = {"rounds": 1, "key": jax.random.key(3)} | more
    return federated.train(fleet.network(), strategy, clients, **given)


def length(tree):
    return np.sqrt(sum((leaf.astype(float) ** 2).sum() for leaf in fleet.leaves(tree)))


def test_a_round_moves_by_at_most_the_clip_norm_of_each_client(clients):
    """All leaves together, over the expected number: with a coin for each, more may come than are expected."""
    sampler = privacy.Poisson(0.5)
    found = train(clients, DPFedAvg(Privacy(CLIP, noise_multiplier=0.0), LOCAL, tune=0), sampler=sampler)
    moved = length(difference(found.server, fleet.network()))
    assert 0.1 * CLIP < moved <= 6 / 3 * CLIP * (1 + 1e-5)


def test_one_client_is_clipped_to_the_norm_exactly(clients):
    """Not each leaf by itself: the length of the whole is the clip norm."""
    found = train(clients, DPFedAvg(Privacy(CLIP, noise_multiplier=0.0), LOCAL, tune=0), sampler=1)
    np.testing.assert_allclose(length(difference(found.server, fleet.network())), CLIP, rtol=1e-4)


def test_noise_has_the_deviation_that_is_accounted_for(rng):
    """σζ/expected for each entry, whatever the leaf, and independent between leaves."""
    strategy = DPFedAvg(Privacy(0.3, noise_multiplier=4.0))
    like = {"a": jnp.zeros((60, 50), jnp.float32), "b": jnp.zeros((50, 60), jnp.float32)}
    total = federated.Sum(jnp.zeros(6000, jnp.float32))
    cohort = Cohort(jnp.zeros(7, jnp.int32), jnp.ones(7, bool), 5.0)
    noise = strategy.release(total, cohort, like, key=jax.random.key(1))
    a, b = (np.asarray(noise[name]) / (4.0 * 0.3 / 5.0) for name in "ab")
    for value in (a, b):
        assert abs(value.var() - 1) < 5 * np.sqrt(2 / value.size) and abs(value.mean()) < 5 / np.sqrt(value.size)
    assert abs((a * b.reshape(a.shape)).mean()) < 5 / np.sqrt(a.size)


QUESTIONS = [(1.0, 200, 1.0, "add-or-remove-one"), (1.0, 200, 1.0, "replace-one"), (2.0, 50, 0.2, "replace-one")]


@pytest.mark.parametrize(("epsilon", "rounds", "rate", "adjacency"), QUESTIONS)
def test_sigma_gives_back_its_epsilon(epsilon, rounds, rate, adjacency):
    """Within 1e-3 below the target, as the ledger says of what the run did."""
    pytest.importorskip("dp_accounting")
    asked = DPFedAvg(Privacy(CLIP, epsilon=epsilon, delta=1e-5, adjacency=adjacency))
    sampler = privacy.Poisson(rate)
    ledger = federated._private.spent(prepared(asked, sampler, rounds), sampler, rounds, 500)
    got = ledger.epsilon(delta=1e-5, adjacency=adjacency)
    assert epsilon - 1e-3 <= got <= epsilon


@pytest.fixture(scope="module")
def centaur():
    """Clients and a run of two rounds."""
    clients = fleet.federation(np.random.default_rng(4), validation=0.3)
    strategy = Centaur(Privacy(CLIP, noise_multiplier=3.0), LOCAL, head_epochs=1, tune=1)
    return clients, train(clients, strategy, rounds=2, evaluate_every=1)


def test_the_run_says_what_it_spent(centaur):
    """The event is the sampler's: its rounds, rate and users."""
    (event,) = centaur[1].privacy.events
    assert (event.noise_multiplier, event.rounds, event.sampling_rate, event.clients) == (3.0, 2, 1.0, 6)
    assert event.sampling == "poisson"


def test_last_and_best_round_are_both_told(centaur):
    found = centaur[1]
    assert found.validation_accuracies.max() == found.validation_accuracies[found.best]
    assert "after round 2" in str(found) and "no epsilon covers it" in str(found)


def test_heads_of_centaur_stay_with_their_clients(centaur):
    """What the server holds has the leaves of the body alone; each client's head is its own."""
    clients, found = centaur
    body = [leaf.shape for leaf in fleet.leaves(fleet.network().dense)]
    assert [leaf.shape for leaf in fleet.leaves(found.server)] == body
    assert len(np.unique(np.asarray(found.states.head.bias), axis=0)) == len(clients)


def test_an_update_that_is_not_finite_counts_as_nothing():
    strategy = DPFedAvg(Privacy(CLIP, noise_multiplier=0.0))
    broken = eqx.tree_at(lambda m: m.head.bias, fleet.network(), jnp.full(fleet.CLASSES, jnp.nan, jnp.float32))
    assert (strategy.clipped(broken).value == 0).all()
    np.testing.assert_allclose(length(strategy.clipped(fleet.network()).value), CLIP, rtol=1e-4)


def test_the_pull_of_pmtl_has_a_slope():
    """Unlike the authors' code: λ/2‖w_k − w‖² pulls with λ(w_k − w)."""
    model = fleet.network()
    other = jax.tree.map(lambda leaf: leaf + 0.5, model)
    slope = eqx.filter_grad(lambda m: square_distance(m, model) / 2)(other)
    for leaf in fleet.leaves(slope):
        np.testing.assert_allclose(leaf, 0.5, rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"privacy must be given by one of noise_multiplier and epsilon, got neither\."),
        ({"noise_multiplier": 1.0, "epsilon": 1.0}, r"privacy must be given by one of .*, got both\."),
        ({"noise_multiplier": -1.0}, r"noise_multiplier must be at least 0 and finite, got -1\.0\."),
        ({"clip_norm": 0.0, "epsilon": 1.0}, r"clip_norm must be positive and finite, got 0\.0\."),
    ],
)
def test_bad_settings_are_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        Privacy(**{"clip_norm": CLIP} | given)


ONE = jnp.asarray(1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clip_norm": jnp.asarray(-1.0)}, r"clip_norm must be positive and finite, got -1\.0\."),
        ({"clip_norm": jnp.asarray(jnp.nan)}, r"clip_norm must be positive and finite, got nan\."),
        (
            {"noise_multiplier": jnp.asarray(-1.0), "clip_norm": jnp.asarray(1.0)},
            r"noise_multiplier must be at least 0",
        ),
        (
            {"clip_norm": ONE, "noise_multiplier": None},
            r"privacy must be given by one of .*, got neither\.",
        ),
        ({"clip_norm": ONE, "epsilon": 1.0}, r"privacy must be given by one of .*, got both\."),
    ],
)
def test_numbers_that_are_arrays_are_refused_before_a_run(given, message):
    """They may be tracers when they are given: a clip norm below 0 would be no clip at all."""
    asked = DPFedAvg(Privacy(**{"noise_multiplier": 1.0} | given))
    with pytest.raises(ValueError, match=message):
        prepared(asked, privacy.Poisson(1.0), 10)


def test_an_epsilon_out_of_reach_names_the_smallest():
    pytest.importorskip("dp_accounting")
    asked = DPFedAvg(Privacy(CLIP, epsilon=1e-7, delta=1e-9))
    with pytest.raises(ValueError, match=r"epsilon must be at least \S+ for 200 rounds at delta = 1e-09 under "):
        prepared(asked, privacy.Poisson(1.0), 200)
    with pytest.raises(ValueError, match=r"sampler must be a privacy\.Poisson or None where privacy\.epsilon"):
        prepared(asked, privacy.FixedSize(3), 200)
