"""The experiments: their sizes and printed figures, reports and plots of made results, and one small run of each."""

import csv
import functools
import json
import os
import re

import jax
import numpy as np
import pytest

from clairjax import clair, sweep
from clairjax.experiments import EXPERIMENTS, clair_constants, clair_figure1, clair_table1, clair_table2
from clairjax.experiments._clair_simulations import PUBLISHED, SAMPLES, Cell, by_dimension, mean_square_error
from clairjax.experiments._slopes import fit
from clairjax.sweep import Estimate, Results


SIMULATIONS = ("clair-table1", "clair-table2", "clair-fig1", "clair-constants")
REPLICATES = int(os.environ.get("CLAIRJAX_TEST_REPLICATES", "100"))


@functools.cache
def output_shapes(name, cell):
    return jax.eval_shape(lambda key: EXPERIMENTS[name].replicate(key, cell), jax.random.key(0))


def made(name, cells, replicates=6, **outputs):
    """Results of random numbers with an experiment's names, and shapes of one cell; `outputs` replaces some."""
    draws = np.random.default_rng(0)
    ranks = dict.fromkeys(("auto_rank", "published_rank"), lambda cell, replicates: np.full(replicates, 2, np.int32))
    outputs = ranks | outputs
    shapes = output_shapes(name, EXPERIMENTS[name].presets["smoke"].cells[0])
    arrays = {}
    for cell in cells:
        arrays[cell] = {
            output: outputs[output](cell, replicates)
            if output in outputs
            else draws.uniform(0.5, 1, (replicates, *shape.shape)).astype(shape.dtype)
            for output, shape in shapes.items()
        }
    zero = dict.fromkeys(cells, 0.0)
    return Results(arrays, {cell: np.zeros(replicates, bool) for cell in cells}, zero, zero, {})


def every_cell(name):
    return EXPERIMENTS[name].presets["paper"].cells


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_line_and_three_presets(name):
    experiment = EXPERIMENTS[name]
    assert experiment.name == name and "\n" not in experiment.summary
    assert list(experiment.presets) == ["smoke", "laptop", "paper"]
    assert all(preset.replicates > 0 for preset in experiment.presets.values())


@pytest.mark.parametrize("name", SIMULATIONS)
def test_presets_are_parts_of_the_paper(name):
    experiment = EXPERIMENTS[name]
    cells = [set(preset.cells) for preset in experiment.presets.values()]
    assert cells[0] <= cells[2] and cells[1] <= cells[2] and len(cells[0]) <= 3
    assert experiment.presets["paper"].replicates == 100


def test_the_paper_preset_has_the_printed_rows():
    for name, paper in (("clair-table1", clair_table1.PAPER), ("clair-table2", clair_table2.PAPER)):
        assert [(cell.dimension, cell.samples, cell.clients) for cell in every_cell(name)] == list(paper)
    assert max(cell.clients for cell in every_cell("clair-fig1")) == 160


def test_constants_are_tuned_on_other_draws_than_the_tables():
    key = jax.random.key(0)
    tables = {name: every_cell(name) for name in SIMULATIONS if name != "clair-constants"}
    used = {int(jax.random.key_data(sweep.replicate_key(key, cell, 0))[1]) for row in tables.values() for cell in row}
    tuning = {int(jax.random.key_data(sweep.replicate_key(key, cell, 0))[1]) for cell in every_cell("clair-constants")}
    assert not used & tuning
    assert set(PUBLISHED) == set(SAMPLES)


@pytest.mark.parametrize("name", SIMULATIONS)
def test_every_report_and_plot_of_every_cell(name, tmp_path):
    cells = every_cell(name)
    tables = EXPERIMENTS[name].write(made(name, cells), tmp_path)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert len(tables[0].rows) == len(cells)
    assert (tmp_path / "report.md").read_text().count("**\n") == len(tables)
    with open(tmp_path / "results.csv") as file:
        assert next(csv.reader(file))[:3] == ["dimension", "samples", "clients"]


