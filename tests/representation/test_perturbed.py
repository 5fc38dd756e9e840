"""Perturbed least squares against its normal equations written out, and the noise it adds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import Status
from clairjax.data import SharedSubspace
from clairjax.representation import LinearClients, PerturbedMoments, perturbed_least_squares
from clairjax.representation._perturbed import _perturbed_system
from clairjax.subspaces import projector


CLIENTS, SAMPLES, FEATURES, RANK = 11, 9, 4, 2


@pytest.fixture
def problem(key):
    return SharedSubspace(CLIENTS, SAMPLES, FEATURES, RANK, noise=0.2).generate(key=key)


def written_out(problem, basis, matrix_clip, vector_clip):
    """Σ clip(H_i), Σ clip(b_i) with H_i the Gram matrix of the rows vec(x wᵀ), a client at a time."""
    matrix, vector = 0, 0
    for x, y in zip(np.asarray(problem.inputs), np.asarray(problem.targets), strict=True):
        head = np.linalg.lstsq(x @ basis, y)[0]
        rows = np.stack([np.outer(row, head).ravel() for row in x])
        h, b = rows.T @ rows / len(y), rows.T @ y / len(y)
        matrix += h * min(1, matrix_clip / np.linalg.norm(h))
        vector += b * min(1, vector_clip / np.linalg.norm(b))
    return matrix / CLIENTS, vector / CLIENTS


@pytest.mark.parametrize("clips", [(1e6, 1e6), (2.0, 0.5)])
def test_without_noise_it_solves_the_clipped_normal_equations(key, rng, problem, clips):
    basis = start = np.linalg.qr(rng.standard_normal((FEATURES, RANK)))[0]
    for _ in range(3):
        matrix, vector = written_out(problem, basis, *clips)
        basis, upper = np.linalg.qr(np.linalg.solve(matrix, vector).reshape(FEATURES, RANK))
        basis = basis * np.sign(np.diag(upper))
    found = perturbed_least_squares(
        problem.inputs, problem.targets, RANK, key=key, rounds=3, noise_multiplier=0.0, clip_norms=clips, init=start
    )
    np.testing.assert_allclose(found.basis, basis, atol=1e-9)
    assert (found.clipped == 0).all() if clips[0] > 10 else (found.clipped > 0).any()


def test_both_sums_together_cost_one_release(key, problem, rng):
    """Noise of √2 σ ζ on each: two releases at √2 σ compose to one at σ, and symmetrising H is post-processing."""
    heads = jnp.asarray(rng.standard_normal((CLIENTS, RANK)))
    clients, clips, sigma = LinearClients.of(problem.inputs, problem.targets), (2.0, 0.5), 3.0
    draw = jax.jit(
        jax.vmap(
            lambda key, noise: _perturbed_system(heads, clients.full_gram(), clients.moment, clips, noise, key)[0],
            (0, None),
        )
    )
    keys = jax.random.split(key, 4000)
    (matrix, vector, _), (clean, plain, _) = draw(keys, sigma), draw(keys[:1], 0.0)
    noise, deviation = (matrix - clean) * CLIENTS, 2**0.5 * sigma * clips[0]
    size = FEATURES * RANK
    variance = jnp.where(jnp.eye(size, dtype=bool), 1.0, 0.5) * deviation**2
    np.testing.assert_allclose(noise.var(0) / variance, 1, atol=6 * (2 / 4000) ** 0.5)
    np.testing.assert_allclose(noise, jnp.swapaxes(noise, 1, 2), atol=1e-12)
    other = ((vector - plain) * CLIENTS).var(0)
    np.testing.assert_allclose(other / (2**0.5 * sigma * clips[1]) ** 2, 1, atol=6 * (2 / 4000) ** 0.5)


def test_the_spectral_start_and_its_event(key):
    problem = SharedSubspace(300, 40, FEATURES, RANK).generate(key=key)
    options = {"rounds": 2, "noise_multiplier": 0.5, "clip_norms": (20.0, 10.0), "true_basis": problem.basis}
    start = PerturbedMoments(0.5, 30.0)
    found = perturbed_least_squares(problem.inputs, problem.targets, RANK, key=key, init=start, **options)
    x, y = np.asarray(problem.inputs), np.asarray(problem.targets)
    _, vectors = np.linalg.eigh(np.einsum("nm,nmd,nme->de", y**2, x, x))
    clean = PerturbedMoments(0.0, 1e9).run(problem.inputs, problem.targets, RANK, key)
    np.testing.assert_allclose(projector(clean), vectors[:, -RANK:] @ vectors[:, -RANK:].T, atol=1e-9)
    assert found.distances[-1] < 0.2
    assert [(event.label, event.rounds) for event in found.privacy.events] == [("initialisation", 1), ("rounds", 2)]


def test_a_client_with_nan_counts_as_zero(key, problem, rng):
    start = np.linalg.qr(rng.standard_normal((FEATURES, RANK)))[0]
    options = {"rounds": 2, "noise_multiplier": 0.1, "clip_norms": (20.0, 10.0), "init": start}
    solve = jax.jit(lambda x: perturbed_least_squares(x, problem.targets, RANK, key=key, **options))
    found, silent = solve(problem.inputs.at[3].set(jnp.nan)), solve(problem.inputs.at[3].set(0))
    assert found.status == Status.nonfinite_input
    np.testing.assert_allclose(projector(found.basis), projector(silent.basis), atol=1e-10)


def test_a_traced_setting_out_of_range_is_a_status_and_no_numbers(key, problem, rng):
    basis = np.linalg.qr(rng.standard_normal((FEATURES, RANK)))[0]

    @jax.jit
    def solve(noise, clips, start):
        init = start if start.ndim else PerturbedMoments(start, 30.0)
        options = {"rounds": 2, "noise_multiplier": noise, "clip_norms": clips, "init": init}
        return perturbed_least_squares(problem.inputs, problem.targets, RANK, key=key, **options)

    number, clips = jnp.asarray(0.5), (20.0, 10.0)
    for start in (jnp.asarray(basis), number):
        assert solve(0.1, clips, start).status == Status.converged
        for wrong in ((-1.0, clips, start), (0.1, (20.0, np.nan), start), (0.1, clips, start * np.nan)):
            found = solve(*wrong)
            assert found.status == Status.invalid_argument
            assert all(bool(jnp.isnan(array).all()) for array in (found.basis, found.heads, found.clipped))


def test_bad_settings_are_named(key, problem):
    def call(**options):
        options = {
            "rounds": 2,
            "noise_multiplier": 1.0,
            "clip_norms": (1.0, 1.0),
            "init": np.eye(FEATURES)[:, :RANK],
        } | options
        perturbed_least_squares(problem.inputs, problem.targets, RANK, key=key, **options)

    for options, message in (
        ({"clip_norms": (1.0, 0.0)}, "clip_norms[1] must be positive and finite, got 0.0."),
        ({"clip_norms": (-1.0, 1.0)}, "clip_norms[0] must be positive and finite, got -1.0."),
        ({"rounds": 0}, "rounds must be an integer of at least 1, got 0."),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be at least 0 and finite, got -1.0."),
        ({"init": PerturbedMoments(-1.0, 1.0)}, "noise_multiplier of init must be at least 0 and finite, got -1.0."),
        ({"init": PerturbedMoments(1.0, 0.0)}, "clip_norm of init must be positive and finite, got 0.0."),
        ({"batch_size": 5}, "batch_size must be an integer between 2 and samples // 2 = 4, got 5."),
    ):
        with pytest.raises(ValueError) as error:
            call(**options)
        assert str(error.value) == message
