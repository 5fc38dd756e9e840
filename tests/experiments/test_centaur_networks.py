"""CENTAUR's experiments on networks: cells, what is spent, tables and plots of made results, and a run."""

import math

import numpy as np
import pytest

from clairjax.experiments import EXPERIMENTS
from clairjax.experiments import _centaur_networks as networks
from clairjax.experiments._centaur_network_report import PAPER
from clairjax.experiments.centaur_figure1 import table_2
from clairjax.sweep import Results


NAMES = ("centaur-table1", "centaur-table3", "centaur-fig1", "centaur-fig3")
IMAGES = {"text": "some digits", "digest": "0"}


def made(name, preset, replicates=3):
    """Results as a run gives them: CENTAUR is right in 60 % and another in 50 %, each replicate 1 % more."""
    cells = EXPERIMENTS[name].choose(preset)
    arrays = {}
    for cell in cells:
        accuracy = (0.6 if cell.method == "CENTAUR" else 0.5) + 0.01 * np.arange(replicates)
        curve = accuracy[:, None] * np.linspace(0.1, 1, len(cell.evaluated))
        arrays[cell] = {"accuracy": accuracy, "best": accuracy + 0.05, "best_round": np.full(replicates, 10)}
        spent = networks.spent(cell)
        arrays[cell] |= {"curve": curve} | {key: np.tile(value, (replicates, 1)) for key, value in spent.items()}
    zero = dict.fromkeys(cells, 0.0)
    manifest = {"arguments": {"arguments": {"images": {cell.dataset: IMAGES for cell in cells}}}}
    return Results(arrays, {cell: np.zeros(replicates, bool) for cell in cells}, zero, zero, manifest)


@pytest.mark.parametrize("name", NAMES)
def test_every_report_and_plot(name, tmp_path):
    """The images are told in every table; last and best round apart; both adjacencies."""
    results = made(name, "paper")
    tables = EXPERIMENTS[name].write(results, tmp_path)
    for table in tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert any("some digits" in note for note in table.notes)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    columns = tables[0].columns
    assert {"ε, add-or-remove-one", "ε, replace-one", "last round"} < set(columns)
    rows = [dict(zip(columns, row, strict=True)) for row in tables[0].rows]
    mine = next(row for row in rows if row["method"] == "CENTAUR" and row["ε, add-or-remove-one"] == "1.00")
    assert float(mine["ε, replace-one"]) > 1.9
    assert mine["last round"] == "61.00 ±0.58" and mine["best round by validation: not covered"] == "66.00 ±0.58"


def test_the_paper_is_beside_its_own_cells():
    rows = EXPERIMENTS["centaur-table1"].report(made("centaur-table1", "paper"))[0].rows
    found = [row[-1] for row in rows if row[3] == "200" and row[1] == "500"]
    assert found == [
        "50.03 (1.59)",
        "46.17 (0.12)",
        "–",
        "49.35 (0.44)",
        "–",
        "48.69 (1.44)",
        "–",
        "53.23 (0.92)",
        "–",
    ]
    where = {(cell.dataset, cell.clients, cell.classes, cell.rounds) for cell in every("paper", NAMES[:2])}
    assert where == set(PAPER)


def test_differences_are_paired_within_a_partition():
    rows = EXPERIMENTS["centaur-table1"].report(made("centaur-table1", "paper"))[1].rows
    (mine,) = (row for row in rows if row[1] == "500" and row[4] == "CENTAUR" and row[5] == "1.00")
    assert mine[6:] == ("10.00 ±0.00", "–")


def every(preset, names):
    return [cell for name in names for cell in EXPERIMENTS[name].choose(preset)]


def test_noise_is_that_of_the_rounds():
    cell = networks.Cell("CIFAR-10", 100, 5, "CENTAUR", rounds=30)
    spent = networks.spent(cell)
    own, other = (spent[name] for name in networks.ADJACENCIES)
    assert cell.evaluated.tolist() == [0, 10, 20, 30] and own[0] == other[0] == 0
    assert 1 - 1e-3 <= own[-1] <= 1 and (np.diff(own) > 0).all() and (other[1:] > own[1:]).all()
    assert networks.spent(cell._replace(epsilon=math.inf)) == {}


def test_clip_norms_are_the_papers():
    for cell in EXPERIMENTS["centaur-fig1"].choose("paper"):
        if cell.private:
            assert cell.clip == table_2(cell.dataset, cell.method, cell.epsilon)
    assert {cell.clip for cell in every("paper", NAMES[:1]) if cell.private} == {0.01, 0.02, 0.25}


@pytest.mark.slow
def test_a_run_of_the_smallest_preset(tmp_path):
    results = EXPERIMENTS["centaur-fig1"].run(preset="smoke", out=tmp_path, progress=False)
    assert not any(failed.any() for failed in results.failed.values())
    for cell in results.cells:
        assert results.arrays[cell]["curve"].shape == (1, 3)
