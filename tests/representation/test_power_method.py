"""The private power method against orthogonal iteration in NumPy, and the choice among trials."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import Status
from clairjax.data import SharedSubspace
from clairjax.kernels import orthonormalize
from clairjax.privacy import Ledger
from clairjax.representation import PrivatePowerMethod, private_power_method
from clairjax.representation._power_method import moment_images, select_candidate
from clairjax.subspaces import projector, subspace_distance


CLIENTS, SAMPLES, FEATURES, RANK = 60, 30, 5, 2


@pytest.fixture
def problem(key):
    return SharedSubspace(CLIENTS, SAMPLES, FEATURES, RANK).generate(key=key)


def moments(problem):
    x, y = np.asarray(problem.inputs), np.asarray(problem.targets)
    return np.einsum("nm,nmd,nme->nde", y**2, x, x) / y.shape[1]


def test_images_are_those_of_the_second_moments(problem, rng):
    """To the rounding of two sums: n · eps times the sum of the terms' sizes, which cancel in some entries."""
    basis = rng.standard_normal((FEATURES, RANK))
    found = moment_images(problem.inputs, problem.targets, None, jnp.asarray(basis))
    x, y = np.asarray(problem.inputs), np.asarray(problem.targets)
    terms = np.einsum("nm,nmd,nme->nde", y**2, abs(x), abs(x)) / SAMPLES @ abs(basis)
    rounding = 2 * (SAMPLES + FEATURES) * np.finfo(float).eps
    assert (abs(found - moments(problem) @ basis) <= rounding * terms).all()


def test_without_noise_it_ends_at_the_leading_eigenvectors(key, problem):
    found = private_power_method(
        problem.inputs, problem.targets, RANK, key=key, steps=300, noise_multiplier=0.0, clip_norm=1e6
    )
    _, vectors = np.linalg.eigh(moments(problem).mean(0))
    np.testing.assert_allclose(projector(found.basis), projector(jnp.asarray(vectors[:, -RANK:])), atol=1e-10)


def test_the_moments_tend_to_what_the_analysis_says(key):
    """2Γ + tr(Γ) I, within standard errors, for exact data with standard normal inputs."""
    problem = SharedSubspace(400, 200, FEATURES, RANK, condition=2.0).generate(key=key)
    gamma = problem.basis @ (problem.heads.T @ problem.heads / 400) @ problem.basis.T
    each = moments(problem)
    error = each.std(0) / 20
    assert (abs(each.mean(0) - (2 * gamma + jnp.trace(gamma) * jnp.eye(FEATURES))) < 4.5 * error).all()


def test_one_client_moves_the_mean_by_at_most_two_clip_norms(key, problem):
    """One step from one start: B₁ = QR(mean), and the mean is bounded through its own QR by the clip norm."""
    options = {"key": key, "steps": 1, "noise_multiplier": 0.0, "clip_norm": 0.5}
    wild = problem.targets.at[7].set(1e8)
    before, after = (
        private_power_method(problem.inputs, targets, RANK, **options).basis for targets in (problem.targets, wild)
    )
    assert (
        subspace_distance(before, after) < 2 * 0.5 / CLIENTS / 0.1
    )  # the mean's smallest singular value is above 0.1


def test_the_choice_passes_algorithm_3_whenever_a_candidate_does(rng):
    """Of 9 candidates 5 lie close together: the choice is one of them, at the strictest tolerance that any passes."""
    truth = np.linalg.qr(rng.standard_normal((8, 2)))[0]
    good = [np.linalg.qr(truth + 1e-3 * rng.standard_normal((8, 2)))[0] for _ in range(5)]
    bad = [np.linalg.qr(rng.standard_normal((8, 2)))[0] for _ in range(4)]
    candidates = np.stack([good[0], *bad, *good[1:]])
    chosen = select_candidate(jnp.asarray(candidates))
    assert subspace_distance(chosen, jnp.asarray(truth)) < 0.01
    cosines = [np.linalg.svd(one.T @ chosen, compute_uv=False).min() for one in candidates]
    passing = lambda tolerance: sum(cosine >= 1 - 2 * tolerance**2 for cosine in cosines) >= 5
    others = [sorted(np.linalg.svd(a.T @ b, compute_uv=False).min() for b in candidates)[-5] for a in candidates]
    tolerance = ((1 - max(others)) / 2) ** 0.5 * (1 + 1e-6)
    assert passing(tolerance)


