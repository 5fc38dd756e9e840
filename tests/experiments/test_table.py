"""Estimates, ratios and tables."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from clairjax.experiments import Column, Experiment, Preset, Row, Table, Tabulated
from clairjax.experiments._figure import band, curve, new_figure, panels
from clairjax.sweep import Estimate, Results


def test_an_estimate_shows_its_standard_error():
    assert str(Estimate.of(np.array([1.0, 2.0, 3.0]))) == f"2.000 ±{1 / np.sqrt(3):.3f}"
    assert str(Estimate.of(np.array([1.5]))) == "1.500"
    assert str(Estimate.of(np.array([]))) == "–"
    assert str(Estimate(201.6057, 1.2345)) == "201.61 ±1.23"


def test_ratio_has_the_error_of_paired_replicates(key):
    """The delta method against the spread of the ratio over many repetitions."""
    draws = np.asarray(jax.random.normal(key, (1000, 2, 100)))
    denominator = 5 + draws[:, 0]
    numerator = 2 * denominator + 0.1 * draws[:, 1]
    found = [Estimate.ratio(n, d) for n, d in zip(numerator, denominator, strict=True)]
    spread = np.std([estimate.value for estimate in found])
    assert np.mean([estimate.error for estimate in found]) == pytest.approx(spread, rel=0.1)
    assert np.mean([estimate.value for estimate in found]) == pytest.approx(2, abs=1e-3)


def test_a_band_is_as_wide_as_the_standard_errors_of_a_table():
    values = np.array([[1.0, 2.0], [2.0, 5.0], [4.0, 3.0]])
    _, (axis,) = new_figure(1)
    band(axis, np.arange(2), values, "")
    (path,) = axis.collections[0].get_paths()
    for x, column in enumerate(values.T):
        heights = path.vertices[path.vertices[:, 0] == x, 1]
        centre, error = Estimate.of(column)
        assert (heights.min(), heights.max()) == pytest.approx((centre - error, centre + error))


TABLE = Table("Errors", ("K", "‖P‖ | Q"), (("5", "1.0"), ("10", "2.0")), ("A note.",), rules=(1,))


def test_a_table_as_markdown():
    assert TABLE.to_markdown() == (
        "**Errors**\n\n| K | ‖P‖ \\| Q |\n| --- | --- |\n| 5 | 1.0 |\n| 10 | 2.0 |\n\nA note.  \n"
    )


def test_a_table_on_a_terminal():
    console = Console(width=80)
    with console.capture() as capture:
        console.print(TABLE)
    lines = [line.strip() for line in capture.get().splitlines()]
    assert lines[0] == "Errors" and "A note." in lines
    assert [line.split() for line in lines if line[:1].isdigit()] == [["5", "1.0"], ["10", "2.0"]]


class Cell(NamedTuple):
    size: int
    law: str = "even"

    @property
    def half(self):
        return self.size / 2


def results():
    """Two cells with four replicates each, of which one has failed in the first."""
    cells = Cell(3), Cell(5, "odd")
    arrays = {cell: {"error": cell.size + np.array([1.0, -1.0, 1.0, np.nan])} for cell in cells}
    arrays[cells[1]] = {"error": np.ones(4), "pair": np.array([[1, 2]] * 4)}
    failed = {cells[0]: np.array([False, False, False, True]), cells[1]: np.zeros(4, bool)}
    return Results(arrays, failed, {}, {}, {})


def test_columns_show_fields_means_and_what_functions_give():
    columns = [Column("K", "size"), Column("law"), Column("half"), Column("error"), Column("pair of", "nothing")]
    columns[-1] = Column("first of a pair", lambda row: row["pair"][0, 0] if "pair" in row.outputs else None)
    table = Tabulated(lambda results: f"{results.replicates}", columns, ("a", lambda _: ""), group="law")(results())
    assert table.title == "4" and table.notes == ("a",) and table.rules == (1,)
    assert table.rows == (("3", "even", "1.5", "3.333 ±0.667", "–"), ("5", "odd", "2.5", "1.000 ±0.000", "1"))


def test_columns_are_data_and_text_names_fields():
    """A title alone, the arguments of a column, and a ratio; braces hold fields of the first row's cell."""
    rows = lambda results: [Row(Cell(3), {"a": np.array([1.0, 2.0]), "b": np.array([2.0, 4.0])})]
    columns = ["law", ("K", "size"), ("a / b", "a / b", 1), Column("b", digits=0)]
    table = Tabulated("K = {size}, {replicates} replicates", columns, ("half {half:g}",), rows)(results())
    assert table.columns == ("law", "K", "a / b", "b") and table.rows == (("even", "3", "0.5 ±0.0", "3 ±1"),)
    assert table.title == "K = 3, 4 replicates" and table.notes == ("half 1.5",)
    with pytest.raises(ValueError, match=r"^title and notes: each name in braces must be a field .*, got sise\.$"):
        Tabulated("{sise}", columns, rows=rows)(results())
    with pytest.raises(ValueError, match=r"^columns: each name must be one of size, law, a, b, got c\.$"):
        Tabulated("", ["a / c"], rows=rows)(results())