def test_figure1_without_any_rank_found(tmp_path):
    wrong = dict.fromkeys(("auto_rank", "published_rank"), lambda cell, replicates: np.ones(replicates, np.int32))
    tables = EXPERIMENTS["clair-fig1"].write(made("clair-fig1", every_cell("clair-fig1")[:2], **wrong), tmp_path)
    assert [row[6:] for row in tables[0].rows] == [("6", "6")] * 2
    assert tables[1].rows[0][2:] == ("–", "–", "–", "–", "-0.5")


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_report_of_failed_replicates(name, tmp_path):
    results = made(name, every_cell(name)[:1])
    (cell,) = results.cells
    results.failed[cell][:] = True
    results.failed[cell][4] = False
    tables = EXPERIMENTS[name].write(results, tmp_path)
    notes = [note for table in tables for note in table.notes]
    assert notes.count("All: replicates 0, 1, 2, 3, 5 failed, left out.") == 1


def test_table1_shows_the_paper_only_for_its_own_sizes():
    report = EXPERIMENTS["clair-table1"].report(made("clair-table1", [Cell(10, 100, 10), Cell(10, 200, 10)]))
    printed = {row[1]: row[4] for row in report[0].rows}
    assert printed == {"100": "1.117", "200": "–"}


def test_table1_says_which_law_contaminates():
    cells = [Cell(10, 100, 10, contamination="uniform")]
    notes = EXPERIMENTS["clair-table1"].report(made("clair-table1", cells))[0].notes
    assert "Contamination drawn uniform; the paper's FedAvg columns need unit variance (normal)." in notes


def test_table2_lists_where_a_method_errs():
    zeros = lambda cell, replicates: np.zeros(replicates, int)
    wrong = {name: zeros for name in ("auto_excluded", "auto_missed", "published_missed")}
    wrong["published_excluded"] = lambda cell, replicates: np.array([0, 0, 2, 0, 0, 0])
    wrong["signal"] = lambda cell, replicates: np.full(replicates, 3.0)
    wrong["published_rank"] = lambda cell, replicates: np.array([2, 2, 1, 2, 2, 2])
    report = EXPERIMENTS["clair-table2"].report(made("clair-table2", [Cell(50, 300, 10)], **wrong))
    assert report[2].rows == (("50", "300", "10", "2", "3", "as published", "2", "0", "1"),)
    assert (
        "as published: 2 benign clients excluded, 0 contaminated clients kept, rank other than 2 in 1 replicates."
        in (report[2].notes)
    )
    assert [row[5:] for row in report[1].rows] == [("–", "–", "–")] * 2  # c = 4, 5, 6 were not drawn


def test_table2_says_when_nothing_errs():
    zeros = lambda cell, replicates: np.zeros(replicates, int)
    none = dict.fromkeys(("auto_excluded", "auto_missed", "published_missed", "published_excluded"), zeros)
    report = EXPERIMENTS["clair-table2"].report(made("clair-table2", [Cell(50, 300, 10)], **none))
    assert report[2].rows == (("none", *[""] * 8),)
    assert len(report[2].notes) == 2


def test_figure1_plots_and_fits_on_the_members_but_one():
    """The abscissa of the slopes that the README quotes."""
    law = lambda cell, replicates: 2 * (cell.benign - 1) ** -0.5 * np.linspace(0.9, 1.1, replicates)
    figure = clair_figure1.plot(made("clair-fig1", every_cell("clair-fig1"), auto=law, published=law))
    (axis, *_) = figure.axes
    assert axis.get_xlabel() == "members but one, |C| − 1"
    assert [text.get_text().split(" ±")[0] for text in axis.texts] == ["slope on |C| − 1: -0.50"] * 2