def test_trials_differ_and_their_order_does_not_matter(key, rng):
    candidates = jnp.stack([orthonormalize(jnp.asarray(rng.standard_normal((6, 2)))) for _ in range(7)])
    chosen = select_candidate(candidates)
    np.testing.assert_array_equal(chosen, select_candidate(candidates[::-1]))
    np.testing.assert_array_equal(select_candidate(candidates[:1]), candidates[0])


def test_every_step_of_every_trial_is_spent(key, problem):
    event = PrivatePowerMethod(steps=4, noise_multiplier=3.0, clip_norm=1.0, trials=5).event(CLIENTS)
    assert (event.rounds, event.noise_multiplier, event.clients) == (20, 3.0, CLIENTS)
    options = {"steps": 2, "noise_multiplier": 3.0, "clip_norm": 1.0, "trials": 2}
    found = private_power_method(problem.inputs, problem.targets, RANK, key=key, **options)
    assert found.status == Status.converged
    assert found.privacy == Ledger((PrivatePowerMethod(**options).event(CLIENTS),))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be an integer of at least 1, got 0."),
        ({"trials": 0}, "trials must be an integer of at least 1, got 0."),
        ({"clip_norm": float("nan")}, "clip_norm must be positive and finite, got nan."),
        ({"noise_multiplier": float("inf")}, "noise_multiplier must be at least 0 and finite, got inf."),
        ({"batch_size": 31}, "batch_size must be an integer between 1 and samples = 30, got 31."),
    ],
)
def test_bad_settings_are_named(key, problem, options, message):
    options = {"steps": 2, "noise_multiplier": 1.0, "clip_norm": 1.0} | options
    with pytest.raises(ValueError) as error:
        private_power_method(problem.inputs, problem.targets, RANK, key=key, **options)
    assert str(error.value) == message


def test_a_traced_setting_out_of_range_is_a_status_and_no_numbers(key, problem):
    options = {"key": key, "steps": 2, "trials": 2}
    solve = jax.jit(
        lambda noise, clip: private_power_method(
            problem.inputs, problem.targets, RANK, noise_multiplier=noise, clip_norm=clip, **options
        )
    )
    assert solve(0.0, 1.0).status == Status.converged
    for wrong in ((-1.0, 1.0), (np.nan, 1.0), (1.0, 0.0), (1.0, -1.0), (1.0, np.inf)):
        found = solve(*wrong)
        assert found.status == Status.invalid_argument and jnp.isnan(found.basis).all()


def test_a_client_with_nan_counts_as_zero_and_is_reported(key, problem):
    options = {"steps": 2, "noise_multiplier": 1.0, "clip_norm": 1.0, "trials": 2}
    solve = jax.jit(lambda inputs: private_power_method(inputs, problem.targets, RANK, key=key, **options))
    found, silent = solve(problem.inputs.at[3].set(jnp.nan)), solve(problem.inputs.at[3].set(0))
    assert found.status == Status.nonfinite_input
    np.testing.assert_allclose(found.basis, silent.basis, atol=1e-12)


def test_it_draws_fresh_subsets(key, problem):
    options = {"steps": 3, "noise_multiplier": 0.0, "clip_norm": 30.0}
    part, whole = (
        private_power_method(problem.inputs, problem.targets, RANK, key=key, batch_size=size, **options).basis
        for size in (10, None)
    )
    assert 1e-3 < subspace_distance(part, whole) < 1
