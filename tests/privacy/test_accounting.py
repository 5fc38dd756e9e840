"""ε against the closed form for Gaussians, against quadrature for sampled ones, and the noise for a given ε."""

import importlib
import itertools
import logging
import math
import subprocess
import sys

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from clairjax import privacy
from clairjax.privacy import _compose


DELTA = 1e-5
ADD, REPLACE = "add-or-remove-one", "replace-one"
MOVES = {ADD: 1.0, REPLACE: 2.0}  # of the clipped sum, in clip norms

both = pytest.mark.parametrize("adjacency", [ADD, REPLACE])


def bisect(function, low, high):
    """Where a decreasing function of arrays crosses zero."""
    for _ in range(200):
        middle = (low + high) / 2
        above = function(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2


def gaussian_delta(mu, epsilon):
    """Balle and Wang 2018, theorem 8: δ(ε) of N(0, 1) against N(μ, 1)."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def exact(sigma, rounds, adjacency, delta=DELTA):
    mu = MOVES[adjacency] * math.sqrt(rounds) / sigma
    return float(bisect(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, 100.0))


class Mixture:
    """(1 − q) N(centre, σ²) + q N(moved, σ²)."""

    def __init__(self, sigma, rate, centre, moved):
        self.sigma, self.parts = sigma, [(1 - rate, centre), (rate, moved)]

    def log_pdf(self, x):
        scale = math.log(self.sigma * math.sqrt(2 * math.pi))
        logs = [math.log(w) - ((x - c) / self.sigma) ** 2 / 2 - scale for w, c in self.parts if w > 0]
        return np.logaddexp.reduce(logs)

    def upper(self, x):
        return sum(w * ndtr((c - x) / self.sigma) for w, c in self.parts)


def pairs(sigma, rate, adjacency):
    """The two sides of a neighbouring pair in the worst case, in each order that is not another one's mirror."""
    nobody, user = Mixture(sigma, rate, 0, 0), Mixture(sigma, rate, 0, 1)
    if adjacency == ADD:
        return [(user, nobody), (nobody, user)]
    return [(user, Mixture(sigma, rate, 0, -1))]


def tail(first, second, level):
    """∫ (p − e^level q)₊ for a ratio p/q that is monotone, for an array of levels."""
    far = 40.0 + 40 * first.sigma
    ratio = lambda x: first.log_pdf(x) - second.log_pdf(x)
    rising = ratio(np.asarray(1.0)) > ratio(np.asarray(-1.0))
    sign = -1.0 if rising else 1.0
    edge = bisect(lambda x: sign * (ratio(x) - level), np.full_like(level, -far), np.full_like(level, far))
    p, q = (m.upper(edge) if rising else 1 - m.upper(edge) for m in (first, second))
    return np.maximum(p - np.exp(level) * q, 0)


def delta_by_quadrature(sigma, rate, rounds, adjacency, epsilon):
    """One or two rounds: the second in closed form, the first on a grid."""
    found = []
    for first, second in pairs(sigma, rate, adjacency):
        if rounds == 1:
            found.append(tail(first, second, np.asarray([epsilon]))[0])
            continue
        x = np.linspace(-12 * sigma - 1, 12 * sigma + 1, 4001)
        lost = first.log_pdf(x) - second.log_pdf(x)
        found.append(np.trapezoid(np.exp(first.log_pdf(x)) * tail(first, second, epsilon - lost), x))
    return max(found)


class TestWithoutSampling:
    def test_the_figures_of_the_papers_setting(self):
        assert privacy.epsilon(20.0, 200, delta=DELTA, adjacency=ADD) == pytest.approx(2.943, abs=5e-4)
        assert privacy.epsilon(20.0, 200, delta=DELTA, adjacency=REPLACE) == pytest.approx(6.573, abs=5e-4)

    @both
    @pytest.mark.parametrize(("sigma", "rounds"), [(0.5, 1), (1.3, 3), (20.0, 200), (300.0, 1000), (1e4, 1)])
    def test_it_is_the_closed_form(self, adjacency, sigma, rounds):
        found = privacy.epsilon(sigma, rounds, delta=DELTA, adjacency=adjacency)
        assert found == pytest.approx(exact(sigma, rounds, adjacency), rel=1e-6, abs=1e-9)

    @both
    def test_the_closed_form_is_what_the_loss_distribution_gives(self, adjacency):
        """By dp-accounting's grid of privacy losses, for both relations."""
        relation = _compose._relation(adjacency)
        accountant = dp_accounting.pld.PLDAccountant(relation)
        accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(20.0), 200))
        found = privacy.epsilon(20.0, 200, delta=DELTA, adjacency=adjacency)
        assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)

    @pytest.mark.parametrize("accountant", ["pld", "rdp"])
    def test_replacing_a_user_is_half_the_noise(self, accountant):
        for sigma, rounds in itertools.product((2.0, 20.0), (1, 100)):
            replaced = privacy.epsilon(sigma, rounds, delta=DELTA, adjacency=REPLACE, accountant=accountant)
            halved = privacy.epsilon(sigma / 2, rounds, delta=DELTA, adjacency=ADD, accountant=accountant)
            assert replaced == pytest.approx(halved, rel=1e-9)

    def test_the_rates_of_remark_4_1_and_of_a_4(self):
        """min over α of the conversion of αT/(2σ²) and of 2αT/σ², on a grid of our own."""
        alpha = np.linspace(1.05, 200, 40_000)
        conversion = np.log1p(-1 / alpha) - np.log(DELTA * alpha) / (alpha - 1)
        for adjacency, cost in ((ADD, alpha * 200 / (2 * 20**2)), (REPLACE, 2 * alpha * 200 / 20**2)):
            found = privacy.epsilon(20.0, 200, delta=DELTA, adjacency=adjacency, accountant="rdp")
            assert found == pytest.approx((cost + conversion).min(), rel=2e-3)

    @pytest.mark.parametrize("rounds", [1, 40, 400])
    def test_theorem_5_2_promises_too_little(self, rounds):
        """Where it says ε = 1."""
        sigma = 2 * math.sqrt(rounds * math.log(1 / DELTA))
        assert privacy.epsilon(sigma, rounds, delta=DELTA, adjacency=REPLACE) == pytest.approx(1.11, abs=5e-3)
        assert privacy.epsilon(sigma, rounds, delta=DELTA, adjacency=ADD) == pytest.approx(0.52, abs=5e-3)


