"""FLUTE against an independent loop, its fixed points and rates against theory, and what every driver promises."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_numpy as reference

from clairjax import Status
from clairjax.data import LinearTasks
from clairjax.representation import LinearClients, best_of_rank, fedrep, flute, local_least_squares
from clairjax.representation._flute import Rates, descend, directions, outcome, practical_scale, practical_step
from clairjax.representation._initialise import random_start


REPLICATES = int(os.environ.get("CLAIRJAX_TEST_REPLICATES", "100"))
CLIENTS, FEATURES, RANK = 7, 5, 2
# (k: FLUTE, FedRep with the mean gradient) at M = 30, N = 20 on C.1's model, as a prototype found them
PROTOTYPE = {2: (1.732, 1.725), 4: (1.352, 1.356), 6: (1.072, 1.079), 8: (0.823, 0.829)}
GAMMAS = [(1 / 4, 1 / 8), (1 / 8, 1 / 8), (1 / 4, 3 / 8), (0.0, 1 / 8), (0.1, 0.3)]


def start_of(key, data, rank, scale=0.1, dtype=jnp.float64):
    clients, _, features = data.inputs.shape
    return random_start(clients, features, rank, scale, key=key, dtype=dtype)


@pytest.mark.parametrize(("loss_scale", "samples"), [("half", 12), ("half", 4), ("printed", 12)])
def test_it_is_algorithm_1(key, rng, samples, loss_scale):
    """(5)-(6) as printed, a client and a term at a time, from the same start; Gram matrices and data alike."""
    data = reference.draw(rng, CLIENTS, samples, FEATURES)
    start = [np.asarray(array) for array in start_of(key, data, RANK)]
    factor = {"half": 1.0, "printed": 2.0}[loss_scale]
    for gammas in GAMMAS[:3]:
        expected = reference.flute(data, *start, step=0.01, rounds=60, gammas=gammas, factor=factor)
        options = {"rounds": 60, "step_size": 0.01, "gammas": gammas, "init_scale": 0.1, "loss_scale": loss_scale}
        found = flute(data.inputs, data.targets, RANK, key=key, true_coefficients=data.truth, **options)
        for ours, theirs in zip((found.basis, found.heads, found.errors), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_directions_are_the_gradient_of_the_printed_objective(key, rng, check_derivative):
    """(4) with the half-squared loss, summed over clients."""
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    clients = LinearClients.of(jnp.asarray(data.inputs), jnp.asarray(data.targets))
    rates = Rates(*(jnp.asarray(value) for value in (0.1, 1.0, 2 * 0.2, 4 * 0.15)))

    def objective(basis, heads):
        balance = jnp.sum((basis.T @ basis) ** 2) + jnp.sum((heads.T @ heads) ** 2)
        loss = jnp.sum(clients.risk(heads @ basis.T)) / 2
        return loss - 0.2 * jnp.sum((heads @ basis.T) ** 2) + 0.15 * balance

    start = start_of(key, data, RANK, scale=1.0)
    expected = jax.jit(jax.grad(objective, (0, 1)))(*start)
    for ours, theirs in zip(directions(clients, *start, rates), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    check_derivative(objective, *start)


@pytest.mark.parametrize("loss_scale", ["half", "printed"])
def test_population_fixed_point(key, rng, loss_scale):
    """σ_i(BW) = λ_i/(1 + 2(2γ2 − γ1)/f): the factor of the loss shows in it."""
    data = reference.whitened(rng, 9, 8, 6)
    values = np.linalg.svd(data.truth, compute_uv=False)[:3]
    solve = jax.jit(
        lambda gammas: flute(
            data.inputs, data.targets, 3, key=key, rounds=1500, step_size=0.02, gammas=gammas, loss_scale=loss_scale
        ),
    )
    for gammas in GAMMAS:
        found = solve(tuple(jnp.asarray(gamma) for gamma in gammas))
        assert found.status == Status.converged
        shrunk = values / (1 + 2 * (2 * gammas[1] - gammas[0]) / {"half": 1, "printed": 2}[loss_scale])
        np.testing.assert_allclose(np.linalg.svd(found.coefficients, compute_uv=False)[:3], shrunk, rtol=1e-3)


def test_the_server_balances_basis_and_heads(key, rng):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    found = flute(data.inputs, data.targets, RANK, key=key, rounds=3000)
    np.testing.assert_allclose(found.basis.T @ found.basis, found.heads.T @ found.heads, atol=1e-6)


@pytest.mark.parametrize("rank", [2, 4, 6, 8])
def test_linear_rate_with_exact_gradients(key, rng, rank):
    """1 − η(λ_k − λ_{k+1}), to 0.002: the history against the best rank-k model falls from 1e-3 to 1e-7."""
    data = reference.whitened(rng, 15, 12, 10)
    best = best_of_rank(jnp.asarray(data.truth), rank).coefficients
    clients = LinearClients.of(jnp.asarray(data.inputs), jnp.asarray(data.targets))
    rates = Rates(*(jnp.asarray(value) for value in (0.03, 1.0, 0.5, 0.5)))
    errors = np.asarray(jax.jit(descend, static_argnums=3)(clients, rates, start_of(key, data, rank), 4000, best)[1])
    first, last = np.argmax(errors < 1e-3), np.argmax(errors < 1e-7)
    assert 0 < first < last
    rate = (errors[last] / errors[first]) ** (1 / (last - first))
    values = np.linalg.svd(data.truth, compute_uv=False)
    assert abs(rate - (1 - 0.03 * (values[rank - 1] - values[rank]))) < 0.002


def test_at_full_rank_it_is_each_clients_least_squares(key, rng):
    data = reference.draw(rng, 6, 40, 3)
    found = flute(data.inputs, data.targets, 3, key=key, rounds=3000)
    assert found.status == Status.converged
    np.testing.assert_allclose(found.coefficients, local_least_squares(data.inputs, data.targets), atol=1e-6)


def test_repeated_samples_change_nothing(key, rng):
    """Four samples and five features keep the data, each sample twice the Gram matrices: two routes to one model."""
    data = reference.draw(rng, CLIENTS, 4, FEATURES)
    once = flute(data.inputs, data.targets, RANK, key=key, rounds=50)
    twice = flute(np.repeat(data.inputs, 2, 1), np.repeat(data.targets, 2, 1), RANK, key=key, rounds=50)
    np.testing.assert_allclose(once.coefficients, twice.coefficients, rtol=1e-9, atol=1e-9)


def test_order_of_clients_and_rotation_of_features(key, rng):
    """From starts that are permuted and rotated alike, the runs are, too."""
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    basis, heads = start_of(key, data, RANK)
    order, turn = rng.permutation(CLIENTS), np.linalg.qr(rng.standard_normal((FEATURES, FEATURES)))[0]
    rates = Rates(*(jnp.asarray(value) for value in (0.02, 1.0, 0.5, 0.5)))
    run = jax.jit(lambda x, y, basis, heads: descend(LinearClients.of(x, y), rates, (basis, heads), 200, None)[0])
    inputs, targets = jnp.asarray(data.inputs), jnp.asarray(data.targets)
    basis_end, heads_end = run(inputs, targets, basis, heads)
    moved = run(inputs[order] @ turn, targets[order], turn.T @ basis, heads[order])
    np.testing.assert_allclose(moved[0], turn.T @ basis_end, atol=1e-9)
    np.testing.assert_allclose(moved[1], heads_end[order], atol=1e-9)


def test_the_step_from_the_data_is_that_of_the_paper_on_its_model(key):
    """η = 0.03 on C.1's model, where λ1 = 10; and it follows the scale of the targets."""
    data = LinearTasks(30, 10, 20).generate(key=key)
    steps = [practical_step(LinearClients.of(data.inputs, scale * data.targets)) for scale in (1.0, 100.0)]
    assert 0.02 < float(steps[0]) < 0.03
    np.testing.assert_allclose(steps[1], steps[0] / 100, rtol=1e-9)


