"""Experiments on images: which images, which cells, what is refused; FLUTE's tables, and Figure 2's optimum."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from clairjax.experiments import EXPERIMENTS, _flute_images, _images, flute_figure2
from clairjax.experiments._flute_image_report import PAPER, accuracy, method_rows
from clairjax.experiments._flute_images import CIFAR10, CIFAR100, METHODS, PARTITIONS, Cell, runs
from clairjax.sweep import Results


SHOWN = ("flute-table1", "flute-fig5", "flute-fig12")


def outputs(cell, rng):
    """As `replicate` gives them, with a client that has no test images."""
    right = rng.integers(10, 30, cell.clients)
    tests = np.full(cell.clients, 30)
    right[0] = tests[0] = 0
    found = {name: rng.uniform(0.2, 0.9, len(cell.evaluated)) for name in ("curve", "global_nc2", "local_nc2")}
    if cell.method not in ("Fed-LG", "FedRoD", "FedCP"):
        found["tuned"] = right.sum() / tests.sum()
    return found | {"accuracy": found["curve"][-1], "right": right, "tests": tests, "failed": False}


def made(cells, rng, replicates=3):
    arrays = {}
    for cell in cells:
        parts = [outputs(cell, rng) for _ in range(replicates)]
        arrays[cell] = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    zero = dict.fromkeys(cells, 0.0)
    told = {name: {"text": f"images for {name}", "digest": "0"} for name in (CIFAR10, CIFAR100)}
    manifest = {"arguments": {"arguments": {"images": told}}}
    return Results(arrays, {cell: np.zeros(replicates, bool) for cell in cells}, zero, zero, manifest)


def faked(name="flute-table1", **more):
    """The experiment with a replicate that trains nothing, and says which images it saw."""

    def replicate(key, cell, images, folder):
        return outputs(cell, np.random.default_rng(0)) | {"seen": np.array(images.classes)}

    return dataclasses.replace(EXPERIMENTS[name], replicate=replicate, **more)


def cifar10(folder, samples=20, side=32):
    """A binary CIFAR-10 of random pixels."""
    rng = np.random.default_rng(1)
    for number in range(6):
        name = "test_batch.bin" if number == 5 else f"data_batch_{number + 1}.bin"
        rows = rng.integers(0, 256, (samples, 1 + 3 * side**2)).astype(np.uint8)
        rows[:, 0] = np.arange(samples) % 10
        (folder / name).write_bytes(rows.tobytes())
    return folder


def test_the_paper_is_there_for_every_cell_and_its_best_method_is_its_own():
    assert set(PAPER) == {*METHODS, "FedAvg-FT"}
    assert all(len(row.values) == len(row.spreads) == len(PARTITIONS) for row in PAPER.values())
    assert {max(PAPER, key=lambda name: PAPER[name].values[i]) for i in range(len(PARTITIONS))} == {"FLUTE*"}
    printed = {
        (cell.dataset, cell.clients, cell.classes) for cell in EXPERIMENTS["flute-table1"].presets["paper"].cells
    }
    assert printed == set(PARTITIONS)


@pytest.mark.parametrize("name", SHOWN)
def test_every_report_has_the_images_and_the_paper_s_numbers(name, rng, tmp_path):
    cells = [cell for cell in EXPERIMENTS[name].presets["laptop"].cells if cell.large is False]
    tables = EXPERIMENTS[name].write(made(cells, rng), tmp_path)
    first = tables[0]
    assert {"accuracy", "paper", "paper ±", "Global NC2", "Local NC2"} <= set(first.columns)
    paper = first.columns.index("paper")
    assert len(first.rows) == len(cells) // len(METHODS) * len(PAPER)
    assert "–" not in {row[paper] for row in first.rows}
    assert all(any(re.search("images for CIFAR", note) for note in table.notes) for table in tables)
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_fedavg_is_shown_as_trained_and_behind_tuning(rng):
    results = made(runs(PARTITIONS[:1]), rng)
    rows = {row.part: row for row in method_rows(results)}
    assert list(rows)[:2] == ["FedAvg", "FedAvg-FT"] and len(rows) == 10
    np.testing.assert_array_equal(accuracy(rows["FedAvg"]), 100 * rows["FedAvg"]["accuracy"])
    np.testing.assert_array_equal(accuracy(rows["FedAvg-FT"]), 100 * rows["FedAvg"]["tuned"])
    np.testing.assert_array_equal(accuracy(rows["FLUTE"]), 100 * rows["FLUTE"]["tuned"])


def test_a_part_of_the_methods_is_reported(rng):
    """Also where there is nothing to compare with."""
    for methods, row in ((("FLUTE",), ("–",) * 5), (("FLUTE", "FedRep"), ("FedRep", None, "–", "0.88", "–"))):
        found = EXPERIMENTS["flute-table1"].report(made(runs(PARTITIONS[:1], methods), rng))[1].rows[0][3:]
        assert [text for text, known in zip(found, row, strict=True) if known is not None] == [
            known for known in row if known is not None
        ]


def test_a_method_looks_the_same_whichever_others_are_drawn(rng):
    def looks(methods):
        figure = EXPERIMENTS["flute-fig5"].plot(made(runs(PARTITIONS[:1], methods), rng))
        assert figure.get_suptitle().startswith("for CIFAR-10: images for CIFAR-10")
        return {line.get_label(): (line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}

    every, few = looks(METHODS), looks(("FLUTE*", "FedRep"))
    assert len(set(every.values())) == len(METHODS) and few == {name: every[name] for name in few}


def test_methods_of_a_partition_share_clients_and_start_and_figures_those_of_the_table():
    first, second = (Cell(*PARTITIONS[0], method) for method in ("FedAvg", "FLUTE"))
    alike = EXPERIMENTS["flute-table1"].alike
    assert alike(first) == alike(second) != alike(first._replace(clients=100))
    for number, where in enumerate(PARTITIONS, 5):
        drawn, printed = (EXPERIMENTS[name].presets["laptop"].cells for name in (f"flute-fig{number}", "flute-table1"))
        table = [alike(cell) for cell in printed if cell[:3] == where]
        assert {alike(cell) for cell in drawn if cell.large is False} <= set(table)


def test_each_cell_sees_the_images_that_stand_for_its_data(tmp_path):
    cells = [Cell(CIFAR10, 50, 2, "FedAvg"), Cell(CIFAR100, 100, 5, "FedAvg")]
    results = faked().run(cells=cells, replicates=1)
    assert [results[cell]["seen"].tolist() for cell in cells] == [[10], [100]]
    of_folder = faked().run(cells=cells, replicates=1, data=cifar10(tmp_path))
    assert of_folder.cells == (cells[0],)  # ten classes do not stand for a hundred
    (seen,) = of_folder.manifest["arguments"]["arguments"]["images"].values()
    assert "100 training and 20 test images of 32 × 32 in 3 channels" in seen["text"]


def test_a_preset_keeps_the_cells_for_images_of_that_size(tmp_path):
    small = faked().run(preset="laptop", replicates=1)
    assert {cell.large for cell in small.cells} == {False} and len(small.cells) == len(PARTITIONS) * len(METHODS)
    large = faked().run(preset="laptop", replicates=1, data=cifar10(tmp_path))
    assert {cell.large for cell in large.cells} == {True}


def test_other_images_than_those_of_the_folder_s_sweep_are_refused(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    cells = [Cell(CIFAR10, 50, 2, "FedAvg")]
    run = lambda data: faked().run(cells=cells, replicates=1, out=tmp_path / "out", data=data)
    run(cifar10(tmp_path / "one"))
    run(tmp_path / "one")
    with pytest.raises(ValueError, match="out holds another sweep: arguments must be"):
        run(cifar10(tmp_path / "two", samples=30))
    with pytest.raises(ValueError, match="out holds another sweep: arguments must be"):
        run(None)


def test_data_is_refused_where_none_is_taken():
    message = "--data must be left out, since clair-table1 draws its data, got images."
    with pytest.raises(ValueError, match=re.escape(message)):
        EXPERIMENTS["clair-table1"].run(data="images")


def test_a_foreign_or_truncated_file_is_named(tmp_path):
    cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"data_batch_3\.bin must be"):
        faked().run(preset="smoke", data=tmp_path)
    with pytest.raises(ValueError, match="nowhere must be a folder"):
        faked().run(preset="smoke", data=tmp_path / "nowhere")


def test_images_that_resemble_none_of_the_paper_s_are_refused(tmp_path):
    cifar10(tmp_path)
    with pytest.raises(ValueError, match="--data must be a folder with images of 100 classes or more, got"):
        faked("flute-fig9").run(preset="smoke", data=tmp_path)
    for file in tmp_path.glob("*.bin"):
        file.write_bytes(bytes(3073))
    with pytest.raises(
        ValueError, match=r"--data must be a folder with images of 2 classes or more, got .* 1 classes"
    ):
        faked().run(preset="smoke", data=tmp_path)


def test_pairs_of_digits_are_a_hundred_classes_from_apart_halves():
    images = _images.pairs_of_digits()
    train, labels, test, test_labels = images.data[:4]
    assert images.shape == (8, 16, 1) and set(np.bincount(labels)) == {len(labels) // 100}
    digits = _images.Images("", _images.digits()).data
    known = {image.tobytes(): label for image, label in zip(digits.images, digits.labels, strict=True)}
    found = lambda half: known.get(np.ascontiguousarray(half).tobytes())
    halves = [[found(half) for half in np.split(image, 2, axis=1)] for image in train[:100]]
    assert halves == [[*divmod(label, 10)] for label in range(100)]
    assert np.ascontiguousarray(test[0, :, :8]).tobytes() not in known and test_labels[7] == 7


def test_profile_refuses_what_trains_round_by_round():
    with pytest.raises(
        ValueError, match="NAME must be an experiment whose replicate is one compiled program, got flute-"
    ):
        EXPERIMENTS["flute-table1"].prepared([])


def test_heads_are_those_that_clients_use():
    """Of a small run of a method whose head is in the server's hands."""
    images = _images.images_for([CIFAR10], None)[CIFAR10]
    cell = EXPERIMENTS["flute-table1"].presets["smoke"].cells[0]
    assert cell.method == "FedAvg"
    found = _flute_images.replicate(jax.random.key(0), cell, images, None)
    assert found["curve"].shape == found["global_nc2"].shape == cell.evaluated.shape == (3,)
    assert found["right"].sum() / found["tests"].sum() == pytest.approx(found["tuned"])
    assert found["accuracy"] == found["curve"][-1] < found["tuned"] and not found["failed"]


def test_figure_2_s_heads_are_opposite_without_the_penalty(key):
    """Under shared features, against Observation B.3: of two classes only the difference of their weights counts."""
    found = jax.jit(lambda key: flute_figure2.replicate(key, flute_figure2.Cell("shared", "own")))(key)
    assert float(found["cosine"]) == pytest.approx(-1, abs=1e-4)
    assert float(found["local_nc2"]) < 1e-3
