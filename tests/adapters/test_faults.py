"""One client's fault is that client's: it is told, and the others are judged as without it."""

import json
import re

import numpy as np
import pytest


pytest.importorskip("safetensors")

import folders
from folders import MODULES, tensors, write, write_all
from rich.console import Console

import clairjax as cj
from clairjax.adapters import _folder
from clairjax.adapters._numbers import examine
from clairjax.adapters._renamed import apart
from clairjax.cli import _tables


def rename(folder, change):
    stored = {change(key): each for key, each in tensors(folder).items()}
    folders.save_file(stored, folder / "adapter_model.safetensors")
    return folder


def wrapped(key):
    return key.replace("base_model.model.", "base_model.model._orig_mod.")


@pytest.fixture(scope="module")
def fleet(written, tmp_path_factory):
    """The eight clients of `written`, and five who cannot take part."""
    _, found, _ = written
    inputs = tmp_path_factory.mktemp("fleet")
    others = {
        "idle": write(inputs, 8, change=lambda up, down: (0 * up, down)),
        "infinite": write(inputs, 9, change=lambda up, down: (up * np.inf, down)),
        "elsewhere": write(inputs, 10, config={"base_model_name_or_path": "elsewhere"}),
        "cut": write(inputs, 11),
        "wrapped": rename(write(inputs, 12), wrapped),
    }
    (others["cut"] / "adapter_model.safetensors").write_bytes(b"short")
    eight = {name: folder.path for name, folder in found.adapters.clients.items()}
    return cj.adapters.refine(cj.adapters.load(eight | others))


SAID = {
    "idle": ("idle", "zeros in every module (B · A = 0), as of an adapter that was not trained"),
    "infinite": ("unusable", "NaN or infinite values in module layers.0.attn.q"),
    "elsewhere": ("unusable", "base models must be the same, got base (client0) and elsewhere (elsewhere)."),
    "cut": ("unusable", "client cut: adapter_model.safetensors must be a whole safetensors file, got: "),
    "wrapped": (
        "undecided",
        "its module names have '_orig_mod' where the others' have nothing, as _orig_mod.layers.0",
    ),
}


def test_the_others_are_judged_as_without_the_faulty(fleet, written):
    _, alone, _ = written
    for name, verdict in alone.verdicts.items():
        assert fleet.verdicts[name] == verdict
    for name, (verdict, reason) in SAID.items():
        assert fleet.verdicts[name].verdict == verdict and fleet.verdicts[name].reason.startswith(reason)
    assert fleet.members == alone.members
    assert not any(name in each.clients for name in SAID for each in fleet.findings.values())


@pytest.mark.parametrize("width", [80, 160])
def test_report_and_table_tell_every_fault_in_full(fleet, width, tmp_path, capsys):
    content = cj.adapters.save(fleet, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    Console(width=width).print(*_tables.refine_tables(content))
    printed = capsys.readouterr().out
    assert "…" not in printed and max(map(len, printed.splitlines())) <= width
    letters = re.sub(r"\s", "", printed)
    for name, (verdict, _) in SAID.items():
        assert stored["clients"][name]["verdict"] == verdict
        for word in stored["clients"][name]["reason"].split():
            assert word in letters
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *fleet.members,
        "global",
        "report.json",
        "report.png",
    }


def test_what_a_verdict_can_mean_is_told_of_those_that_were_given(fleet):
    told = _tables.advice(cj.adapters.report(fleet))
    assert [each.split(":")[0] for each in told] == ["other rows", "undecided"]


def test_a_file_that_cannot_be_read_is_its_clients_fault(tmp_path, monkeypatch):
    """From the start, or when its numbers are asked for; `strict` raises what the system did."""
    inputs = write_all(tmp_path, count=4)
    loaded, headers = cj.adapters.load(inputs), _folder.headers

    def forbidden(path, *arguments):
        if path.parent.name == "client2":
            raise PermissionError(13, "Permission denied", str(path))
        return headers(path, *arguments)

    monkeypatch.setattr(_folder, "headers", forbidden)
    assert re.match(r"client client2: .*Permission denied", cj.adapters.load(inputs).clients["client2"].fault)
    with pytest.raises(PermissionError):
        cj.adapters.load(inputs, strict=True)
    (inputs[1] / "adapter_model.safetensors").unlink()
    (inputs[3] / "adapter_model.safetensors").write_bytes(b"")
    assert list(examine(loaded).unusable) == ["client1", "client3"]


def shaped(root, client, out, modules=MODULES):
    """The first module with another number of rows."""
    first = next(iter(MODULES))
    folder = write(root, client, modules=modules)
    stored = tensors(folder)
    key, _ = folders.keys(first)
    stored[key] = np.ones((out, stored[key].shape[1]), np.float32)
    folders.save_file(stored, folder / "adapter_model.safetensors")
    return folder


def test_the_most_common_shape_of_a_module_is_its_shape(tmp_path):
    """Also where those who have another are the first, or of several; of two as common neither is."""
    inputs = [shaped(tmp_path, 0, 9), *(write(tmp_path, k) for k in (1, 2, 3)), shaped(tmp_path, 4, 8)]
    loaded = cj.adapters.load(inputs)
    odd = {name: folder.fault for name, folder in loaded.clients.items() if folder.fault}
    said = "module layers.0.attn.q must be of one shape (out, in), got (14, 20) from client client1 and "
    assert odd == {
        "client0": f"{said}(9, 20) from client client0.",
        "client4": f"{said}(8, 20) from client client4.",
    }
    assert all(having == ("client1", "client2", "client3") for having in loaded.modules.values())
    tie = [*inputs[1:3], shaped(tmp_path, 5, 9), inputs[0]]
    with pytest.raises(ValueError, match=rf"^{re.escape(said)}\(9, 20\) from client client5\.$"):
        cj.adapters.load(tie)


