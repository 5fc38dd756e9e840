"""The experiments of FLUTE and CENTAUR: reports and plots of made results, and what their verdicts say."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest

from clairjax import sweep
from clairjax.experiments import (
    EXPERIMENTS,
    centaur_linear,
    centaur_settings,
    flute_figure4,
    shared_or_local,
)
from clairjax.experiments import _flute_report as flute_report
from clairjax.experiments._budget import noise_for
from clairjax.experiments._claims import claims_table
from clairjax.experiments._subspace_problems import away, never_reached
from clairjax.privacy import epsilon
from clairjax.subspaces import subspace_distance
from clairjax.sweep import Results


NAMES = (
    "flute-fig1",
    "flute-fig3",
    "flute-fig4",
    "shared-or-local",
    "centaur-linear",
    "centaur-settings",
    "centaur-tradeoff",
)


@functools.cache
def shapes(name, cell):
    return jax.eval_shape(lambda key: EXPERIMENTS[name].replicate(key, cell), jax.random.key(0))


def alike(cell):
    """A cell whose outputs have the same shapes: one stands for many."""
    sizes = {"clients": 20, "features": 10, "rank": 2}
    return dataclasses.replace(cell, **{field: size for field, size in sizes.items() if hasattr(cell, field)})


def made(name, preset="smoke", replicates=4, **outputs):
    """Results of random numbers with an experiment's names and shapes; `outputs` replaces some."""
    draws = np.random.default_rng(0)
    experiment = EXPERIMENTS[name]
    cells = experiment.presets[preset].cells
    arrays = {
        cell: {
            output: outputs[output](cell, replicates)
            if output in outputs
            else draws.uniform(0.5, 1, (replicates, *shape.shape)).astype(shape.dtype)
            for output, shape in shapes(name, alike(cell)).items()
        }
        for cell in cells
    }
    zero = dict.fromkeys(cells, 0.0)
    return Results(arrays, {cell: np.zeros(replicates, bool) for cell in cells}, zero, zero, {})


@pytest.mark.parametrize("preset", ["smoke", "paper"])
@pytest.mark.parametrize("name", NAMES)
def test_every_report_and_plot(name, preset, tmp_path):
    tables = EXPERIMENTS[name].write(made(name, preset), tmp_path)
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.png", "report.md", "results.csv", "results.nc"]


def test_settings_are_searched_on_other_draws_than_those_shown():
    keys = {
        name: {
            jax.random.key_data(sweep.replicate_key(jax.random.key(0), cell, 0)).tobytes()
            for preset in EXPERIMENTS[name].presets.values()
            for cell in preset.cells
        }
        for name in ("centaur-settings", "centaur-tradeoff", "centaur-linear")
    }
    assert not keys["centaur-settings"] & (keys["centaur-tradeoff"] | keys["centaur-linear"])


FLUTES = {"flute-fig1": flute_report, "flute-fig3": flute_report, "flute-fig4": flute_figure4}


@pytest.mark.parametrize("name", FLUTES)
def test_noise_makes_a_verdict_in_one_report_of_twenty_at_most(name):
    """Methods that are all equally good, whatever the round, on replicates in common."""
    draws, reports, wrong = np.random.default_rng(0), 100, 0
    results = made(name, replicates=10)
    for _ in range(reports):
        for cell in results.cells:
            common = draws.normal(size=10)
            for output, values in results[cell].items():
                noise = common.reshape(-1, *[1] * (values.ndim - 1)) + draws.normal(size=values.shape)
                results.arrays[cell][output] = 10 + noise
        table = claims_table("", FLUTES[name].claims(results))
        wrong += any(row[1] != "undecided" for row in table.rows)
    assert wrong <= 0.05 * reports + 3 * math.sqrt(0.05 * 0.95 * reports)


