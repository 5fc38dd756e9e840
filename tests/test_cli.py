"""The command line, on an experiment that costs nothing: what it prints, writes, resumes and refuses."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_type_hints

import jax
import jax.numpy as jnp
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import clairjax
from clairjax.cli import _app as cli
from clairjax.experiments import EXPERIMENTS, Column, Experiment, Preset, Tabulated, grid


@dataclasses.dataclass(frozen=True)
class Cell:
    size: int
    law: str = "even"


def replicate(key, cell):
    words = jax.random.key_data(key) % 1009
    return {"mean": jnp.sin(words.sum().astype(float) * jnp.arange(1.0, cell.size + 1)).mean()}


def plot(results):
    return Figure((1, 1))


SINES = Experiment(
    name="sines",
    summary="Means of sines",
    presets={
        "smoke": Preset(grid(Cell, size=(2,)), 3),
        "laptop": Preset(grid(Cell, size=(2, 4)), 8),
        "paper": Preset(grid(Cell, size=(2, 4)), 9),
    },
    replicate=replicate,
    tables=[Tabulated("Sines", [Column("size"), Column("law"), Column("mean", digits=4)])],
    plot=plot,
)


@dataclasses.dataclass(frozen=True)
class Grid:
    points: tuple[float, ...] = (1.0, 2.0)
    law: Literal["even", "odd"] = "even"
    flag: bool = True
    batch: int | None = None


@dataclasses.dataclass(frozen=True)
class Counted:
    """A second kind of cell, with two fields of the first and one of its own."""

    counts: tuple[int, ...]
    law: Literal["even", "odd"] = "even"
    batch: int | None = None


def values(key, cell):
    points = cell.points if isinstance(cell, Grid) else cell.counts
    return {"mean": jnp.sin(jnp.array(points, float) * (jax.random.key_data(key) % 1009).sum().astype(float)).mean()}


MIXED = dataclasses.replace(
    SINES,
    name="mixed",
    presets={
        "smoke": Preset((Grid(), Counted((2,))), 3),
        "laptop": Preset((Grid(), Counted((2,)), Counted((4,))), 8),
        "paper": Preset((Grid(), Counted((2,)), Counted((4,))), 9),
    },
    replicate=values,
    tables=[Tabulated("Mixed", [Column("cell", lambda row: str(row.cell))])],
)


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    """Runs the command line in this process, in an empty folder, and puts x64 back."""
    monkeypatch.setitem(EXPERIMENTS, "sines", SINES)
    monkeypatch.setitem(EXPERIMENTS, "mixed", MIXED)
    monkeypatch.chdir(tmp_path)
    wide = jax.config.jax_enable_x64
    yield lambda *arguments: CliRunner().invoke(cli.app, list(map(str, arguments)))
    jax.config.update("jax_enable_x64", wide)


def test_version(invoke):
    assert invoke("--version").output == f"clairjax {clairjax.__version__}\n"


def test_list_names_every_experiment_and_its_sizes(invoke):
    lines = invoke("list").output.splitlines()
    assert {line.split()[0] for line in lines[1:] if line.strip()} >= set(EXPERIMENTS)
    (sines,) = (line for line in lines if line.startswith("sines"))
    assert sines.split()[1:] == ["Means", "of", "sines", "1", "×", "3", "2", "×", "8", "2", "×", "9"]


def test_reproduce_prints_the_table_and_writes_everything(invoke, tmp_path):
    done = invoke("reproduce", "sines", "--preset", "smoke", "--seed", 5, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "Sines" in done.stdout and "Results(1 cells x 3 replicates, 0 failed)" in done.stdout
    for name in ("manifest.json", "results.csv", "results.nc", "report.md", "figure.png"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["status"] == "complete" and manifest["wall_seconds"] > 0
    assert manifest["arguments"]["arguments"] == {"experiment": "sines", "seed": 5}
    assert manifest["arguments"]["jax_enable_x64"] is True


def test_the_same_command_resumes_and_more_replicates_extend(invoke, tmp_path):
    first = invoke("reproduce", "sines", "--preset", "smoke", "--out", "out")
    blocks = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/*/block-*.npz")}
    again = invoke("reproduce", "sines", "--preset", "smoke", "--out", "out")
    assert again.stdout.split("Results")[0] == first.stdout.split("Results")[0]
    more = invoke("reproduce", "sines", "--preset", "smoke", "--replicates", 5, "--out", "out")
    assert more.exit_code == 0 and "1 cells x 5 replicates" in more.output
    assert {path: path.stat().st_mtime_ns for path in blocks} == blocks


def test_progress_goes_to_standard_error_in_plain_lines(invoke):
    done = invoke("reproduce", "sines", "--out", "out")
    assert done.stderr.startswith("prepare: 0 of 16, ") and ": 16 of 16, " in done.stderr
    assert "\r" not in done.stderr and "of 16" not in done.stdout
    assert 3 <= len(done.stderr.splitlines()) <= 11
    again = invoke("reproduce", "sines", "--out", "out")
    assert [line.split(",")[0] for line in again.stderr.splitlines()] == [
        "prepare: 0 of 16",
        "prepare: 8 of 16",
        "prepare: 16 of 16",
    ]


def test_the_default_folder_tells_presets_seeds_and_dtypes_apart(invoke, tmp_path):
    invoke("reproduce", "sines", "--preset", "smoke")
    invoke("reproduce", "sines", "--preset", "smoke", "--seed", 1, "--dtype", "float32", "--set", "law=odd")
    folders = {path.name for path in (tmp_path / "results" / "sines").iterdir()}
    assert folders == {"smoke-float64-seed0", "smoke-float32-seed1-law=odd"}


def test_float32_is_float32(invoke):
    invoke("reproduce", "sines", "--preset", "smoke", "--dtype", "float32", "--out", "out")
    assert not jax.config.jax_enable_x64
    with open("out/manifest.json") as file:
        assert json.load(file)["arguments"]["jax_enable_x64"] is False


def test_set_changes_a_field_of_every_cell(invoke):
    done = invoke("reproduce", "sines", "--set", "law=odd", "--replicates", 1)
    assert [line.split()[:2] for line in done.output.splitlines() if " odd " in line] == [["2", "odd"], ["4", "odd"]]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("points=4.0", "points", (4.0,)),
        ("points=4,0.5,1e-3", "points", (4.0, 0.5, 0.001)),
        ("counts=4,5", "counts", (4, 5)),
        ("flag=False", "flag", False),
        ("flag=true", "flag", True),
        ("batch=5", "batch", 5),
        ("batch=none", "batch", None),
        ("law=odd", "law", "odd"),
    ],
)
def test_set_reads_a_value_by_its_annotation_and_changes_the_cells_that_have_it(text, field, value):
    found = MIXED.choose("laptop", MIXED.parse("laptop", [text]))
    for cell, before in zip(found, MIXED.presets["laptop"].cells, strict=True):
        if hasattr(before, field):
            assert getattr(cell, field) == value and type(getattr(cell, field)) is type(value)
            cell = dataclasses.replace(cell, **{field: getattr(before, field)})
        assert cell == before
    assert any(hasattr(cell, field) for cell in found)


@pytest.mark.parametrize("command", ["reproduce", "profile"])
def test_set_of_a_tuple_runs_those_values(invoke, command):
    done = invoke(command, "mixed", "--preset", "smoke", "--set", "points=4.0,8", "--set", "batch=5")
    assert done.exit_code == 0, done.output
    assert "Grid(points=(4.0, 8.0), law='even', flag=True, batch=5)" in done.stdout


def test_choose_refuses_what_no_cell_has():
    with pytest.raises(ValueError) as refused:
        MIXED.choose("smoke", {"sise": 3, "law": "odd"})
    assert str(refused.value) == "changes: each must be one of points, law, flag, batch, counts, got sise."


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("preset", ["smoke", "laptop", "paper"])
def test_every_field_of_every_experiment_can_be_set_to_what_it_is(name, preset):
    """A field means one type in an experiment's cells, and is read from the text that a user would write."""
    experiment = EXPERIMENTS[name]
    kinds = {}
    for cell in experiment.presets[preset].cells:
        for field, kind in get_type_hints(type(cell)).items():
            assert kinds.setdefault(field, kind) == kind
            value = getattr(cell, field)
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            assert experiment.parse(preset, [f"{field}={text}"]) == {field: value}


