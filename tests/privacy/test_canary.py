"""The audit's own guarantee, by mechanisms whose ε is known, and the worst case of the library's mechanism."""

import math
import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import privacy
from clairjax.kernels import gaussian_mechanism
from clairjax.privacy import FixedSize, GaussianCanary, Poisson
from clairjax.privacy._audit import STRICTER, _choose, _judge, _rates, _shift_bound


DELTA = 1e-5
REPLICATES = int(os.environ.get("CLAIRJAX_TEST_REPLICATES", "100"))
AUDITS = max(2, min(20, REPLICATES // 5))
ADD, REPLACE = "add-or-remove-one", "replace-one"
both = pytest.mark.parametrize("adjacency", [ADD, REPLACE])


def half_the_noise(values, clip_norm, noise_multiplier, *, normaliser, key):
    return gaussian_mechanism(values, clip_norm, noise_multiplier / 2, normaliser=normaliser, key=key)


def randomised_response(key, world):
    """Tells the truth with probability e/(1 + e): ε = 1 exactly, at every δ small enough."""
    truth = jax.random.bernoulli(key, math.e / (1 + math.e))
    return jnp.where(truth == world, 1.0, 0.0)


class TestTheGuarantee:
    def test_where_the_bound_can_be_attained(self):
        """Randomised response attains its ε, so the bound is wrong in up to 5 % of audits, and near ε in all."""
        ask = lambda key: privacy.audit(randomised_response, runs=4000, delta=0.0, key=key, chunk=8000).epsilon
        found = np.asarray([ask(key) for key in jax.random.split(jax.random.key(0), 200)])
        assert np.mean(found > 1) <= 0.05
        assert found.min() > 0.75 and abs(found.mean() - 0.9) < 0.03

    def test_more_confidence_proves_less(self, key):
        ask = lambda confidence: privacy.audit(
            randomised_response, runs=4000, delta=0.0, key=key, confidence=confidence, chunk=8000
        )
        assert ask(0.999).epsilon < ask(0.95).epsilon < ask(0.5).epsilon

    def test_the_names_of_the_worlds_and_the_sign_of_the_score_do_not_matter(self, key):
        ask = lambda release: privacy.audit(release, runs=4000, delta=DELTA, key=key, chunk=8000)
        shifted = lambda key, world, sign=1.0: sign * (jax.random.normal(key) + jnp.where(world, 1.0, 0.0))
        up, down = ask(shifted), ask(lambda key, world: shifted(key, world, -1.0))
        assert (up.gaussian_attack.sign, down.gaussian_attack.sign) == (1, -1)
        assert down.gaussian_mu == pytest.approx(up.gaussian_mu, rel=0.01)
        assert down.epsilon == pytest.approx(up.epsilon, rel=0.05)

    def test_a_run_depends_on_its_own_number_alone(self, key):
        release = lambda key, world: jax.random.normal(key) + jnp.where(world, 1.0, 0.0)
        ask = lambda runs, chunk: privacy.audit(release, runs=runs, delta=DELTA, key=key, chunk=chunk).scores
        few = ask(150, 64)
        np.testing.assert_allclose(ask(200, 33)[:, :150], few, rtol=1e-6)
        assert np.unique(few).size == 300


class TestTheCanary:
    @both
    def test_without_noise_it_moves_the_sum_by_the_sensitivity(self, key, adjacency):
        canary = eqx.filter_jit(GaussianCanary(0.0, 6, adjacency))
        moved = canary(key, jnp.asarray(True)) - canary(key, jnp.asarray(False))
        assert moved == pytest.approx({ADD: 6.0, REPLACE: 12.0}[adjacency])

    def test_its_score_is_gaussian_with_what_the_accountant_adds_up(self, key):
        """Worlds μ = 2√T/σ apart, in deviations."""
        canary = GaussianCanary(5.0, 4)
        plainest = lambda key, world: canary(key, world)  # and no search for another
        scores = privacy.audit(plainest, runs=20_000, delta=DELTA, key=key, chunk=8000).scores
        deviation = 5.0 * math.sqrt(4)
        means, variances = scores.mean(1), scores.var(1)
        np.testing.assert_allclose(means, [-4, 4], atol=4 * deviation / math.sqrt(20_000))
        np.testing.assert_allclose(variances, deviation**2, rtol=4 * math.sqrt(2 / 20_000))

    def test_it_is_compiled_once_for_all_noises(self, key):
        traced = []

        def counted(*arguments, **options):
            traced.append(1)
            return gaussian_mechanism(*arguments, **options)

        ask = lambda sigma: privacy.audit(
            GaussianCanary(sigma, 2, mechanism=counted), runs=100, delta=DELTA, key=key, chunk=200
        )
        ask(1.0)
        before = len(traced)
        ask(2.0)
        assert len(traced) - before <= 1  # the shape of the score is looked at; nothing is compiled

    @pytest.mark.parametrize("adjacency", [REPLACE, pytest.param(ADD, marks=pytest.mark.slow)])
    def test_sampled_users_stay_below_their_epsilon(self, key, adjacency):
        """Poisson at half the noise that everyone would need; the same runs refute the ε of rate 0.1."""
        rounds, sigma = 10, 1.2
        ask = lambda rate: privacy.epsilon(sigma, rounds, delta=DELTA, sampling_rate=rate, adjacency=adjacency)
        canary = GaussianCanary(sigma, rounds, adjacency, Poisson(0.5))
        found = privacy.audit(canary, runs=10_000, delta=DELTA, key=key, adjacency=adjacency, chunk=4000)
        assert ask(0.1) < found.epsilon <= ask(0.5)

    @pytest.mark.slow
    def test_sets_of_a_fixed_size_stay_below_theirs(self, key):
        event = FixedSize(2).rounds(1.5, 10, clients=4)
        claimed = privacy.Ledger((event,)).epsilon(delta=DELTA, accountant="rdp")
        canary = GaussianCanary(1.5, 10, sampler=FixedSize(2), clients=4)
        found = privacy.audit(canary, runs=10_000, delta=DELTA, key=key, chunk=4000)
        assert 0.1 * claimed < found.epsilon <= claimed

    @pytest.mark.parametrize("sigma", [-1.0, math.nan, math.inf])
    def test_a_noise_is_refused(self, sigma):
        with pytest.raises(ValueError) as caught:
            GaussianCanary(sigma, 5)
        assert str(caught.value) == f"noise_multiplier must be at least 0 and finite, got {sigma}."

    def test_an_adjacency_is_refused(self):
        """Without the type checker of the tests, which is faster."""
        probe = "from clairjax.privacy import GaussianCanary; GaussianCanary(1.0, 5, 'replace')"
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120)
        message = 'adjacency must be "replace-one" or "add-or-remove-one", got \'replace\'.'
        assert done.stderr.strip().endswith(f"ValueError: {message}")

    @both
    def test_an_audit_of_other_worlds_is_refused(self, key, adjacency):
        other = {ADD: REPLACE, REPLACE: ADD}[adjacency]
        with pytest.raises(ValueError) as caught:
            privacy.audit(GaussianCanary(1.0, 5, adjacency), runs=100, delta=DELTA, key=key, adjacency=other)
        assert (
            str(caught.value) == f"adjacency must be that of the release's two worlds, '{adjacency}', got '{other}'."
        )

    @pytest.mark.parametrize("name", ["rounds", "clients", "features"])
    def test_sizes_are_refused(self, name):
        with pytest.raises(ValueError) as caught:
            GaussianCanary(1.0, **({"rounds": 5} | {name: 0}))
        assert str(caught.value) == f"{name} must be an integer of at least 1, got 0."


def test_the_gaussian_bound_fails_less_often_than_it_may(rng):
    """Attained by every threshold, so it does fail: in 0.4 % of audits here, for 5 % allowed."""
    failed = 0
    for _ in range(200):
        scores = rng.standard_normal((2, 4000)) + np.array([[0.0], [0.5]])
        attack = _choose(scores[:, :2000], _shift_bound, STRICTER * 0.025)
        failed += _shift_bound(_rates(_judge(attack, scores[:, 2000:], 0.025)))[0] > 0.5
    assert failed <= 0.05 * 200


@pytest.mark.slow
@both
@pytest.mark.parametrize(("epsilon", "runs"), [(1.0, 400_000), (2.0, 100_000), (4.0, 100_000)])
def test_the_mechanism_stays_below_and_its_broken_copy_does_not(key, epsilon, runs, adjacency):
    """The bound that assumes nothing: 20 of 20 at full replicates. The Gaussian one is attained, and may fail in 1."""
    rounds, above = 10, 0
    sigma = privacy.noise_multiplier(epsilon, rounds, delta=DELTA, adjacency=adjacency)
    options = {"runs": runs, "delta": DELTA, "adjacency": adjacency, "chunk": 4000}
    for one in jax.random.split(key, AUDITS):
        honest = privacy.audit(GaussianCanary(sigma, rounds, adjacency), key=one, **options)
        assert 0.3 * epsilon < honest.epsilon <= epsilon
        assert 0.8 * epsilon < honest.gaussian_epsilon
        above += honest.gaussian_epsilon > epsilon
        broken = privacy.audit(GaussianCanary(sigma, rounds, adjacency, mechanism=half_the_noise), key=one, **options)
        assert broken.epsilon > epsilon and broken.gaussian_epsilon > epsilon
    assert above <= 0.05 * AUDITS
