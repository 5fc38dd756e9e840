"""Clients that come late: compared with what was stored, the others' folders being gone."""

import json
import shutil

import numpy as np
import pytest


pytest.importorskip("safetensors")

from folders import MODULES, write, write_all
from typer.testing import CliRunner

import clairjax as cj
from clairjax.cli import _app as cli


LATE = 20


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A result whose clients' folders are gone."""
    root = tmp_path_factory.mktemp("late")
    folders = write_all(root / "in", bad=())
    cj.adapters.save(cj.adapters.refine(cj.adapters.load(folders)), root / "out")
    shutil.rmtree(root / "in")
    return root / "out"


def others_task(up, down):
    rng = np.random.default_rng(5)
    return rng.normal(size=up.shape), rng.normal(size=down.shape)


KINDS = {
    "member": None,
    "rescaled": lambda up, down: (5 * up, down),
    "sign-flipped": lambda up, down: (-up, down),
    "unrelated": others_task,
    "idle": lambda up, down: (0 * up, down),
    "unusable": lambda up, down: (np.nan * up, down),
}


def test_who_comes_late_is_named_by_direction_and_size(stored, tmp_path):
    folders = {word: write(tmp_path / word, LATE + k, change=change) for k, (word, change) in enumerate(KINDS.items())}
    found = cj.adapters.compare(stored, folders)
    assert {name: each.verdict for name, each in found.items()} == {word: word for word in KINDS}
    assert found["member"].member and found["rescaled"].member and not found["unrelated"].member
    assert found["rescaled"].size == pytest.approx(5, rel=0.5) and "times the usual size" in found["rescaled"].reason
    for name, each in found.items():
        alone = cj.adapters.compare(stored, {name: folders[name]})[name]
        assert alone == each


def test_a_member_that_comes_again_is_as_it_was(stored, tmp_path):
    """To the part that it has itself in the median."""
    report = json.loads((stored / "report.json").read_text())
    again = cj.adapters.compare(stored, [write(tmp_path, 0)])["client0"]
    before = report["global"]["clients"]["client0"]["agreement"]
    assert before < again.agreement < before + 0.25
    assert again.size == pytest.approx(report["clients"]["client0"]["size"], rel=0.1)


def test_another_base_shape_or_module_is_said(stored, tmp_path):
    folders = {
        "base": write(tmp_path / "base", LATE, config={"base_model_name_or_path": "another"}),
        "partly": write(tmp_path / "partly", LATE, modules=list(MODULES)[:1]),
        "nothing": tmp_path / "nothing",
    }
    found = cj.adapters.compare(stored, folders)
    assert found["base"].verdict == "unusable" and "same_base=True" in found["base"].reason
    assert found["partly"].verdict == "member" and found["partly"].modules == 1
    assert found["nothing"].reason.startswith("client nothing must be a folder with a PEFT adapter")
    assert cj.adapters.compare(stored, {"base": folders["base"]}, same_base=True)["base"].verdict == "member"
    with pytest.raises(ValueError, match=r"^out must be a folder that save wrote, with its report\.json, got .*\.$"):
        cj.adapters.compare(tmp_path, folders)


def test_the_command_prints_writes_and_ends_with_three(stored, tmp_path):
    invoke = lambda *arguments: CliRunner().invoke(cli.app, ["compare", *map(str, arguments)])
    clients = [write(tmp_path / "in", LATE), write(tmp_path / "in", LATE + 1, change=KINDS["sign-flipped"])]
    done = invoke(stored, *clients, "--fail-on", "sign-flipped", "--report", tmp_path / "late.json")
    assert done.exit_code == 3 and f"--fail-on: client{LATE + 1}." in done.stderr, done.output
    written = json.loads((tmp_path / "late.json").read_text())
    assert [each["verdict"] for each in written["clients"].values()] == ["member", "sign-flipped"]
    assert "Rule: by the cosine with the global adapter" in done.stdout
    assert invoke(stored, clients[0]).exit_code == 0
    again = invoke(stored, *clients, "--report", tmp_path / "late.json")
    assert again.exit_code == 2 and "--report must be a new file" in again.stderr
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    assert invoke(stored, *clients, "--report", tmp_path / "link").exit_code == 2
    assert invoke(tmp_path / "in", clients[0]).exit_code == 2