class TestPoissonSampling:
    @both
    @pytest.mark.parametrize("rounds", [1, 2])
    @pytest.mark.parametrize(("sigma", "rate"), [(0.8, 0.1), (1.5, 0.5), (3.0, 0.9), (0.6, 0.02)])
    def test_by_quadrature(self, adjacency, rounds, sigma, rate):
        """At the ε found the exact δ is at most δ; a little below it, it is more."""
        found = privacy.epsilon(sigma, rounds, delta=DELTA, sampling_rate=rate, adjacency=adjacency)
        exact_delta = lambda epsilon: delta_by_quadrature(sigma, rate, rounds, adjacency, epsilon)
        assert exact_delta(found) <= DELTA * (1 + 1e-5)
        assert exact_delta(found - 1e-3 * min(1, found)) > DELTA

    @both
    def test_everyone_is_the_limit(self, adjacency):
        ask = lambda rate: privacy.epsilon(4.0, 20, delta=DELTA, sampling_rate=rate, adjacency=adjacency)
        assert ask(1 - 1e-9) == pytest.approx(ask(1.0), rel=1e-3)
        assert ask(1 - 1e-9) <= ask(1.0)

    @both
    def test_more_noise_fewer_rounds_and_rarer_users_cost_less(self, adjacency):
        ask = lambda sigma, rounds, rate: privacy.epsilon(
            sigma, rounds, delta=DELTA, sampling_rate=rate, adjacency=adjacency
        )
        middle = ask(2.0, 20, 0.2)
        assert ask(2.2, 20, 0.2) < middle and ask(2.0, 18, 0.2) < middle and ask(2.0, 20, 0.18) < middle

    @both
    def test_many_rounds_that_lose_little_each(self, adjacency):
        """Together nearly one Gaussian, of shift q√T/σ, where dp-accounting's default grid is off."""
        found = privacy.epsilon(400.0, 2000, delta=DELTA, sampling_rate=0.5, adjacency=adjacency)
        mu = MOVES[adjacency] * 0.5 * math.sqrt(2000) / 400
        limit = float(bisect(lambda epsilon: gaussian_delta(mu, epsilon) - DELTA, 0.0, 100.0))
        assert found == pytest.approx(limit, rel=2e-3)


