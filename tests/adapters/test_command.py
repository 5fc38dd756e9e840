"""`clairjax refine`: what it prints, writes and refuses."""

import json
from pathlib import Path

import jax
import pytest


pytest.importorskip("safetensors")

from folders import write, write_all
from rich.console import Console
from safetensors import SafetensorError
from typer.testing import CliRunner

from clairjax.cli import _app as cli
from clairjax.cli._tables import refine_tables


@pytest.fixture
def invoke(tmp_path_factory, monkeypatch):
    """In a folder of its own, since a dry run writes `report.json` where it is."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    wide = jax.config.jax_enable_x64
    yield lambda *arguments: CliRunner().invoke(cli.app, ["refine", *map(str, arguments)])
    jax.config.update("jax_enable_x64", wide)


def test_it_reports_and_writes(invoke, tmp_path):
    """A client has the name that it is given, and a fault of its own."""
    folders = write_all(tmp_path / "in")
    clients = [*folders[:-1], f"last={folders[-1]}", tmp_path / "nowhere"]
    dry = invoke(*clients, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    rows = {line.split()[0]: line.split()[1:] for line in dry.stdout.splitlines() if line.strip()}
    assert rows["client3"][:2] == ["other", "rows"] and rows["client0"][0] == rows["last"][0] == "member"
    assert rows["layers.0.attn.q"][:1] == ["8"] and rows["nowhere"][:4] == ["unusable", "client", "nowhere", "must"]
    assert "refined rank" not in dry.stdout and "largest error" not in dry.stdout

    done = invoke(*clients, "--out", tmp_path / "out", "--rank", 6)
    assert done.exit_code == 0, done.output
    assert "Rule: by all modules together, relative to what is usual" in done.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["shared"] == "auto"
    assert "refined rank" in done.stdout and "largest error" in done.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {module["refined_rank"] for module in report["modules"].values()} == {6}
    again = invoke(*clients, "--out", tmp_path / "out")
    assert again.exit_code == 2 and "pass force, --force, to replace an earlier result" in again.stderr
    assert (tmp_path / "out" / "last" / "adapter_config.json").is_file()
    assert invoke(*clients, "--out", tmp_path / "out", "--force", "--rank", 6).exit_code == 0


def test_a_fleet_below_one_folder_is_watched_every_night(invoke, tmp_path):
    """Every run leaves a report; a verdict that was asked about is status 3; who is left out is not compared."""
    write_all(tmp_path / "fleet")
    dry = invoke(tmp_path / "fleet", "--dry-run", "--fail-on", "unrelated,other rows")
    assert dry.exit_code == 3 and "--fail-on: client3." in dry.stderr, dry.output
    assert "Report: report.json" in dry.stdout
    assert json.loads(Path("report.json").read_text())["clients"]["client3"]["verdict"] == "other rows"
    calm = invoke(tmp_path / "fleet", "--dry-run", "--fail-on", "sign-flipped", "--report", tmp_path / "named.json")
    assert calm.exit_code == 0 and json.loads((tmp_path / "named.json").read_text())["files"] == []
    without = invoke(tmp_path / "fleet", "--dry-run", "--exclude", "client3", "--fail-on", "unrelated,other rows")
    assert without.exit_code == 0 and "client3" not in json.loads(Path("report.json").read_text())["clients"]


def test_samples_weigh_and_are_read_in_three_forms(invoke, tmp_path):
    folders = write_all(tmp_path / "in", bad=())
    counts = {folder.name: 100.0 * (1 + k) for k, folder in enumerate(folders)}
    (tmp_path / "n.json").write_text(json.dumps(counts))
    (tmp_path / "n.csv").write_text("".join(f"{name},{count:g}\n" for name, count in counts.items()))
    forms = [tmp_path / "n.json", tmp_path / "n.csv", ",".join(f"{count:g}" for count in counts.values())]
    weights = []
    for number, form in enumerate(forms):
        done = invoke(*folders, "--out", tmp_path / f"out{number}", "--samples", form)
        assert done.exit_code == 0, done.output
        report = json.loads((tmp_path / f"out{number}" / "report.json").read_text())
        weights.append({name: client["weight"] for name, client in report["global"]["clients"].items()})
        assert {name: client["samples"] for name, client in report["global"]["clients"].items()} == counts
    assert weights[0] == weights[1] == weights[2] and weights[0]["client7"] > 2 * weights[0]["client0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-on", "contaminated"], "--fail-on must be among member, rescaled,"),
        (["--samples", "1,2"], "--samples must be a file, or a number for each of 3 clients in their order,"),
        (["--samples", "1," * 300], "--samples must be a file, or a number for each of 3 clients in their order,"),
        (["--samples", "1,2,many"], "--samples of client client2 must be a positive number, got 'many'."),
        (["--samples", "1,-2,3"], "--samples of client client1 must be a positive number, got '-2'."),
        (["--samples", "1,nan,3"], "--samples of client client1 must be a positive number, got 'nan'."),
        (["--exclude", "nobody"], "nobody"),
    ],
)
def test_bad_lists_are_refused_with_a_reason(invoke, arguments, message, tmp_path):
    done = invoke(*(write(tmp_path, k) for k in range(3)), "--dry-run", *arguments)
    assert done.exit_code == 2 and message in done.stderr, done.output


@pytest.mark.parametrize("name", ["n.json", "n.csv"])
def test_samples_that_are_no_text_are_refused_by_name(invoke, name, tmp_path):
    (tmp_path / name).write_bytes(b"\xff\xfe")
    done = invoke(*(write(tmp_path, k) for k in range(3)), "--dry-run", "--samples", tmp_path / name)
    assert done.exit_code == 2
    assert done.stderr == f"Error: --samples must be a file of text in UTF-8, got {tmp_path / name}.\n"


@pytest.mark.parametrize("option", ["blend", "shared_rank"])
def test_options_out_of_range_are_refused_before_a_client_is_read(invoke, option):
    done = invoke("no-a", "no-b", "no-c", "--out", "out", f"--{option.replace('_', '-')}", -1)
    assert done.exit_code == 2 and done.stderr.startswith(f"Error: {option} must be "), done.output


def test_brackets_in_names_are_printed(capsys):
    module = {"shared_rank": 1, "refined_rank": None, "clients": {"[red]": {}}}
    verdict = {"verdict": "unrelated", "reason": "[/]", "agreement": 0.1234, "size": None}
    content = {"modules": {"layers[bold].q": module}, "clients": {"[red]": verdict}}
    Console(width=160).print(*refine_tables(content))
    printed = capsys.readouterr().out
    for name in ("layers[bold].q", "[red]", "unrelated", "0.123", "[/]"):
        assert name in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--out must be a folder, unless --dry-run is given."),
        (["--dry-run", "--rank", 0], "rank must be an integer of at least 1, got 0."),
        (["--dry-run", "--rank", 20_000], "rank must be at most 14, the smallest side of module layers.0.attn.q"),
        (["--dry-run", "--tolerance", 2], "tolerance must be above 0 and below 1, got 2.0."),
    ],
)
def test_bad_options_are_refused_with_a_reason(invoke, arguments, message, tmp_path):
    done = invoke(*(write(tmp_path, k) for k in range(3)), *arguments)
    assert done.exit_code == 2 and message in done.stderr


def test_a_full_disk_is_told_without_a_traceback(invoke, tmp_path, monkeypatch):
    """Whatever writes the file."""

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    done = invoke(*write_all(tmp_path / "in"), "--out", tmp_path / "out")
    said = done.stderr.splitlines()[-1]
    assert done.exit_code == 1 and said.startswith("Error: ") and "No space left on device" in said
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_what_appears_in_out_meanwhile_stays_and_the_result_is_kept(invoke, tmp_path, monkeypatch):
    def appear(*_):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("the only copy")

    monkeypatch.setattr("clairjax.adapters._save.heat_map", appear)
    done = invoke(*write_all(tmp_path / "in"), "--out", tmp_path / "out")
    (kept,) = tmp_path.glob("out.*.kept")
    said = done.stderr.splitlines()[-1]
    assert done.exit_code == 2 and said.startswith("Error: out must be a new or empty folder") and f"{kept}." in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"] and (kept / "report.json").exists()


def test_a_bad_folder_is_refused_with_a_reason(invoke, tmp_path):
    three = [write(tmp_path, 0), write(tmp_path, 1), tmp_path / "nowhere"]
    said = "client nowhere must be a folder with a PEFT adapter, got "
    few = invoke(*three, "--dry-run")
    assert few.exit_code == 2 and f"Error: at least 3 clients must be usable, got 2 ({said}" in few.stderr
    done = invoke(*three, write(tmp_path, 2), "--dry-run", "--strict")
    assert done.exit_code == 2 and f"Error: {said}" in done.stderr


def test_base_models_are_said_to_be_the_same(invoke, tmp_path):
    """Two as common are refused otherwise; so is, after that, a rank."""
    both = [write(tmp_path, k, config={"base_model_name_or_path": "ab"[k % 2]}) for k in range(4)]
    assert "base models must be the same, got a (client0) and b (client1)" in invoke(*both, "--dry-run").stderr
    done = invoke(*both, "--dry-run", "--same-base", "--rank", 20_000)
    assert done.exit_code == 2 and "Error: rank must be at most 14" in done.stderr


def test_no_name_is_not_the_current_folder(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path, 2))
    done = invoke(write(tmp_path, 0), write(tmp_path, 1), "", "--dry-run")
    assert done.exit_code == 2 and "client folders must be paths, got ''." in done.stderr