OWN = """
from typing import NamedTuple
import jax.numpy as jnp
from clairjax.experiments import Column, Experiment, Preset, Tabulated
import beside

class Cell(NamedTuple):
    size: int
    law: str = "even"

def replicate(key, cell):
    return {"mean": beside.mean(cell.size)}

EXPERIMENT = Experiment("own", "One's own", {"tiny": Preset((Cell(2), Cell(3)), 3)}, replicate,
                        [Tabulated("Own", [Column("size"), Column("law"), Column("mean")])])
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """An experiment in a file, with a module beside it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "beside.py").write_text("import jax.numpy as jnp\nmean = lambda size: jnp.arange(size * 1.0).mean()\n")
    (folder / "own.py").write_text(OWN)
    return folder / "own.py"


def test_a_file_of_one_s_own_is_run_set_resumed_reported_and_profiled(invoke, own, tmp_path):
    done = invoke("reproduce", own, "--set", "law=odd")
    assert done.exit_code == 0, done.output
    assert "Results(2 cells x 3 replicates, 0 failed)" in done.stdout and "figure.png" not in done.stdout
    folder = tmp_path / "results" / "own" / "tiny-float64-seed0-law=odd"
    files = {path.name for path in folder.iterdir() if path.is_file()}
    assert files == {"manifest.json", "report.md", "results.csv", "results.nc"}
    assert "| 3 | odd | 1.000 ±0.000 |" in (folder / "report.md").read_text()
    again = invoke("reproduce", own, "--set", "law=odd")
    assert again.stdout.split("Results")[0] == done.stdout.split("Results")[0]
    assert again.stderr.splitlines()[1].startswith("prepare: 3 of 6, ")
    assert "Cell(size=3, law='even'), 2 replicates at once" in invoke("profile", own, "--cell", 1, "--lanes", 2).stdout