def test_who_started_from_another_a_is_no_stranger(tmp_path):
    """A fleet of one A, of which a late client learned as much as others from an A of its own."""
    rng = np.random.default_rng(3)
    learned = {module: rng.normal(size=shape) for module, shape in MODULES.items()}

    def trained(start, client):
        """B = the task's gradient through A, and noise: ΔW = (G + noise) AᵀA."""
        own = np.random.default_rng([start, client])
        shapes = iter(MODULES.items())

        def change(up, down):
            module, shape = next(shapes)
            first = np.random.default_rng([start, shape[0]]).normal(size=down.shape) / np.sqrt(shape[1])
            return (learned[module] + 0.5 * own.normal(size=shape)) @ first.T, first

        return change

    folders = [write(tmp_path / "in", k, change=trained(0, k)) for k in range(8)]
    cj.adapters.save(cj.adapters.refine(cj.adapters.load(folders)), tmp_path / "out")
    late = write(tmp_path / "late", LATE, change=trained(1, LATE))
    stranger = write(tmp_path / "late", LATE + 1, change=others_task)
    found = cj.adapters.compare(tmp_path / "out", {"late": late, "stranger": stranger})
    assert found["late"].agreement < 0.8 * found["late"].usual
    assert found["late"].verdict == "member" and found["stranger"].verdict == "unrelated"


def without(name):
    """A change of the report: no member has this number, as in an earlier version's."""

    def change(report):
        places = [report["modules"], report["clients"], (report["global"] or {}).get("clients", {})]
        for each in (each for place in places for each in place.values()):
            each.pop(name, None)

    return change


FOREIGN = {name: without(name) for name in ("usual_norm", "agreement", "overlap", "size")} | {
    "no global": lambda report: report.pop("global"),
    "a list": lambda report: report.update(modules=[]),
    "no number": lambda report: report["global"]["clients"]["client0"].update(overlap=None),
    "zero": lambda report: next(iter(report["modules"].values())).update(usual_norm=0.0),
    "a client less": lambda report: report["clients"].pop("client0"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_result_that_lacks_numbers_is_refused_with_what_to_do(stored, tmp_path, kind):
    report = json.loads((stored / "report.json").read_text())
    FOREIGN[kind](report)
    (tmp_path / "report.json").write_text(json.dumps(report))
    shutil.copytree(stored / "global", tmp_path / "global")
    with pytest.raises(ValueError, match=r"^out must be a result of this version: run refine again, got .*\.$"):
        cj.adapters.compare(tmp_path, [tmp_path / "nobody"])


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("NaN or infinite values", lambda weights: {key: np.nan * each for key, each in weights.items()}),
        ("zeros in every module", lambda weights: {key: 0 * each for key, each in weights.items()}),
        ("nothing in module layers.0", lambda weights: {k: each for k, each in weights.items() if "layers.1" in k}),
    ],
)
def test_a_global_adapter_that_is_damaged_is_said(stored, tmp_path, kind, damage):
    from safetensors.numpy import load_file, save_file

    shutil.copy(stored / "report.json", tmp_path)
    shutil.copytree(stored / "global", tmp_path / "global")
    file = tmp_path / "global" / "adapter_model.safetensors"
    save_file(damage(load_file(file)), file)
    with pytest.raises(ValueError, match=rf"^out must be a folder whose global is as save wrote it, got .*{kind}"):
        cj.adapters.compare(tmp_path, [tmp_path / "nobody"])


def test_a_member_with_nothing_to_compare_in_a_module_or_in_all_does_no_harm(tmp_path):
    """One sent zeros in a module, one has a module that nobody else has."""
    first, second, alone = MODULES
    calls = iter((0, 1))
    folders = [write(tmp_path / "in", k, modules=[first, second]) for k in range(6)]
    zeros = write(tmp_path / "in", 6, modules=[first, second], change=lambda up, down: (next(calls) * up, down))
    folders += [zeros, write(tmp_path / "in", 7, modules=[alone])]
    found = cj.adapters.refine(cj.adapters.load(folders), include=["client6", "client7"])
    members = cj.adapters.save(found, tmp_path / "out")["global"]["clients"]
    assert members["client7"]["overlap"] == 0 and all(np.isfinite(each["overlap"]) for each in members.values())
    late = {
        "same": write(tmp_path / "late", LATE),
        "flipped": write(tmp_path / "late", 21, change=KINDS["sign-flipped"]),
    }
    found = cj.adapters.compare(tmp_path / "out", late)
    assert [each.verdict for each in found.values()] == ["member", "sign-flipped"]