def test_a_module_that_too_few_have_decides_on_nobodys_shape(tmp_path):
    """Or a client could have all refused by a module that one other alone adapts."""
    first, *rest = MODULES
    inputs = [write(tmp_path, 0), *(write(tmp_path, k, modules=rest) for k in (1, 2)), shaped(tmp_path, 3, 9)]
    loaded = cj.adapters.load(inputs)
    assert loaded.skipped == {first: ("client0", "client3")} and len(loaded.modules) == 2
    with pytest.raises(ValueError, match=r"^module layers\.0\.attn\.q must be of one shape"):
        cj.adapters.load(inputs, strict=True)


def test_who_has_another_shape_does_not_count_in_other_modules(tmp_path):
    """Two have one shape of the first module and two another, but of these one is out by another module."""
    _, *rest = MODULES
    both = shaped(tmp_path, 3, 9)
    stored = tensors(both)
    stored[folders.keys(rest[-1])[0]] = np.ones((5, 6), np.float32)
    folders.save_file(stored, both / "adapter_model.safetensors")
    plain = [write(tmp_path, 0), write(tmp_path, 1), write(tmp_path, 4, modules=rest)]
    loaded = cj.adapters.load([*plain, shaped(tmp_path, 2, 9), both])
    assert [name for name, folder in loaded.clients.items() if folder.fault] == ["client2", "client3"]
    assert list(loaded.modules) == rest


@pytest.mark.parametrize(
    ("change", "is_idle"),
    [
        (lambda up, down: (0 * up, down), True),
        (lambda up, down: (up, 0 * down), True),
        (lambda up, down: (up * (np.arange(6) < 3), down * (np.arange(6) >= 3)[:, None]), True),
        (lambda up, down: (up @ np.kron(np.eye(3), [[1, -1], [1, -1]]), np.repeat(down[:3], 2, 0)), True),
        (lambda up, down: (1e-25 * up, 1e-25 * down), True),
        (lambda up, down: (1e-25 * up, 1e25 * down), False),
        (lambda up, down: (1e-6 * up, down), False),
    ],
)
def test_who_sent_zeros_is_idle(change, is_idle, tmp_path):
    """However the product comes to be zero; a small one is not."""
    loaded = cj.adapters.load([*(write(tmp_path, k) for k in range(3)), write(tmp_path, 3, change=change)])
    assert (list(examine(loaded).idle) == ["client3"]) == is_idle and not examine(loaded).zeros


def test_a_module_of_zeros_counts_as_not_adapted(tmp_path):
    first = next(iter(MODULES))
    inputs = write_all(tmp_path, count=4)
    stored = tensors(inputs[2])
    stored[folders.keys(first)[0]] *= 0
    folders.save_file(stored, inputs[2] / "adapter_model.safetensors")
    numbers = examine(cj.adapters.load(inputs))
    assert numbers.zeros == {"client2": [first]} and not numbers.apart
    assert [module for module in MODULES if not numbers.votes("client2", module)] == [first]


def test_fewer_than_three_who_sent_something_are_too_few(tmp_path):
    inputs = [write(tmp_path, 0), write(tmp_path, 1), write(tmp_path, 2, change=lambda up, down: (0 * up, down))]
    with pytest.raises(
        ValueError, match=r"^at least 3 clients must be usable, got 2 \(client2: zeros in every module "
    ):
        cj.adapters.refine(cj.adapters.load(inputs))


NAMES = [f"model.layers.{k}.self_attn.{side}" for k in range(3) for side in "qv"]
PREFIXES = {
    "before": (lambda name: f"_orig_mod.{name}", "'_orig_mod'", "nothing"),
    "two words": (lambda name: f"module._orig_mod.{name}", "'module._orig_mod'", "nothing"),
    "within": (lambda name: name.replace("model.", "model.language_model.", 1), "'language_model'", "nothing"),
    "in every layer": (lambda name: name.replace(".self", "._fsdp.self"), "'_fsdp'", "nothing"),
    "left out": (lambda name: name.removeprefix("model."), "nothing", "'model'"),
    "exchanged": (lambda name: name.replace("model", "transformer", 1), "'transformer'", "'model'"),
}


@pytest.mark.parametrize("what", PREFIXES)
def test_names_that_differ_by_a_prefix_are_told(what):
    change, mine, theirs = PREFIXES[what]
    found = apart({"one": NAMES, "two": [*map(change, NAMES), "head"], "three": NAMES[:2]})
    name = change(NAMES[0])
    assert found == {"two": f"its module names have {mine} where the others' have {theirs}, as {name} for {NAMES[0]}"}


def test_other_names_have_no_such_cause():
    assert not apart({"one": NAMES, "two": ["encoder.block.0.k", "lm_head"], "three": NAMES})
    assert not apart({"one": NAMES, "two": NAMES[:1], "three": [*NAMES[1:], "head"]})
    assert not apart({})


def test_clients_without_a_common_module_are_told_why(tmp_path):
    inputs = [write(tmp_path, 0), rename(write(tmp_path, 1), wrapped), write(tmp_path, 2)]
    with pytest.raises(
        ValueError, match=r"^some module must be .* got none\. Of client client1, its module names have"
    ):
        cj.adapters.load(inputs)
    loaded = cj.adapters.load([*inputs, write(tmp_path, 3)])
    assert loaded.notices[0].startswith(
        "client client1: its module names have '_orig_mod' where the others' have nothing"
    )