def test_what_goes_wrong_in_a_file_of_one_s_own_is_shown_where_it_does(invoke, own):
    own.write_text(OWN.replace("return {", "raise ValueError('at this line')\n    return {"))
    done = invoke("reproduce", own)
    assert isinstance(done.exception, ValueError) and str(done.exception) == "at this line"
    own.write_text("EXPERIMENT = 3")
    assert "own.py must have an experiment, as EXPERIMENT = Experiment(…), got int." in invoke("profile", own).stderr
    assert "path must be a Python file with an experiment, got" in invoke("reproduce", own.parent / "no.py").stderr


def test_profile_prints_costs_and_writes_a_trace(invoke, tmp_path):
    done = invoke("profile", "sines", "--lanes", 2, "--cell", 1, "--trace", "trace")
    assert done.exit_code == 0, done.output
    assert "Cell(size=4, law='even'), 2 replicates at once" in done.output and "compile" in done.output
    assert list(tmp_path.glob("trace/**/perfetto_trace.json.gz"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["reproduce", "sine"],
            f"NAME must be one of {', '.join(EXPERIMENTS)}, sines, mixed, or a Python file as mine.py, got sine.",
        ),
        (["reproduce", "sines", "--preset", "huge"], "preset must be one of smoke, laptop, paper, got huge."),
        (["reproduce", "sines", "--replicates", 0], "should be greater than or equal to 1"),
        (["reproduce", "sines", "--seed", -1], "should be greater than or equal to 0"),
        (["reproduce", "sines", "--dtype", "float16"], "'float16' is not one of 'float32', 'float64'."),
        (
            ["reproduce", "sines", "--set", "sise=3"],
            "--set must be FIELD=VALUE with FIELD one of size, law, got sise=3.",
        ),
        (["reproduce", "sines", "--set", "size=big"], "--set size must be of type int, got big."),
        (
            ["profile", "mixed", "--set", "sise=3"],
            "--set must be FIELD=VALUE with FIELD one of points, law, flag, batch, counts, got sise=3.",
        ),
        (
            ["reproduce", "mixed", "--set", "points=4.0;2"],
            "--set points must be of type float, with commas between several, got 4.0;2.",
        ),
        (
            ["reproduce", "mixed", "--set", "counts=4.0"],
            "--set counts must be of type int, with commas between several, got 4.0.",
        ),
        (["reproduce", "mixed", "--set", "flag=0"], "--set flag must be true or false, got 0."),
        (["profile", "mixed", "--set", "batch=all"], "--set batch must be of type int or none, got all."),
        (["profile", "mixed", "--set", "law=odds"], "--set law must be one of even, odd, got odds."),
        (["reproduce", "sines", "--out", ""], "a folder is needed, got ''."),
        (["reproduce", "sines", "--out", __file__], "is a file."),
        (["reproduce", "sines", "--data", ""], "a folder is needed, got ''."),
        (["profile", "sines", "--trace", ""], "a folder is needed, got ''."),
        (["refine", "a", "b", "--out", ""], "a folder is needed, got ''."),
        (["reproduce", "sines", "--set", "size=3"], "cells: each must differ from the others, got Cell(size=3"),
        (["profile", "sines", "--cell", 2], "--cell must be below 2, the number of cells of laptop, got 2."),
    ],
)
def test_bad_values_are_refused_with_a_reason(invoke, arguments, message):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