GRID = [(0.4, 1), (0.7, 1), (1.0, 30), (4.0, 200), (50.0, 200), (2000.0, 10)]


@both
@pytest.mark.parametrize(("sigma", "rounds"), GRID)
def test_renyi_is_never_below(adjacency, sigma, rounds):
    ask = lambda accountant: privacy.epsilon(sigma, rounds, delta=DELTA, adjacency=adjacency, accountant=accountant)
    assert ask("pld") <= ask("rdp")


@pytest.mark.parametrize(("sigma", "rounds"), GRID)
@pytest.mark.parametrize("rate", [0.9, 0.1, 0.02])
def test_renyi_is_never_below_when_sampled(sigma, rounds, rate):
    ask = lambda accountant: privacy.epsilon(
        sigma, rounds, delta=DELTA, sampling_rate=rate, adjacency=ADD, accountant=accountant
    )
    assert ask("pld") <= ask("rdp")


class TestWithoutReplacement:
    """Sets of fixed size, from the event that their sampler writes."""

    def ask(self, sigma, rounds, size, clients=1000):
        event = privacy.FixedSize(size).rounds(sigma, rounds, clients=clients)
        return privacy.Ledger((event,)).epsilon(delta=DELTA, adjacency=REPLACE, accountant="rdp")

    @pytest.mark.parametrize("size", [10, 100, 500])
    @pytest.mark.parametrize("sigma", [2.0, 4.0, 10.0])
    def test_it_is_a_bound(self, sigma, size):
        """The exact δ of one round is that of γP + (1 − γ)Q against Q, for P and Q two clip norms apart."""
        first, second = Mixture(sigma, size / 1000, 0, 2), Mixture(sigma, 0, 0, 0)
        assert tail(first, second, np.asarray([self.ask(sigma, 1, size)]))[0] <= DELTA

    def test_it_is_never_above_no_sampling(self):
        """The published bound is (size 500: 22.6 against 22.0)."""
        whole = privacy.epsilon(4.0, 200, delta=DELTA, adjacency=REPLACE, accountant="rdp")
        found = [self.ask(4.0, 200, size) for size in (1, 10, 100, 300, 500, 900, 1000)]
        assert found == sorted(found) and found[-1] == pytest.approx(whole) and found[2] < whole / 2


