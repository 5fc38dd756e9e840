"""Estimates, ratios and tables."""

import jax
import numpy as np
import pytest
from rich.console import Console

from clairjax.experiments import Table
from clairjax.experiments._figure import band, new_figure
from clairjax.sweep import Estimate


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