def test_figure1_fits_a_slope_with_its_error(key):
    """On points with known slope and known noise: unbiased, with the spread that the fit says."""
    clients = [10, 20, 40, 80]
    truth = 3 * np.array(clients) ** -0.5
    noise = 0.02 * np.asarray(jax.random.normal(key, (1000, 4)))
    lines = [fit(clients, list(map(Estimate, truth * (1 + e), 0.02 * truth))) for e in noise]
    slopes = np.array([line.slope.value for line in lines])
    assert abs(slopes.mean() + 0.5) < 4 * slopes.std() / np.sqrt(1000)
    assert slopes.std() == pytest.approx(lines[0].slope.error, rel=0.1)
    assert fit(clients, [Estimate(1.0, float("nan"))] * 4).slope.value != 0  # NaN, not a guess


def test_constants_best_is_the_smallest_worst_case():
    def ratios(cell, replicates):
        grid = np.full((replicates, len(clair_constants.C1), len(clair_constants.RATIOS)), 2.0)
        grid[:, 1, 4] = 1.2
        grid[:, 0, 0] = 1.0 if cell.clients == 5 else 3.0
        return grid

    cells = [cell for cell in every_cell("clair-constants") if cell.dimension == 20]
    (rows,) = by_dimension(made("clair-constants", cells, ratio=ratios))
    assert clair_constants.best(rows).constants == (1.4, 1.4 * 3.5)


def test_table1_replicate_is_the_public_functions(tmp_path):
    """One small run, and one replicate of it by hand."""
    cell = Cell(10, 100, 5)
    results = EXPERIMENTS["clair-table1"].run(cells=[cell], replicates=2, seed=3, out=tmp_path, progress=False)
    assert json.loads((tmp_path / "manifest.json").read_text())["arguments"]["arguments"]["seed"] == 3
    problem = cell.generate(sweep.replicate_key(jax.random.key(3), cell, 1))
    shrunk = clair(problem.estimates, shrink=True)
    expected = {
        "local": problem.estimates,
        "shrink": shrunk.refined,
        "fedavg": problem.estimates.mean(0)[None].repeat(5, 0),
    }
    for name, matrices in expected.items():
        np.testing.assert_allclose(results[cell][name][1], mean_square_error(matrices, problem), rtol=1e-8)
    report = EXPERIMENTS["clair-table1"].write(results, tmp_path)
    assert re.fullmatch(r"\d\.\d{3} ±\d\.\d{3}", report[1].rows[0][5])


def test_figure1_replicate_finds_the_row_space():
    cell = Cell(10, 100, 5)
    key = sweep.replicate_key(jax.random.key(0), cell, 0)
    outputs = jax.jit(clair_figure1.replicate, static_argnums=1)(key, cell)
    assert outputs["auto_rank"] == 2 and outputs["auto_status"] == 0
    assert 0 < outputs["auto"] < 0.5 and 0 < outputs["published"] <= 1


def test_unknown_dimensions_have_no_published_constants():
    with pytest.raises(ValueError, match=re.escape("dimension must be one of 10, 20, 50, where")):
        EXPERIMENTS["clair-table1"].run(cells=[Cell(12, 100, 5)], replicates=1)


@pytest.mark.slow
def test_table1_of_one_cell_against_the_paper():
    """Columns that need no tuning within three standard errors (the printed ones have as much), at p = 10, K = 10."""
    cell = Cell(10, 100, 10)
    results = EXPERIMENTS["clair-table1"].run(cells=[cell], replicates=REPLICATES, progress=False)
    paper = clair_table1.PAPER[10, 100, 10]
    for name in ("local", "fedavg", "oracle_fedavg"):
        error = np.hypot(
            results.standard_error(name)[cell], results.standard_error(name)[cell] * (REPLICATES / 100) ** 0.5
        )
        assert abs(results.mean(name)[cell] - getattr(paper, name)) < 3 * error
    assert results.mean("auto")[cell] < 1.06 * results.mean("label_oracle")[cell]