class TestNoiseForAnEpsilon:
    @pytest.mark.parametrize(("rounds", "expected"), [(40, 23.60), (100, 37.31), (200, 52.76), (400, 74.61)])
    def test_the_papers_settings_exactly(self, rounds, expected):
        for adjacency in (ADD, REPLACE):
            found = privacy.noise_multiplier(1.0, rounds, delta=DELTA, adjacency=adjacency)
            assert found == pytest.approx(MOVES[adjacency] * expected, rel=5e-3)

    @both
    @pytest.mark.parametrize("target", [0.05, 0.3, 1.0, 5.0, 20.0])
    @pytest.mark.parametrize("accountant", ["pld", "rdp"])
    @pytest.mark.parametrize("rounds", [1, 300])
    def test_it_gives_what_was_asked_for(self, target, adjacency, accountant, rounds):
        self.check(target, rounds, 1.0, adjacency, accountant)

    @pytest.mark.parametrize(
        ("target", "rounds", "rate", "adjacency", "accountant"),
        [(0.05, 50, 0.5, ADD, "pld"), (20.0, 50, 0.5, REPLACE, "pld"), (1.0, 50, 0.1, ADD, "rdp")],
    )
    def test_it_does_when_sampled(self, target, rounds, rate, adjacency, accountant):
        self.check(target, rounds, rate, adjacency, accountant)

    @pytest.mark.slow
    @both
    @pytest.mark.parametrize("target", [0.05, 0.2, 1.0, 5.0, 20.0])
    @pytest.mark.parametrize("rate", [0.5, 0.05, 0.005])
    @pytest.mark.parametrize("rounds", [1, 200])
    def test_it_does_in_every_setting(self, target, rate, rounds, adjacency):
        for accountant in ("pld", "rdp") if adjacency == ADD else ("pld",):
            self.check(target, rounds, rate, adjacency, accountant)

    def check(self, target, rounds, rate, adjacency, accountant):
        settings = {"delta": DELTA, "sampling_rate": rate, "adjacency": adjacency, "accountant": accountant}
        sigma = privacy.noise_multiplier(target, rounds, **settings)
        assert 0 <= target - privacy.epsilon(sigma, rounds, **settings) <= 1e-3


REFUSED = {
    "no rounds": ({"rounds": 0}, "rounds must be an integer of at least 1, got 0."),
    "a truth value of rounds": ({"rounds": True}, "rounds must be an integer of at least 1, got True."),
    "nobody sampled": ({"sampling_rate": 0.0}, "sampling_rate must be in (0, 1], got 0.0."),
    "more than everyone": ({"sampling_rate": 1.5}, "sampling_rate must be in (0, 1], got 1.5."),
    "a rate that is no number": ({"sampling_rate": math.nan}, "sampling_rate must be in (0, 1], got nan."),
    "no delta": ({"delta": 0.0}, "delta must be above 0 and below 1, got 0.0."),
    "delta of one": ({"delta": 1.0}, "delta must be above 0 and below 1, got 1.0."),
    "Rényi, sampled, replaced": (
        {"sampling_rate": 0.5, "accountant": "rdp"},
        'accountant must be "pld" for Poisson sampling under "replace-one" (dp-accounting has no Rényi bound for it), '
        "got 'rdp'.",
    ),
}
NOISE = {
    "negative": (-1.0, "noise_multiplier must be at least 0 and finite, got -1.0."),
    "not a number": (math.nan, "noise_multiplier must be at least 0 and finite, got nan."),
    "infinite": (math.inf, "noise_multiplier must be at least 0 and finite, got inf."),
}


