"""What a run says it spent: parts that add up, survive jit and vmap, and are not mistaken for what they are not."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import privacy
from clairjax.privacy import FixedSize, GaussianRounds, Ledger, Poisson


DELTA = 1e-5
ADD, REPLACE = "add-or-remove-one", "replace-one"

START = GaussianRounds(15.0, 5, label="initialisation")
ROUNDS = GaussianRounds(20.0, 40)
SAMPLED = GaussianRounds(2.0, 20, 0.1)
both = pytest.mark.parametrize("adjacency", [ADD, REPLACE])


def refused(function, *arguments, **options):
    with pytest.raises(ValueError) as caught:
        function(*arguments, **options)
    return str(caught.value)


class TestParts:
    @both
    @pytest.mark.parametrize("accountant", ["pld", "rdp"])
    def test_gaussians_add_up_to_one(self, adjacency, accountant):
        """The precisions T/σ² add."""
        together = (5 / 15.0**2 + 40 / 20.0**2) ** -0.5
        options = {"delta": DELTA, "adjacency": adjacency, "accountant": accountant}
        found = Ledger((START, ROUNDS)).epsilon(**options)
        assert found == pytest.approx(privacy.epsilon(together, 1, **options), rel=1e-9)

    @both
    def test_a_run_cut_in_two_is_the_run(self, adjacency):
        options = {"delta": DELTA, "adjacency": adjacency}
        halves = Ledger((GaussianRounds(2.0, 8, 0.1),)) + Ledger((GaussianRounds(2.0, 12, 0.1),))
        assert halves.epsilon(**options) == pytest.approx(Ledger((SAMPLED,)).epsilon(**options), rel=1e-9)

    @both
    def test_sampled_and_whole_rounds_together(self, adjacency):
        """More than either alone; at most what the parts guarantee by basic composition, δ shared between them."""
        whole = GaussianRounds(10.0, 5)
        ask = lambda *events, delta=DELTA: Ledger(events).epsilon(delta=delta, adjacency=adjacency)
        mixed = ask(whole, SAMPLED)
        assert mixed == pytest.approx(ask(SAMPLED, whole), rel=1e-9)
        assert max(ask(whole), ask(SAMPLED)) < mixed <= ask(whole, delta=DELTA / 2) + ask(SAMPLED, delta=DELTA / 2)
        assert mixed <= ask(whole, GaussianRounds(2.0, 20))

    def test_parts_by_label(self):
        run = Ledger((START, ROUNDS))
        assert run.part("initialisation").events == (START,) and run.part("rounds").events == (ROUNDS,)
        assert run.part("validation").epsilon(delta=DELTA) == 0

    def test_no_noise_in_one_part_is_no_privacy(self):
        with pytest.warns(UserWarning, match="not private at all"):
            assert Ledger((START, GaussianRounds(0.0, 1))).epsilon(delta=DELTA) == math.inf


class TestInsideATrace:
    def run(self, noise_multiplier):
        return Ledger((GaussianRounds(noise_multiplier, 5, label="initialisation"), GaussianRounds(20.0, 40)))

    def test_it_comes_out_of_jit_and_of_vmap(self, dtype):
        expected = self.run(15.0).epsilon(delta=DELTA)
        noise = jnp.asarray(15.0, dtype)
        one = jax.jit(self.run)(noise)
        lanes = jax.vmap(lambda _: self.run(noise))(jnp.arange(3))
        for ledger in (one, lanes, jax.tree.map(lambda leaf: leaf[0], lanes)):
            assert ledger.epsilon(delta=DELTA) == pytest.approx(expected, rel=1e-6)
            assert [event.label for event in ledger.events] == ["initialisation", "rounds"]

    def test_replicates_that_differ_have_no_common_epsilon(self):
        lanes = jax.vmap(self.run)(jnp.asarray([15.0, 16.0]))
        assert refused(lanes.epsilon, delta=DELTA) == (
            "noise_multiplier must be one number (take one replicate of the result), got [15. 16.]."
        )
        second = jax.tree.map(lambda leaf: leaf[1], lanes)
        assert second.epsilon(delta=DELTA) == pytest.approx(self.run(16.0).epsilon(delta=DELTA), rel=1e-6)

    @pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
    def test_it_is_not_asked_there(self, transform):
        ask = transform(lambda noise: jnp.asarray(self.run(noise).epsilon(delta=DELTA)))
        argument = jnp.ones(2) if transform is jax.vmap else jnp.asarray(1.0)
        assert refused(ask, argument).split("\n")[0] == (
            "noise_multiplier must be known when epsilon is asked for (outside jit, vmap and grad), "
            "got a traced value."
        )


class TestDeltaAgainstClients:
    def ask(self, delta):
        return Ledger((START, GaussianRounds(20.0, 40, clients=1000))).epsilon(delta=delta)

    def test_too_large_a_delta_is_warned_of(self):
        with pytest.warns(UserWarning) as caught:
            self.ask(1e-3)
        assert str(caught[0].message) == (
            "delta = 0.001 is not below 1/clients = 0.001: publishing one user, chosen at random, in the clear would "
            "satisfy it. Take delta well below 1/clients."
        )

    def test_a_small_one_is_not(self):
        assert self.ask(9e-4) > 0  # a warning would be an error here


class TestReport:
    def test_says_all_that_an_epsilon_needs(self):
        sampled = Poisson(0.1).rounds(2.0, 20, label="fine tuning")
        ledger = Ledger((START, ROUNDS, sampled))
        text = ledger.report(delta=DELTA, adjacency=ADD)
        epsilon = ledger.epsilon(delta=DELTA, adjacency=ADD)
        first, neighbours, *rest = text.splitlines()
        assert first == f"epsilon = {epsilon:.4g} at delta = 1e-05 for one user under {ADD} (pld)."
        assert neighbours == (
            "Neighbours: one user more or fewer, by zero-out: the user's updates are there or are zero (the clipped "
            "sum moves by the clip norm)."
        )
        alone = [Ledger((event,)).epsilon(delta=DELTA, adjacency=ADD) for event in ledger.events]
        everyone, sometimes = (
            "every user in every round (q = 1)",
            "each user in a round with probability q = 0.1 (Poisson)",
        )
        assert rest[:4] == [
            "Covered:",
            f"- initialisation: T = 5, noise multiplier 15, {everyone}; alone {alone[0]:.4g}",
            f"- rounds: T = 40, noise multiplier 20, {everyone}; alone {alone[1]:.4g}",
            f"- fine tuning: T = 20, noise multiplier 2, {sometimes}; alone {alone[2]:.4g}",
        ]
        for uncovered in ("hyper-parameters", "clip norm", "best round", "heads"):
            assert uncovered in text.split("Not covered:")[1]

    @both
    @pytest.mark.parametrize(
        "words",
        [
            ("number of users", "public", "same for both neighbours"),  # zero-out: n does not move
            ("key", "guess", "secret", "new for each run", "system's entropy", "privacy.secret_key", "used once"),
            ("floating point", "real numbers", "low-order bits", "unless", "kernels.grid_gaussian_mechanism"),
        ],
    )
    def test_what_the_number_rests_on_is_said_beside_it(self, adjacency, words):
        """In one line each."""
        lines = Ledger((ROUNDS,)).report(delta=DELTA, adjacency=adjacency).split("Not covered:")[1].splitlines()
        assert any(all(word in line for word in words) for line in lines)

    def test_a_sum_of_ledgers_is_for_independent_keys(self):
        assert all("independent keys" in " ".join(text.__doc__.split()) for text in (Ledger, Ledger.__add__))

    def test_a_start_that_is_not_recorded_is_not_covered(self):
        recorded, silent = (Ledger(events).report(delta=DELTA) for events in ((START, ROUNDS), (ROUNDS,)))
        assert "the initialisation, none being recorded" in silent.split("Not covered:")[1]
        assert "none being recorded" not in recorded

    def test_of_sets_of_a_fixed_size(self):
        ledger = Ledger((FixedSize(25).rounds(4.0, 100, clients=100),))
        text = ledger.report(delta=DELTA, accountant="rdp")
        assert "a fixed number of users in a round, share q = 0.25" in text

    def test_without_noise(self):
        with pytest.warns(UserWarning, match="not private at all"):
            assert Ledger((GaussianRounds(0.0, 1),)).report(delta=DELTA).startswith("epsilon = inf at delta = 1e-05")


class TestSamplersOwnTheirEvents:
    def test_poisson_is_an_independent_coin(self, key):
        draw = jax.jit(jax.vmap(lambda k: Poisson(0.3).draw(50, key=k)))
        present = draw(jax.random.split(key, 4000))
        share = present.mean(0)
        assert jnp.abs(share - 0.3).max() < 4.5 * math.sqrt(0.21 / 4000)
        counts = present.sum(1)
        assert abs(float(counts.var()) / (50 * 0.21) - 1) < 4 * math.sqrt(2 / 4000)  # the number is random, too
        assert Poisson(0.3).normaliser(50) == pytest.approx(15)

    @pytest.mark.optimised
    def test_a_small_rate_is_drawn_at_that_rate(self):
        """Uniform floats in float32, multiples of 2⁻²³, would draw at 1.2e-7 for the last."""
        for rate, draws in ((1e-6, 2**26), (1e-8, 2**27)):
            count = jax.jit(lambda key, rate=rate: Poisson(rate).draw(2**22, key=key).sum())
            keys = jax.random.split(jax.random.key(1), draws // 2**22)
            found, expected = int(jax.lax.map(count, keys).sum()), rate * draws
            assert abs(found - expected) < 3 * math.sqrt(expected)

    @pytest.mark.parametrize("rate", [2.0**-32, 1e-8, 1e-6, 0.1, 1 / 3, 0.3, 1 - 2.0**-53, 1.0])
    def test_no_rate_is_exceeded(self, rate):
        """In exact arithmetic, by less than one side of the coin; sums are divided by what is drawn in the mean."""
        drawn = Fraction(Poisson(rate).sides, 2**32)
        assert 0 <= Fraction(rate) - drawn < Fraction(1, 2**32)
        assert Poisson(rate).normaliser(1000) == float(1000 * drawn)

    def test_the_coin_is_one_draw_of_bits(self, key):
        bits = np.asarray(jax.random.bits(key, (1000,), jnp.uint32)).astype(np.float64) / 2**32
        for rate in (0.25, 0.3, 1 - 2.0**-53):
            np.testing.assert_array_equal(Poisson(rate).draw(1000, key=key), bits < math.floor(rate * 2**32) / 2**32)

    def test_everyone_takes_part_at_rate_one(self, key):
        assert Poisson().draw(7, key=key).all() and Poisson().normaliser(7) == 7
        assert Poisson().rounds(2.0, 3).everyone

    def test_a_fixed_size_is_fixed_and_fair(self, key):
        draw = jax.jit(jax.vmap(lambda k: FixedSize(3).draw(10, key=k)))
        present = draw(jax.random.split(key, 4000))
        assert (present.sum(1) == 3).all() and FixedSize(3).normaliser(10) == 3
        assert jnp.abs(present.mean(0) - 0.3).max() < 4.5 * math.sqrt(0.21 / 4000)
        together = (present[:, :, None] & present[:, None, :]).mean(0)  # each pair in 3·2/(10·9) of the rounds
        pairs = jnp.stack([together[i, j] for i, j in itertools.combinations(range(10), 2)])
        assert jnp.abs(pairs - 1 / 15).max() < 4.5 * math.sqrt(1 / 15 / 4000)

    def test_they_write_what_they_did(self):
        poisson = Poisson(0.25).rounds(4.0, 100, clients=40, label="start")
        assert poisson == GaussianRounds(4.0, 100, 0.25, "poisson", 40, "start")
        assert FixedSize(10).rounds(4.0, 100, clients=40) == GaussianRounds(4.0, 100, 0.25, "without replacement", 40)

    def test_one_is_not_accounted_as_the_other(self):
        ask = lambda accountant, adjacency: refused(
            Ledger((FixedSize(10).rounds(4.0, 100, clients=40),)).epsilon,
            delta=DELTA,
            accountant=accountant,
            adjacency=adjacency,
        )
        assert ask("pld", REPLACE) == "accountant must be \"rdp\" for sampling without replacement, got 'pld'."
        assert ask("rdp", ADD) == (
            'adjacency must be "replace-one" for sampling without replacement (its sample size says how many users '
            "there are), got 'add-or-remove-one'."
        )
        fixed = Ledger((FixedSize(10).rounds(4.0, 100, clients=40),)).epsilon(delta=DELTA, accountant="rdp")
        coin = Ledger((Poisson(0.25).rounds(4.0, 100),)).epsilon(delta=DELTA, accountant="pld")
        assert fixed > 1.05 * coin  # the two have different prices

    def test_sets_of_everyone_are_everyone(self):
        event = FixedSize(40).rounds(4.0, 100, clients=40)
        expected = privacy.epsilon(4.0, 100, delta=DELTA, adjacency=ADD)
        assert Ledger((event,)).epsilon(delta=DELTA, adjacency=ADD) == expected


WRONG = {
    "no users": (lambda: FixedSize(0), "size must be an integer of at least 1, got 0."),
    "more than there are": (
        lambda: FixedSize(5).rounds(1.0, 1, clients=4),
        "size must be at most the number of clients, 4, got 5.",
    ),
    "more to draw than there are": (
        lambda: FixedSize(5).draw(4, key=jax.random.key(0)),
        "size must be at most the number of clients, 4, got 5.",
    ),
    "a rate of nothing": (lambda: Poisson(0.0), "rate must be in (0, 1], got 0.0."),
    "a rate below the coin": (
        lambda: Poisson(1e-10),
        "rate must be at least 2^-32 = 2.33e-10, one side of the coin, got 1e-10.",
    ),
    "a rate above one": (lambda: Poisson(1.5), "rate must be in (0, 1], got 1.5."),
    "a set from nobody knows how many": (
        lambda: GaussianRounds(1.0, 1, 0.5, "without replacement"),
        "clients must be given for sampling without replacement, got None.",
    ),
    "half a user": (
        lambda: GaussianRounds(1.0, 1, 0.5, "without replacement", 5),
        "sampling_rate must be a whole number of clients over clients = 5 for sampling without replacement, got 0.5.",
    ),
    "no clients": (lambda: GaussianRounds(1.0, 1, clients=0), "clients must be an integer of at least 1, got 0."),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused(case):
    make, message = WRONG[case]
    assert refused(make) == message
