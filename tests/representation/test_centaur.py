"""CENTAUR against an independent loop, what its noise and its clipping do, and what it says it spent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import Status
from clairjax.data import SharedSubspace
from clairjax.representation import PrivatePowerMethod, centaur
from clairjax.representation._centaur import client_updates
from clairjax.representation._linear import LinearClients
from clairjax.representation._subsets import draw_subsets
from clairjax.subspaces import projector, subspace_distance


CLIENTS, SAMPLES, FEATURES, RANK = 9, 12, 5, 2
ROUNDS = 6


@pytest.fixture
def problem(key):
    return SharedSubspace(CLIENTS, SAMPLES, FEATURES, RANK, noise=0.1).generate(key=key)


def orthonormal(rng, rows=FEATURES, cols=RANK):
    return np.linalg.qr(rng.standard_normal((rows, cols)))[0]


def run(problem, key, start, **options):
    options = {"rounds": ROUNDS, "noise_multiplier": 0.0, "clip_norm": 0.5, "step_size": 0.3} | options
    return centaur(problem.inputs, problem.targets, RANK, key=key, init=start, **options)


@jax.jit
def solve(inputs, targets, key, start, noise_multiplier, clip_norm, steps):
    """Compiled once for each shape."""
    options = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "step_size": steps}
    return centaur(inputs, targets, RANK, key=key, init=start, rounds=len(steps), **options)


def clipped_sum(problem, basis, clip_norm):
    """Algorithm 4 and the clipped sum in plain NumPy, a client at a time."""
    total, longer = np.zeros_like(basis), 0
    for x, y in zip(np.asarray(problem.inputs), np.asarray(problem.targets), strict=True):
        head = np.linalg.lstsq(x @ basis, y)[0]
        gradient = x.T @ np.outer(x @ basis @ head - y, head) / len(y)
        norm = np.linalg.norm(gradient)
        longer += norm > clip_norm
        total += gradient * min(1.0, clip_norm / norm)
    return total, longer / len(problem.targets)


@pytest.mark.parametrize("clip_norm", [1e-2, 0.3, 1e3])
@pytest.mark.parametrize("samples", [12, 4])
@pytest.mark.parametrize("step_size", [0.3, np.linspace(0.5, 0.1, ROUNDS)])
def test_without_noise_it_is_algorithm_1(key, rng, samples, clip_norm, step_size):
    problem = SharedSubspace(CLIENTS, samples, FEATURES, RANK, noise=0.1).generate(key=key)
    start = basis = orthonormal(rng)
    shares = []
    for size in np.broadcast_to(step_size, ROUNDS):
        total, share = clipped_sum(problem, basis, clip_norm)
        basis, upper = np.linalg.qr(basis - size * total / CLIENTS)
        basis = basis * np.sign(np.diag(upper))
        shares.append(share)
    steps = np.broadcast_to(step_size, ROUNDS)
    found = solve(problem.inputs, problem.targets, key, start, 0.0, clip_norm, steps)
    np.testing.assert_allclose(found.basis, basis, atol=1e-11)
    np.testing.assert_allclose(found.clipped, shares)
    heads = [np.linalg.lstsq(x @ basis, y)[0] for x, y in zip(problem.inputs, problem.targets, strict=True)]
    np.testing.assert_allclose(found.heads, heads, atol=1e-9)


def test_the_noise_is_that_of_the_sum_divided_by_the_clients(key, rng):
    """Clients with nothing to say: outside the start, one round leaves −η σ ζ N/n, standard normal N."""
    start, sigma, clip_norm, step = orthonormal(rng), 3.0, 0.2, 1e-4
    zeros = jnp.zeros((CLIENTS, SAMPLES, FEATURES)), jnp.zeros((CLIENTS, SAMPLES))

    def outside(key, rounds):
        options = {"noise_multiplier": sigma, "clip_norm": clip_norm, "step_size": step, "init": start}
        found = centaur(*zeros, RANK, key=key, rounds=rounds, **options)
        return found.basis - start @ (start.T @ found.basis)

    runs = 2000
    for rounds in (1, 4):
        moved = jax.jit(jax.vmap(lambda key, rounds=rounds: outside(key, rounds)))(jax.random.split(key, runs))
        squares = jnp.sum(moved**2, (1, 2)) / (step * sigma * clip_norm / CLIENTS) ** 2
        degrees = (FEATURES - RANK) * RANK * rounds
        error = (2 * degrees) ** 0.5 * rounds**0.5 / runs**0.5
        assert abs(squares.mean() - degrees) < 4 * error


def test_a_round_with_sampled_clients_is_right_on_average(key, rng, problem):
    """The sum is divided by p · n, a public number, so the mean over coins is the full round."""
    start, step, runs = orthonormal(rng), 1e-4, 3000
    full = run(problem, key, start, rounds=1, step_size=step).basis

    def one(key):
        return run(problem, key, start, rounds=1, step_size=step, sampling_rate=0.4).basis

    bases = jax.jit(jax.vmap(one))(jax.random.split(key, runs))
    error = bases.std(0) / runs**0.5
    np.testing.assert_array_less(abs(bases.mean(0) - full), 4.5 * error + 1e-8)  # of second order in the step


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_one_client_moves_the_basis_by_at_most_two_clip_norms(key, rng, problem, size):
    """Whatever a client holds, η · 2ζ/n bounds the change of B before QR, hence (first order) after it."""
    start, step, clip_norm = orthonormal(rng), 1e-3, 0.1
    inputs = problem.inputs.at[3].set(size * rng.standard_normal((SAMPLES, FEATURES)))
    targets = problem.targets.at[3].set(size * rng.standard_normal(SAMPLES))
    steps = np.array([step])
    before = solve(problem.inputs, problem.targets, key, start, 0.0, clip_norm, steps).basis
    after = solve(inputs, targets, key, start, 0.0, clip_norm, steps).basis
    assert jnp.linalg.norm(before - after) <= step * 2 * clip_norm / CLIENTS * (1 + 10 * step)


def test_order_of_clients_and_rotation_of_features_do_not_matter(key, rng, problem):
    start, steps = orthonormal(rng), np.full(ROUNDS, 0.3)
    rotation, order = orthonormal(rng, FEATURES, FEATURES), rng.permutation(CLIENTS)
    found = solve(problem.inputs, problem.targets, key, start, 0.0, 0.5, steps)
    inputs, targets = problem.inputs[order] @ rotation.T, problem.targets[order]
    turned = solve(inputs, targets, key, rotation @ start, 0.0, 0.5, steps)
    np.testing.assert_allclose(projector(turned.basis), rotation @ projector(found.basis) @ rotation.T, atol=1e-10)
    np.testing.assert_allclose(turned.coefficients, (found.coefficients @ rotation.T)[order], atol=1e-9)


def test_on_exact_data_the_distance_falls_to_rounding(key):
    """Literally Algorithm 4: two fresh disjoint subsets of each client in each round."""
    problem = SharedSubspace(200, 40, FEATURES, RANK).generate(key=key)
    options = {"noise_multiplier": 0.0, "clip_norm": 1e3, "step_size": 0.5, "true_basis": problem.basis}
    found = centaur(problem.inputs, problem.targets, RANK, key=key, rounds=60, batch_size=16, **options)
    assert found.distances[-1] < 1e-12
    np.testing.assert_allclose(found.coefficients, problem.heads @ problem.basis.T, atol=1e-11)
    np.testing.assert_allclose(found.distances[-1], subspace_distance(found.basis, problem.basis), atol=1e-15)


def test_the_default_step_is_a_path_of_fixed_length(key, problem, rng):
    """16 k/ζ in all, shorter each round, so that scaling targets by c and ζ by c² changes nothing."""
    start = orthonormal(rng)
    found = run(problem, key, start, step_size=None, clip_norm=0.1, noise_multiplier=2.0)
    decay = (1 - np.arange(ROUNDS) / ROUNDS) ** 3
    spelled = run(problem, key, start, step_size=160 * RANK * decay / decay.sum(), clip_norm=0.1, noise_multiplier=2.0)
    np.testing.assert_allclose(found.basis, spelled.basis, rtol=1e-12)
    scaled = centaur(
        problem.inputs,
        7 * problem.targets,
        RANK,
        key=key,
        rounds=ROUNDS,
        init=start,
        noise_multiplier=2.0,
        clip_norm=4.9,
    )
    np.testing.assert_allclose(projector(scaled.basis), projector(found.basis), atol=1e-9)


def test_with_the_default_settings_privacy_leaves_a_good_subspace(key):
    """ε = 2.0 (add or remove one, δ = 1e-5) for 1000 users."""
    problem = SharedSubspace(1000, 20, 20, RANK).generate(key=key)
    found = centaur(problem.inputs, problem.targets, RANK, key=key, noise_multiplier=12.6, true_basis=problem.basis)
    assert found.distances[-1] < 0.006
    assert found.privacy.epsilon(delta=1e-5, adjacency="add-or-remove-one") < 2.01


def test_what_is_spent_is_written_down(key, problem):
    start = PrivatePowerMethod(steps=3, noise_multiplier=5.0, clip_norm=1.0, trials=4)
    ledger = run(problem, key, start, noise_multiplier=7.0, sampling_rate=0.25).privacy
    first, second = ledger.events
    assert (first.label, first.rounds, float(first.noise_multiplier), first.sampling_rate) == (
        "initialisation",
        12,
        5,
        1,
    )
    assert (second.label, second.rounds, float(second.noise_multiplier), second.sampling_rate) == (
        "rounds",
        6,
        7,
        0.25,
    )
    assert first.clients == second.clients == CLIENTS
    assert len(run(problem, key, None).privacy.events) == 1


def test_no_noise_is_no_privacy(key, problem):
    ledger = run(problem, key, None).privacy
    with pytest.warns(UserWarning):
        assert ledger.epsilon(delta=1e-5) == float("inf")


def test_a_client_with_nan_counts_as_zero_and_is_reported(key, rng, problem):
    start = orthonormal(rng)
    inputs, targets = problem.inputs.at[2, 0, 0].set(jnp.nan), problem.targets
    silent = problem.inputs.at[2].set(0)
    options = key, start, 1.0, 0.5, np.full(ROUNDS, 0.3)
    found, expected = solve(inputs, targets, *options), solve(silent, targets, *options)
    assert found.status == Status.nonfinite_input
    assert expected.status == Status.converged
    np.testing.assert_allclose(found.basis, expected.basis, atol=1e-12)
    assert jnp.isnan(found.heads[2]).all() and jnp.isfinite(jnp.delete(found.heads, 2, axis=0)).all()
    assert (found.clipped >= 1 / CLIENTS).all()


@pytest.mark.parametrize("place", range(3))
def test_a_traced_setting_out_of_range_is_a_status_and_no_numbers(key, rng, problem, place):
    settings = [1.0, 0.5, np.full(ROUNDS, 0.3)]
    start = orthonormal(rng)
    assert solve(problem.inputs, problem.targets, key, start, *settings).status == Status.converged
    for factor in (np.nan, -1.0, np.inf):
        wrong = [setting * factor if i == place else setting for i, setting in enumerate(settings)]
        found = solve(problem.inputs, problem.targets, key, start, *wrong)
        assert found.status == Status.invalid_argument
        assert all(bool(jnp.isnan(array).all()) for array in (found.basis, found.heads, found.clipped))
    found = solve(problem.inputs, problem.targets, key, start * np.nan, *settings)
    assert found.status == Status.invalid_argument


def test_a_traced_setting_of_the_start_out_of_range_is_a_status(key, problem):
    solve = jax.jit(lambda noise, clip: run(problem, key, PrivatePowerMethod(2, noise, clip), rounds=1))
    assert solve(1.0, 3.0).status == Status.converged
    for wrong in ((-1.0, 3.0), (np.nan, 3.0), (1.0, 0.0), (1.0, np.nan)):
        found = solve(*wrong)
        assert found.status == Status.invalid_argument and bool(jnp.isnan(found.basis).all())


def test_subsets_are_disjoint_and_without_replacement(key):
    inputs = jnp.broadcast_to(jnp.arange(10.0)[None, :, None], (4, 10, 3))
    (x, y), (z, w) = draw_subsets(inputs, inputs[:, :, 0], 4, 2, key=key)
    drawn = jnp.concatenate([y, w], axis=1)
    assert all(len(set(row.tolist())) == 8 for row in drawn)
    assert (x[:, :, 1] == y).all() and (z[:, :, 2] == w).all()
    many = jax.vmap(lambda key: draw_subsets(inputs, inputs[:, :, 0], 4, 1, key=key)[0][1])(jax.random.split(key, 500))
    counts = jnp.bincount(many.reshape(-1).astype(int), length=10) / many.size
    assert (abs(counts - 0.1) < 4 * (0.09 / many.size) ** 0.5).all()


def test_heads_and_gradient_look_at_their_own_subset(key, problem, rng):
    basis = jnp.asarray(orthonormal(rng))
    first = LinearClients.of(problem.inputs[:, :6], problem.targets[:, :6])
    second = LinearClients.of(problem.inputs[:, 6:], problem.targets[:, 6:])
    found = client_updates(first, second, basis)
    for i in range(CLIENTS):
        x, y = problem.inputs[i], problem.targets[i]
        head = np.linalg.lstsq(x[:6] @ basis, y[:6])[0]
        value = lambda b, x=x, y=y, head=head: 0.5 * jnp.mean((x[6:] @ (b @ head) - y[6:]) ** 2)
        np.testing.assert_allclose(found[i], jax.grad(value)(basis), atol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be an integer of at least 1, got 0."),
        ({"clip_norm": 0.0}, "clip_norm must be positive and finite, got 0.0."),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be at least 0 and finite, got -1.0."),
        ({"sampling_rate": 0.0}, "sampling_rate must be in (0, 1], got 0.0."),
        ({"sampling_rate": 1.5}, "sampling_rate must be in (0, 1], got 1.5."),
        ({"batch_size": 7}, "batch_size must be an integer between 2 and samples // 2 = 6, got 7."),
        ({"batch_size": 1}, "batch_size must be an integer between 2 and samples // 2 = 6, got 1."),
        ({"step_size": np.array([0.1, 0.2])}, "step_size must be one number or one per round (6), got shape (2,)."),
        (
            {"step_size": np.array([0.1, 0.1, np.nan, 0.1, 0.1, 0.1])},
            "step_size must be positive and finite, got nan.",
        ),
        ({"step_size": -0.1}, "step_size must be positive and finite, got -0.1."),
        ({"init": np.eye(3)}, "init must be of shape (features, rank) = (5, 2), got shape (3, 3)."),
        ({"init": np.full((5, 2), np.nan)}, "init must be finite, got NaN or infinite values."),
        ({"true_basis": np.eye(3)}, "true_basis must be of shape (features, rank) = (5, 2), got shape (3, 3)."),
        ({"init": PrivatePowerMethod(2, -1.0, 1.0)}, "noise_multiplier must be at least 0 and finite, got -1.0."),
    ],
)
def test_bad_settings_are_named(key, problem, options, message):
    with pytest.raises(ValueError) as error:
        run(problem, key, **({"start": None} | {({"init": "start"}).get(k, k): v for k, v in options.items()}))
    assert str(error.value) == message


def test_bad_data_are_named(key, problem):
    call = lambda x, y, rank: centaur(x, y, rank, key=key, noise_multiplier=1.0)
    with pytest.raises(ValueError, match=r"NaN or infinite values from client\(s\) 4\.$"):
        call(problem.inputs.at[4, 1, 1].set(jnp.inf), problem.targets, RANK)
    with pytest.raises(ValueError, match=r"^rank must be between 1 and min\(features, clients\) = 5, got 6\.$"):
        call(problem.inputs, problem.targets, 6)
    with pytest.raises(ValueError, match=r"^inputs must be of at least rank = 2 samples per client, got 1\.$"):
        call(problem.inputs[:, :1], problem.targets[:, :1], RANK)