class TestBadInput:
    def message(self, function, *arguments, **options):
        with pytest.raises(ValueError) as caught:
            function(*arguments, **options)
        return str(caught.value)

    @pytest.mark.parametrize("case", REFUSED)
    def test_of_both(self, case):
        wrong, message = REFUSED[case]
        options = {"rounds": 10, "delta": DELTA} | wrong
        assert self.message(privacy.epsilon, 2.0, **options) == message
        assert self.message(privacy.noise_multiplier, 2.0, **options) == message

    @pytest.mark.parametrize("case", NOISE)
    def test_noise(self, case):
        value, message = NOISE[case]
        assert self.message(privacy.epsilon, value, 10, delta=DELTA) == message

    @pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
    def test_epsilon(self, target):
        assert self.message(privacy.noise_multiplier, target, 10, delta=DELTA) == (
            f"epsilon must be positive and finite, got {target}."
        )

    def test_names(self):
        """The type checker of the tests is faster than the library, so the library is asked below it."""
        ask = lambda *names: self.message(_compose.check_question, (), DELTA, *names)
        assert ask("replace", "pld") == 'adjacency must be "replace-one" or "add-or-remove-one", got \'replace\'.'
        assert ask("replace-one", "gdp") == 'accountant must be "pld" or "rdp", got \'gdp\'.'

    def test_delta_that_sampling_alone_meets(self):
        message = self.message(privacy.noise_multiplier, 1.0, 2, delta=1e-3, sampling_rate=1e-4)
        assert message == "delta must be below a user's chance to be sampled at all, 0.0002, got 0.001."

    def test_a_traced_noise(self):
        ask = jax.jit(lambda sigma: privacy.epsilon(sigma, 10, delta=DELTA))
        with pytest.raises(ValueError) as caught:
            ask(jnp.asarray(2.0))
        assert str(caught.value).split("\n")[0] == (
            "noise_multiplier must be known when epsilon is asked for (outside jit, vmap and grad), "
            "got a traced value."
        )

    @both
    @pytest.mark.parametrize("accountant", ["pld", "rdp"])
    def test_no_noise_is_no_privacy_and_says_so(self, adjacency, accountant):
        with pytest.warns(
            UserWarning, match=r"^noise_multiplier is 0: .* not private at all, and epsilon is infinite\.$"
        ):
            found = privacy.epsilon(0.0, 10, delta=DELTA, adjacency=adjacency, accountant=accountant)
        assert found == math.inf


class TestNoiseOfAnySize:
    """Squares of it may be more, or less, than a float holds."""

    settings = pytest.mark.parametrize(
        "options",
        [{}, {"accountant": "rdp"}, {"sampling_rate": 0.1}, {"sampling_rate": 0.1, "accountant": "rdp"}],
    )

    @settings
    @pytest.mark.parametrize("sigma", [5e-324, 1e-200])
    def test_none_to_speak_of(self, sigma, options):
        with pytest.warns(UserWarning, match=r"^noise_multiplier is as good as 0: .* epsilon is infinite\.$"):
            assert privacy.epsilon(sigma, 10, delta=DELTA, adjacency=ADD, **options) == math.inf

    @settings
    @pytest.mark.parametrize("sigma", [1e8, 1e200, 1e308])
    def test_more_than_enough(self, sigma, options):
        """Total variation is below μ/√(2π), and so below δ."""
        assert privacy.epsilon(sigma, 10, delta=DELTA, adjacency=ADD, **options) == 0

    @both
    def test_nothing_is_lost_by_it(self, adjacency):
        mu = 0.5 * DELTA
        assert gaussian_delta(mu, 0.0) < DELTA
        assert privacy.epsilon(MOVES[adjacency] / mu, 1, delta=DELTA, adjacency=adjacency) == 0

    @both
    def test_sampling_is_not_credited_where_nothing_protects(self, adjacency):
        """Where a grid would take minutes."""
        ask = lambda rate: privacy.epsilon(1e-3, 3, delta=DELTA, sampling_rate=rate, adjacency=adjacency)
        assert ask(0.1) == ask(1.0) > 1e6


class TestTheExtra:
    def test_is_not_imported_with_the_package(self):
        probe = "import sys, clairjax.privacy; print('dp_accounting' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() == "False", done.stderr

    def test_is_named_when_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "dp_accounting", None)
        importlib.invalidate_caches()
        with pytest.raises(ImportError) as caught:
            privacy.epsilon(2.0, 10, delta=DELTA)
        assert (
            str(caught.value)
            == 'Privacy accounting needs dp-accounting: install it with pip install "clairjax[privacy]".'
        )

    def test_its_log_is_silent_during_the_call_alone(self, caplog):
        with caplog.at_level(logging.DEBUG):
            privacy.epsilon(1.0, 200, delta=DELTA, sampling_rate=0.5, adjacency=ADD, accountant="rdp")
            assert not caplog.records
            logging.getLogger("absl").warning("afterwards")
            assert [record.message for record in caplog.records] == ["afterwards"]