def test_a_folder_with_another_sweep_is_refused(invoke):
    assert invoke("reproduce", "sines", "--preset", "smoke", "--out", "out").exit_code == 0
    done = invoke("reproduce", "sines", "--preset", "smoke", "--out", "out", "--seed", 1)
    assert done.exit_code == 2
    assert "out: out holds another sweep" in done.stderr and "choose a new folder" in done.stderr


def test_a_folder_of_another_experiment_is_refused_before_the_work_and_before_the_results(invoke, monkeypatch):
    ran = []
    monkeypatch.setitem(
        EXPERIMENTS, "prepared", dataclasses.replace(SINES, name="prepared", prepare=lambda *_: ran.append("prepared"))
    )
    assert invoke("reproduce", "sines", "--preset", "smoke", "--out", "out").exit_code == 0
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    done = invoke("reproduce", "prepared", "--preset", "smoke", "--out", "out")
    assert done.exit_code == 2 and "out: out holds another sweep" in done.stderr and ran == []
    with pytest.raises(ValueError, match=r"out: out holds another sweep: .*key must be"):
        SINES.write(SINES.run(preset="smoke", seed=1), "out")
    assert {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("experiment", ["sines", "prepared"])
def test_a_folder_that_cannot_be_made_is_one_line_and_nothing_has_run(invoke, monkeypatch, experiment):
    ran = []
    prepared = dataclasses.replace(SINES, prepare=lambda *_: ran.append("prepared"))
    monkeypatch.setitem(EXPERIMENTS, "prepared", prepared)
    Path("afile").write_text("mine")
    done = invoke("reproduce", experiment, "--preset", "smoke", "--out", "afile/sub")
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("Error: ") and "afile" in done.stderr and done.stderr.count("\n") == 1
    assert ran == [] and Path("afile").read_text() == "mine"


def test_results_that_cannot_be_written_are_one_line_and_the_blocks_are_kept(invoke, tmp_path):
    first = invoke("reproduce", "sines", "--preset", "smoke", "--out", "out")
    blocks = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/*/block-*.npz")}
    (tmp_path / "out" / "report.md").unlink()
    (tmp_path / "out" / "report.md").mkdir()
    done = invoke("reproduce", "sines", "--preset", "smoke", "--out", "out")
    last = done.stderr.splitlines()[-1]
    assert done.exit_code == 1 and last.startswith("Error: ") and "report.md" in last
    (tmp_path / "out" / "report.md").rmdir()
    again = invoke("reproduce", "sines", "--preset", "smoke", "--out", "out")
    assert again.stdout.split("Results")[0] == first.stdout.split("Results")[0]
    assert {path: path.stat().st_mtime_ns for path in blocks} == blocks


def test_an_interrupt_says_that_the_command_can_go_on(invoke, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "run", interrupted)
    done = invoke("reproduce", "sines")
    assert done.exit_code == 130 and "the same command goes on from here" in done.stderr


def test_without_the_extra_it_says_what_to_install():
    code = (
        "import sys, importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'typer' else find(name, *rest)\n"
        "import clairjax.cli"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "The command line needs typer: pip install 'clairjax[experiments]'\n"