def test_verdicts_of_figure_3_follow_the_figures():
    """FLUTE a tenth below FedRep at the end, above it for half of the way, and lower with more clients."""
    level = lambda cell, replicates: np.full(replicates, 100 / cell.clients) + np.arange(replicates) / 1e6
    points = lambda cell: len(cell.stored)

    def history(first, last):
        return lambda cell, replicates: np.stack(
            [
                np.where(np.arange(points(cell)) < points(cell) // 2, first, last) * value
                for value in level(cell, replicates)
            ]
        )

    outputs = {name: level for name in ("flute",)}
    outputs |= {
        name: lambda cell, count: 1.1 * level(cell, count) for name in ("fedrep", "fedrep_random", "fedrep_sum")
    }
    outputs |= {"flute_history": history(3, 1), "fedrep_history": history(1.1, 1.1)}
    outputs |= {"fedrep_random_history": history(5, 1.1), "fedrep_sum_history": history(1.1, 1.1)}
    results = made("flute-fig3", "laptop", replicates=10, **outputs)
    verdicts = {row[0]: row[1] for row in EXPERIMENTS["flute-fig3"].report(results)[-1].rows}
    assert verdicts["FLUTE ends below FedRep with the mean of the gradients"] == "true"
    assert verdicts["FedRep is ahead at first, FLUTE overtakes it"] == "true"
    assert verdicts["From a random start FedRep needs more rounds than FLUTE"] == "undecided"  # as many
    assert verdicts["More clients lower FLUTE's error"] == "true"


def test_the_best_pair_of_figure_4_is_found():
    error = lambda cell, count: np.tile(np.array([2.0, 1.0, 3.0, 0.5]) + 1e-3 * np.arange(count)[:, None], (1, 1))
    claims = EXPERIMENTS["flute-fig4"].report(made("flute-fig4", replicates=10, error=error))[-1].rows
    assert [row[1] for row in claims[:2]] == ["true", "true"]
    assert list(flute_figure4.PAIRS)[flute_figure4.EQUAL] == "γ1 = γ2"


@pytest.mark.parametrize("name", FLUTES)
def test_clients_on_their_own_stand_beside_what_they_share(name):
    """In the tables, the claims and the plot; a local error below the best of rank k leaves sharing nothing to win."""
    level = lambda value: lambda cell, count: value + 1e-3 * np.arange(count)
    outputs = {"ridge": level(2), "local_ridge": level(1), "floor": level(1.5), "flute": level(3)}
    error = lambda cell, count: np.tile(level(3)(cell, count)[:, None], (1, 4))
    results = made(name, replicates=10, **outputs, error=error)
    *tables, claims = EXPERIMENTS[name].report(results)
    for table in tables:
        assert {"local ridge", "local least squares"} <= set(table.columns)
    assert [row[1:] for row in claims.rows[-4:]] == [
        ("true", "lower by 33.3 to 33.3 %"),
        ("true", "lower by 66.6 to 66.6 %"),
        ("true", "lower by 49.9 to 49.9 %"),
        ("true", "lower by 33.2 to 33.2 %"),
    ]


def test_least_squares_of_a_client_alone_is_left_out_below_as_many_samples_as_features():
    results = made("flute-fig4", "paper")
    column = {row[0]: row[7] for row in EXPERIMENTS["flute-fig4"].report(results)[0].rows}
    assert [samples for samples, text in column.items() if text == "–"] == ["8", "9"]


def test_rates_and_slopes_are_fitted():
    errors = 0.2 * 0.75 ** np.arange(60)[None] * np.ones((3, 1))
    factor, straight = centaur_linear.rate(errors)
    assert factor.value == pytest.approx(0.75) and straight == pytest.approx(1)

    def floor(cell, count):
        values = [centaur_linear.predicted_floor(*setting, cell.clients, cell.features) for setting in cell.settings]
        return np.array(values)[None] * (1 + 1e-3 * np.arange(count)[:, None])

    found = {
        row.get("against"): row.get("measured").value
        for row in centaur_linear.slopes(made("centaur-linear", "laptop", floor=floor))
    }
    assert found["noise multiplier"] == pytest.approx(1)
    assert found["clients n, ζ ∝ √(d k log n)"] == pytest.approx(-0.94, abs=0.02)  # √log n
    assert found["features d, ζ held"] == pytest.approx(0.5, abs=0.03)


def test_settings_are_searched_at_the_epsilon_that_is_set(monkeypatch, key):
    experiment, asked = EXPERIMENTS["centaur-settings"], []
    monkeypatch.setattr(centaur_settings, "noise_for", lambda *budget: asked.append(budget) or noise_for(*budget))
    cells = experiment.choose("smoke", experiment.parse("smoke", ["epsilons=8"]))
    for cell in cells:
        jax.eval_shape(functools.partial(experiment.replicate, cell=cell), key)
    assert asked == [(8.0, cell.rounds) for cell in cells]
    with pytest.raises(ValueError, match=r"^epsilons must be one value, at which to search, got \(1\.0, 2\.0\)\.$"):
        experiment.choose("smoke", {"epsilons": (1.0, 2.0)})
    results = made("centaur-settings")
    at_8 = {cell: dataclasses.replace(cell, epsilons=(8.0,)) for cell in results.cells}
    moved = dataclasses.replace(
        results,
        arrays={at_8[cell]: arrays for cell, arrays in results.arrays.items()},
        failed={at_8[cell]: failed for cell, failed in results.failed.items()},
    )
    assert all("at ε = 8 (" in table.notes[0] for table in experiment.report(moved))


def test_the_budget_is_what_it_says(key):
    sigma = noise_for(2.0, 40)
    assert epsilon(sigma, 40, delta=1e-5, adjacency="add-or-remove-one") == pytest.approx(2.0, abs=1e-3)
    assert never_reached(1000, 50) == pytest.approx(0.05 * 2 * math.sqrt(100 * math.log(1000)))
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0]
    start = away(jax.numpy.asarray(basis), 0.2, key=key)
    assert subspace_distance(start, jax.numpy.asarray(basis)) == pytest.approx(0.2)


@pytest.mark.slow
def test_sharing_pays_where_the_models_share_and_costs_where_they_do_not():
    """At 40 samples, twice the features: the sentence of the README, and the distances that it rests on."""
    cell = shared_or_local.Cell(clients=10, samples=40)
    results = EXPERIMENTS["shared-or-local"].run(cells=[cell], replicates=10, progress=False)
    outputs = results[cell]
    shares = np.array(cell.outside)
    np.testing.assert_allclose(outputs["floor"][:, 0], 0, atol=1e-5)
    below = outputs["floor"] <= math.sqrt(2) * np.sqrt(shares) + 1e-5  # the shared subspace is one of rank 2
    assert below.all()
    words = [row[1] for row in EXPERIMENTS["shared-or-local"].report(results)[-1].rows[: len(shares)]]
    assert words == ["true", "true", "true", "false", "false", "false"]
