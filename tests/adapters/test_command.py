"""`clairjax refine`: what it prints, writes and refuses."""

import json

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
def invoke():
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
