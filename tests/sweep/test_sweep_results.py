"""Means, standard errors, failures and tables of results."""

import csv
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import sweep


xr = pytest.importorskip("xarray")


class Cell(NamedTuple):
    size: int
    label: str
    level: float | None = None


CELLS = [Cell(3, "a", 0.5), Cell(5, "b", 1.5)]


def replicate(key, cell):
    x = jax.random.normal(key, (cell.size,), jnp.float32)
    return {
        "mean": x.mean(),
        "draws": x,
        "count": jnp.sum(x > 0),
        "positive": x > 0,
        "pair": jnp.ones((2, 2), x.dtype) * x[0],
    }


@pytest.fixture(scope="module")
def results():
    return sweep.run(replicate, CELLS, key=jax.random.key(0), replicates=12, lane_width=5)


def test_mean_and_standard_error(results):
    for cell in CELLS:
        values = results[cell]["draws"].astype(np.float64)
        assert values.shape == (12, cell.size)
        np.testing.assert_allclose(results.mean("draws")[cell], values.mean(0), rtol=1e-14)
        np.testing.assert_allclose(results.standard_error("draws")[cell], values.std(0, ddof=1) / 12**0.5, rtol=1e-14)
        assert results.mean("mean")[cell].dtype == results.mean("positive")[cell].dtype == np.float64
    with pytest.raises(KeyError, match="name: must be one of count, draws, mean, pair, positive; got nothing"):
        results.mean("nothing")


def test_standard_error_is_the_spread_of_the_mean():
    draws = np.random.default_rng(0).normal(size=(400, 64, 3))
    none = np.zeros(64, bool)
    repeated = [sweep.Results({"c": {"x": x}}, {"c": none}, {}, {}, {}) for x in draws]
    spread = np.std([results.mean("x")["c"] for results in repeated], axis=0, ddof=1)
    told = np.mean([results.standard_error("x")["c"] for results in repeated], axis=0)
    assert (abs(spread / told - 1) < 3.5 / np.sqrt(2 * 399)).all()


def some_fail(key, cell):
    x = jax.random.uniform(key, (cell.size,))
    worst = x.max()
    value = jnp.where(worst > 0.9, jnp.nan, worst)
    return {"value": jnp.where(worst < 0.4, jnp.inf, value), "failed": (worst > 0.8) & (worst <= 0.9), "x": x}


def test_failures_are_counted_named_and_left_out(tmp_path):
    results = sweep.run(some_fail, CELLS, key=jax.random.key(1), replicates=40, lane_width=8, out=tmp_path)
    for cell in CELLS:
        worst = results[cell]["x"].max(axis=1)
        expected = (worst > 0.8) | (worst < 0.4)
        assert 0 < expected.sum() < 40
        assert results.failures[cell] == tuple(np.flatnonzero(expected)) and results.replicates == 40
        assert {name: values.shape[0] for name, values in results.kept(cell).items()} == dict.fromkeys(
            results[cell], 40 - expected.sum()
        )
        estimate = results.estimate(cell, "value")
        assert estimate == (results.mean("value")[cell], results.standard_error("value")[cell])
        assert results.estimate(cell, lambda outputs: outputs["value"]) == estimate
        np.testing.assert_allclose(results.mean("value")[cell], results[cell]["value"][~expected].mean(), rtol=1e-6)
        assert not np.isfinite(results.mean("value", include_failed=True)[cell])
        assert not np.isfinite(results.standard_error("value", include_failed=True)[cell])
    total = sum(map(len, results.failures.values()))
    assert repr(results) == f"Results(2 cells x 40 replicates, {total} failed)"
    again = sweep.replicate_key(jax.random.key(1), CELLS[0], results.failures[CELLS[0]][0])
    alone = some_fail(again, CELLS[0])
    assert not np.isfinite(alone["value"]) or alone["failed"]


def test_nothing_left_and_one_left_give_nan():
    none = sweep.run(lambda key, cell: {"v": jnp.nan}, [Cell(1, "a")], key=jax.random.key(0), replicates=3)
    assert np.isnan(none.mean("v")[Cell(1, "a")]) and np.isnan(none.standard_error("v")[Cell(1, "a")])
    one = sweep.run(lambda key, cell: {"v": 1.0}, [Cell(1, "a")], key=jax.random.key(0), replicates=1)
    assert one.mean("v")[Cell(1, "a")] == 1 and np.isnan(one.standard_error("v")[Cell(1, "a")])


def test_xarray_is_labelled_and_pads_ragged_cells_with_nan(results):
    data = results.to_xarray(dims={"draws": ("client",), "positive": ("client",)})
    assert dict(data.sizes) == {"cell": 2, "replicate": 12, "client": 5, "pair_0": 2, "pair_1": 2}
    assert data["size"].values.tolist() == [3, 5] and data["label"].values.tolist() == ["a", "b"]
    assert data.draws.dtype == np.float32 and data["count"].dtype.kind == "i" and data.positive.dtype == np.float64
    assert np.isnan(data.draws[0, :, 3:]).all() and np.isnan(data.positive[0, :, 3:]).all()
    for i, cell in enumerate(CELLS):
        assert np.array_equal(data.draws[i, :, : cell.size], results[cell]["draws"])
        assert np.array_equal(data["mean"][i], results[cell]["mean"])
    assert float(data["mean"].mean("replicate")[1]) == pytest.approx(float(results.mean("mean")[CELLS[1]]), rel=1e-5)
    assert (data.compile_seconds > 0).all() and (data.run_seconds > 0).all()
    assert data.attrs["lane_width"] == "5"


def test_netcdf_round_trip(results, tmp_path):
    results.to_netcdf(tmp_path / "new" / "results.nc")
    with xr.open_dataset(tmp_path / "new" / "results.nc", engine="scipy") as read:
        expected = results.to_xarray()
        for name in ("mean", "draws", "count", "positive", "failed", "size", "level"):
            np.testing.assert_array_equal(read[name].values, expected[name].values)
        assert read["label"].values.astype(str).tolist() == ["a", "b"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["results.nc"]


def test_csv_is_tidy_and_exact(results, tmp_path):
    results.to_csv(tmp_path / "results.csv")
    with open(tmp_path / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["size", "label", "level", "replicate", "failed", "name", "index", "value"]
    assert len(rows) == 12 * ((3 * 2 + 2 + 4) + (5 * 2 + 2 + 4))
    seen = {(int(r["size"]), int(r["replicate"]), r["name"], r["index"]): r["value"] for r in rows}
    for cell in CELLS:
        for i in range(12):
            assert np.float32(seen[cell.size, i, "mean", ""]) == results[cell]["mean"][i]
            assert np.float32(seen[cell.size, i, "draws", "2"]) == results[cell]["draws"][i, 2]
            assert float(seen[cell.size, i, "pair", "1;0"]) == results[cell]["pair"][i, 1, 0]
            assert seen[cell.size, i, "positive", "0"] == str(results[cell]["positive"][i, 0])
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]


def test_a_write_that_fails_leaves_the_old_file(results, tmp_path, monkeypatch):
    results.to_csv(tmp_path / "results.csv")
    old = (tmp_path / "results.csv").read_bytes()

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr("clairjax.sweep._results.csv.writer", broken)
    with pytest.raises(OSError, match="disk full"):
        results.to_csv(tmp_path / "results.csv")
    assert (tmp_path / "results.csv").read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]


def test_without_xarray_the_extra_is_named(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"to_xarray needs xarray: pip install 'clairjax\[experiments\]'"):
        results.to_xarray()