def test_the_step_from_the_data_converges_at_any_scale(key, rng):
    """With all defaults, of the targets and of the inputs; and so does the start."""
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    run = jax.jit(lambda x, y: flute(x, y, RANK, key=key))
    same = run(data.inputs, data.targets)
    assert same.status == Status.converged and same.errors is None
    for wider, taller in ((1.0, 1e-4), (1.0, 1e4), (1e4, 1.0), (1e2, 1e-3)):
        found, scale = run(wider * data.inputs, taller * data.targets), taller / wider
        assert found.status == Status.converged
        np.testing.assert_allclose(found.coefficients, scale * same.coefficients, rtol=1e-6, atol=1e-6 * scale)
    # The server's terms are for inputs of unit variance: below it they are strong, and the default step is short.
    assert run(1e-3 * data.inputs, data.targets).status == Status.max_steps_reached


@pytest.mark.parametrize("samples", [12, 4])
def test_the_start_from_the_data_is_that_of_the_paper_on_its_model(key, samples):
    """1/(10 d) within the noise on λ1, and as the root of targets over inputs elsewhere, Gram matrices or data."""
    data = LinearTasks(30, 10, samples).generate(key=key, dtype=jnp.float64)
    scale = lambda wider, taller: practical_scale(LinearClients.of(wider * data.inputs, taller * data.targets))
    assert 0.009 < float(scale(1.0, 1.0)) < 0.016
    np.testing.assert_allclose(scale(100.0, 4e-4), 2e-3 * scale(1.0, 1.0), rtol=1e-9)
    assert scale(1.0, 0.0) == scale(0.0, 1.0) == 0