def test_a_column_of_nothing_is_refused_and_a_table_of_no_rows_says_so():
    with pytest.raises(ValueError, match=r"^columns: each name must be one of size, law, error, pair, got eror\.$"):
        Tabulated("", [Column("eror")])(results())
    assert Tabulated("", [Column("eror"), Column("law")], rows=lambda _: [])(results()).rows == (("none", ""),)


def test_a_row_along_axes_has_their_values_by_name():
    outputs = {"one": np.ones(2), "grid": np.arange(12.0).reshape(2, 2, 3)}
    rows = Row(Cell(3), outputs).along(law="ab", place=(10, 20, 30))
    assert [(row.get("law"), row.get("place"), row.get("size")) for row in rows[2:4]] == [("a", 30, 3), ("b", 10, 3)]
    assert [row.mean("grid").value for row in rows] == [3, 4, 5, 6, 7, 8]
    assert [row.mean("one").value for row in rows] == [1] * 6


def test_a_plot_has_a_panel_for_each_row_and_one_legend():
    @panels("errors", columns=1)
    def plot(axis, row):
        curve(axis, [row], "size", "error", "mean")
        axis.set_title(row.cell.law)

    figure = plot(results())
    assert [axis.get_title() for axis in figure.axes] == ["even", "odd"]
    assert [axis.get_ylabel() for axis in figure.axes] == ["errors", ""]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["mean"]
    assert [axis.lines[0].get_xydata().tolist() for axis in figure.axes] == [[[3, pytest.approx(10 / 3)]], [[5, 1]]]


def test_panels_below_each_other_are_labelled_and_under_one_line():
    plot = panels("errors", across=1, above=lambda found: f"{found.replicates} replicates")(lambda axis, row: None)
    figure = plot(results())
    assert [axis.get_ylabel() for axis in figure.axes] == ["errors", "errors"]
    assert [axis.get_subplotspec().rowspan.start for axis in figure.axes] == [0, 1]
    assert figure.get_suptitle() == f"{results().replicates} replicates"


MINE = Experiment("mine", "", {"tiny": Preset((Cell(3),), 2)}, lambda key, cell: {"error": 0.0}, [Tabulated("", [])])


def test_the_first_table_names_failed_replicates():
    first, second = dataclasses.replace(MINE, tables=MINE.tables * 2).report(results())
    assert first.notes == ("size 3, law even: replicates 3 failed, left out.",) and second.notes == ()


def test_what_is_prepared_reaches_every_replicate():
    """And nothing of it stays."""
    asked = []
    prepare = lambda cells, out, progress: asked.append(cells) or {"value": 7.0}
    replicate = lambda key, cell, shared: {"error": jnp.asarray(shared["value"])}
    prepared = dataclasses.replace(MINE, prepare=prepare, replicate=replicate)
    assert (prepared.run()[Cell(3)]["error"] == 7).all() and asked == [(Cell(3),)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "name must be letters, digits"),
        ({"name": ""}, "name must be letters, digits"),
        ({"tables": []}, "presets and tables must be one or more each"),
        ({"presets": {}}, "presets and tables must be one or more each"),
    ],
)
def test_an_experiment_that_cannot_run_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(MINE, **changes)