def test_targets_of_zero_are_found(key, rng, dtype):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    inputs = data.inputs.astype(dtype)
    found = flute(inputs, np.zeros((CLIENTS, 12), dtype), RANK, key=key, rounds=5)
    assert found.status == Status.converged
    np.testing.assert_array_equal(found.coefficients, 0)
    # From a start that was asked for, the risk falls from where it was: not there yet, and no divergence.
    found = flute(inputs, np.zeros((CLIENTS, 12), dtype), RANK, key=key, rounds=5, step_size=0.03, init_scale=0.1)
    assert found.status == Status.max_steps_reached


OUT_OF_RANGE = [
    {"step_size": np.nan},
    {"step_size": -0.01},
    {"init_scale": 0.0},
    {"init_scale": np.inf},
    {"gammas": (0.3, 0.125)},
    {"gammas": (0.25, np.nan)},
    {"gammas": (-1.0, -0.1)},
]


def test_a_traced_argument_out_of_range_is_a_status_and_no_numbers(key, rng):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    good = {"step_size": 0.02, "init_scale": 0.1, "gammas": (0.25, 0.125)}
    run = jax.jit(
        lambda options: flute(
            data.inputs, data.targets, RANK, key=key, rounds=3, true_coefficients=data.truth, **options
        )
    )
    assert run(good).status == Status.max_steps_reached
    for wrong in OUT_OF_RANGE:
        found = run(good | wrong)
        assert found.status == Status.invalid_argument
        assert all(bool(jnp.isnan(array).all()) for array in (found.basis, found.heads, found.errors))


@pytest.mark.parametrize("samples", [12, 4])
def test_divergence_is_a_status_and_no_numbers(key, rng, samples):
    data = reference.draw(rng, CLIENTS, samples, FEATURES)
    found = flute(data.inputs, data.targets, RANK, key=key, rounds=200, step_size=2.0, true_coefficients=data.truth)
    assert found.status == Status.diverged and Status[found.status].startswith("The iterates grew")
    assert all(bool(jnp.isnan(array).all()) for array in (found.basis, found.heads, found.errors))


def test_divergence_under_way_is_seen_before_it_overflows(key, rng):
    """Finite, and worse than the model that predicts zero."""
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    run = jax.jit(descend, static_argnums=3)
    clients = LinearClients.of(jnp.asarray(data.inputs), jnp.asarray(data.targets))
    rates = Rates(*(jnp.asarray(value) for value in (0.5, 1.0, 0.5, 0.5)))
    start = start_of(key, data, RANK, scale=0.5)
    (basis, heads), _ = run(clients, rates, start, 3, None)
    assert bool(jnp.isfinite(basis).all() & jnp.isfinite(heads).all())
    assert outcome(clients, start, (basis, heads), rates) == Status.diverged


def test_too_few_rounds_are_a_status(key, rng):
    data = reference.draw(rng, CLIENTS, 12, FEATURES)
    assert flute(data.inputs, data.targets, RANK, key=key, rounds=20).status == Status.max_steps_reached


DATA = (np.ones((4, 6, 3)), np.ones((4, 6)))
BAD = {
    "gammas": ({"gammas": (0.3, 0.125)}, r"gammas must be finite .*γ2 ≥ 0 and γ1 ≤ 2 γ2 .*, got \(0\.3, 0\.125\)\."),
    "infinite gammas": ({"gammas": (0.3, np.inf)}, r"gammas must be finite .*, got \(0\.3, inf\)\."),
    "rounds": ({"rounds": 0}, r"rounds must be an integer of at least 1, got 0\."),
    "step_size": ({"step_size": -1.0}, r"step_size must be positive and finite, got -1\.0\."),
    "init_scale": ({"init_scale": 0.0}, r"init_scale must be positive and finite, got 0\.0\."),
    "true_coefficients": (
        {"true_coefficients": np.ones((3, 3))},
        r"true_coefficients must be of shape \(clients, features\) = \(4, 3\), got .*\.",
    ),
    "rank": ({"rank": 4}, r"rank must be between 1 and min\(features, clients\) = 3, got 4\."),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused(key, case):
    options, message = BAD[case]
    with pytest.raises(ValueError, match=f"^{message}$"):
        flute(*DATA, **({"rank": 2, "key": key} | options))


def test_a_client_that_is_not_a_number_is_named(key):
    inputs = DATA[0].copy()
    inputs[2, 1, 0] = np.nan
    with pytest.raises(ValueError, match=r"inputs must be finite, got NaN or infinite values from client\(s\) 2\."):
        flute(inputs, DATA[1], 2, key=key)


def monte_carlo(key, clients, samples, rank):
    """Final errors of FLUTE and FedRep on C.1's model, by the library and by plain NumPy from its own starts."""

    @jax.jit
    def library(keys):
        def one(key):
            data_key, start_key = jax.random.split(key)
            data = LinearTasks(clients, 10, samples).generate(key=data_key, dtype=jnp.float64)
            options = {"key": start_key, "rounds": 2000, "step_size": 0.03}
            found = [solve(data.inputs, data.targets, rank, **options) for solve in (flute, fedrep)]
            return data, [each.coefficients for each in found]

        return jax.lax.map(one, keys, batch_size=25)

    data, found = library(jax.random.split(key, REPLICATES))
    inputs, targets, truth = (np.asarray(array) for array in (data.inputs, data.targets, data.truth))
    grams = inputs.mT @ inputs / samples
    moments = (inputs.mT @ targets[..., None])[..., 0] / samples
    rng = np.random.default_rng(clients * samples * rank)
    basis, heads = (0.01 * rng.standard_normal((REPLICATES, rows, rank)) for rows in (10, clients))
    weighted = (inputs * targets[..., None]).reshape(REPLICATES, -1, 10)
    spectral = np.linalg.eigh(weighted.mT @ weighted)[1][..., -rank:]
    plain = (
        reference.descend_many(grams, moments, basis, heads, step=0.03, rounds=2000),
        reference.alternate_many(grams, moments, spectral, step=0.03, rounds=2000),
    )
    error = lambda coefficients: np.linalg.norm(np.asarray(coefficients) - truth, axis=2).mean(1)
    return [(error(ours), error(theirs)) for ours, theirs in zip(found, plain, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("rank", PROTOTYPE)
@pytest.mark.parametrize("clients", [15, 30])
@pytest.mark.parametrize("samples", [12, 20])
def test_grid_of_c1(key, clients, samples, rank):
    """Within two standard errors of NumPy on the same problems; three of the difference from a prototype's own."""
    for which, (ours, theirs) in enumerate(monte_carlo(key, clients, samples, rank)):
        error = ours.std(ddof=1) / np.sqrt(REPLICATES)
        assert abs(ours.mean() - theirs.mean()) < 2 * error
        if (clients, samples) == (30, 20):
            assert abs(ours.mean() - PROTOTYPE[rank][which]) < 3 * error * np.sqrt(1 + REPLICATES / 100)


@pytest.mark.slow
def test_distance_to_the_best_model_falls_as_one_over_the_root_of_the_samples(key):
    """Log-log slope −0.5 ± 0.06 from 80 to 5,120 samples."""
    samples, distances = [80, 320, 1280, 5120], []
    for count in samples:

        def one(key, count=count):
            data = LinearTasks(15, 10, count).generate(key=key, dtype=jnp.float64)
            best = best_of_rank(data.truth, 4).coefficients
            return flute(
                data.inputs, data.targets, 4, key=key, rounds=1500, step_size=0.03, true_coefficients=best
            ).errors[-1]

        distances.append(jnp.mean(jax.jit(lambda keys, one=one: jax.lax.map(one, keys))(jax.random.split(key, 20))))
    slope = np.polyfit(np.log(samples), np.log(np.asarray(distances)), 1)[0]
    assert abs(slope + 0.5) < 0.06
