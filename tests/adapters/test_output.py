"""What refining writes: all of it or nothing, with errors that hold for the files."""

import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest


pytest.importorskip("safetensors")

from folders import MODULES, product, write, write_all

import clairjax as cj


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_out_must_be_free_or_ours(written, tmp_path):
    root, found, _ = written
    with pytest.raises(ValueError, match="out must be a new or empty folder"):
        cj.adapters.save(found, root / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="out must be a folder that this wrote"):
        cj.adapters.save(found, tmp_path / "mine", force=True)
    cj.adapters.save(found, tmp_path / "earlier")
    (tmp_path / "earlier" / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"with nothing but what this wrote, to be replaced, got notes\.txt in "):
        cj.adapters.save(found, tmp_path / "earlier", force=True)
    (tmp_path / "earlier" / "notes.txt").unlink()
    (outsider,) = set(found.verdicts) - set(found.members)
    for stranger in (f"{found.members[0]}/notes.txt", f"{outsider}/adapter_config.json", f"{outsider}/deep/empty"):
        path = tmp_path / "earlier" / stranger
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if stranger.endswith("empty") else path.write_text("x")
        with pytest.raises(ValueError, match=f"with nothing but what this wrote, to be replaced, got {stranger} in "):
            cj.adapters.save(found, tmp_path / "earlier", force=True)
        path.rmdir() if stranger.endswith("empty") else path.unlink()
        while path.parent != tmp_path / "earlier" and not any(path.parent.iterdir()):
            path = path.parent
            path.rmdir()
    cj.adapters.save(found, tmp_path / "earlier", force=True)
    with pytest.raises(ValueError, match="out must be apart from the clients' folders"):
        cj.adapters.save(found, root / "in")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"^out must be paths, got ''\.$"):
        cj.adapters.save(found, "")
    with pytest.raises(ValueError, match="out must be a folder of its own, got a link"):
        cj.adapters.save(found, tmp_path / "link")


def test_a_rank_too_small_and_a_full_disk_leave_the_former_output(written, monkeypatch, tmp_path):
    _, found, _ = written
    cj.adapters.save(found, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    small = cj.adapters.refine(found.adapters, rank=1)
    with pytest.raises(ValueError, match=r"^rank must be at least \d+, got 1: at it module"):
        cj.adapters.save(small, tmp_path / "out", force=True)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clairjax.adapters._save.heat_map", full)
    with pytest.raises(OSError, match="No space left"):
        cj.adapters.save(found, tmp_path / "out", force=True)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_out_must_be_apart_from_the_clients(written, tmp_path):
    root, found, _ = written
    for out in (root / "in", root / "in" / "client1", root / "in" / "client1" / "deep" / "out"):
        with pytest.raises(ValueError, match="out must be apart from the clients' folders"):
            cj.adapters.save(found, out)
        with pytest.raises(ValueError, match="out must be apart from the clients' folders"):
            cj.adapters.check_out(found.adapters, out, force=True)


def test_an_out_that_cannot_be_made_is_refused_before_the_work(written, tmp_path):
    _, found, _ = written
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for out, message in {
        tmp_path / "file" / "x" / "y": "out must be where a folder can be made, got ",
        tmp_path / ("n" * 241): "out must be of a name of at most 240 bytes, got nnn",
        tmp_path / "loop" / "out": "out must be paths that lead somewhere, got ",
    }.items():
        with pytest.raises(ValueError, match=f"^{message}"):
            cj.adapters.check_out(found.adapters, out, force=False)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "loop"}


def test_folders_are_a_list_of_paths_that_lead_somewhere(tmp_path):
    with pytest.raises(ValueError, match=r"^folders must be a list of folders, one a client, got 'one'\.$"):
        cj.adapters.load("one")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "loop", "a\0b"):
        with pytest.raises(ValueError, match=r"^client folders must be paths that lead somewhere, got "):
            cj.adapters.load([*write_all(tmp_path / str(path == "a\0b"), count=3), path], strict=True)


@pytest.mark.parametrize(
    "name", ["report.json", "report.png", "Report.PNG", "Global", ".parts", ".hidden", "new\nline"]
)
def test_a_client_whose_name_cannot_be_a_results_is_refused_before_the_work(name, tmp_path):
    inputs = [write(tmp_path / "in", k) for k in range(3)]
    inputs[1] = inputs[1].rename(tmp_path / "in" / name)
    must_be = "printable, not report.json, report.png or global, and start with no dot, for a result of that name"
    message = f"names of client folders must be {must_be}, got {name!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cj.adapters.check_out(cj.adapters.load(inputs), tmp_path / "out", force=False)


def test_any_other_name_is_drawn_and_written_as_it_is(tmp_path, monkeypatch):
    """`$` starts no formula in the heat map, and is safe in file names."""
    from matplotlib.figure import Figure

    names, drawn, save = [r"$\frac$", "$x$", "[red]", "ümlaut", "a b", "#&;", "{}", "$"], [], Figure.savefig
    inputs = write_all(tmp_path / "in")
    inputs = [folder.rename(tmp_path / "in" / name) for folder, name in zip(inputs, names, strict=True)]

    def keep(figure, *arguments, **options):
        save(figure, *arguments, **options)
        drawn.extend((label.get_text(), label.get_parse_math()) for label in figure.axes[0].get_yticklabels())

    monkeypatch.setattr(Figure, "savefig", keep)
    found = cj.adapters.refine(cj.adapters.load(inputs))
    cj.adapters.save(found, tmp_path / "out")
    assert drawn == [(name, False) for name in names]
    beside = {"report.json", "report.png", "global"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*found.members, *beside}
    cj.adapters.save(found, tmp_path / "out", force=True)


@pytest.mark.parametrize("rank", [None, 14])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_stated_error_is_of_the_file_rounding_included(dtype, rank, tmp_path):
    """At rank 14, a whole side of two modules, nothing is cut off: what is left is rounding."""
    found = cj.adapters.refine(cj.adapters.load(write_all(tmp_path / "in", dtype=dtype)), rank=rank)
    report = cj.adapters.save(found, tmp_path / "out")
    eps = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}[dtype]
    for module in MODULES:
        _, refined = found.refined(module)
        exact = np.asarray(refined.dense(), float)
        for place, name in enumerate(found.members_of(module)):
            lost = np.linalg.norm(product(tmp_path / "out" / name, module) - exact[place])
            stated = report["modules"][module]["clients"][name]["truncation_error"]
            np.testing.assert_allclose(stated, lost / np.linalg.norm(exact[place]), rtol=1e-3, atol=2e-6)
            if rank is not None and min(MODULES[module]) == rank and dtype != "float32":
                assert eps / 4 < stated < 2 * eps


def test_values_beyond_a_files_type_are_refused(tmp_path):
    grown = lambda up, down: (1e11 * up, down)
    inputs = write_all(tmp_path / "in", dtype="float16", config={"lora_alpha": 6e8}, change=grown)
    found = cj.adapters.refine(cj.adapters.load(inputs))
    message = "global: module layers.0.attn.q must fit its file's type, F16, got larger values."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cj.adapters.save(found, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


# One process a way to fail; `found` is what the test's own process found.
CHILD = """
import os, pickle, resource, signal, sys
import clairjax as cj

how, found, out, elsewhere = sys.argv[1:]
found = pickle.loads(open(found, "rb").read())
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
if how.startswith("limited"):
    cj.adapters.save(found, elsewhere)  # compiles
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit in how.split()[1:]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
        try:
            cj.adapters.save(found, out, force=True)
        except OSError as error:
            print(error, os.listdir(os.path.dirname(out)))
elif how == "killed in writing":
    cj.adapters.save(found, out, force=True, progress=lambda what: what == found.members[-1] and kill())
elif how == "killed in renaming":
    rename = os.rename
    os.rename = lambda *places: (rename(*places), kill())
    cj.adapters.save(found, out, force=True)
"""
CARRIED = 20_000  # bytes: more than a part's, less than the figure's


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A former result, what shall replace it, and a way to try in another process."""
    root = tmp_path_factory.mktemp("interrupted")
    extra = {"base_model.model.head.weight": np.zeros(CARRIED // 4, np.float32)}
    names = [module for module, shape in MODULES.items() if shape == (14, 20)]
    inputs = write_all(root / "in", config={"modules_to_save": ["head"]}, extra=extra, modules=names)
    found = cj.adapters.refine(cj.adapters.load(inputs), rank=6)
    (root / "found").write_bytes(pickle.dumps(found))
    cache = {"JAX_COMPILATION_CACHE_DIR": str(root / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    def attempt(how, folder):
        cj.adapters.save(dataclasses.replace(found, rank=7), folder / "out")
        before = contents(folder / "out")
        command = [sys.executable, "-c", CHILD, how, *map(str, (root / "found", folder / "out", folder / "elsewhere"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | cache)
        return done, before

    return attempt


def test_a_disk_that_takes_no_more_leaves_the_former_result_alone(interrupted, tmp_path):
    """The system refuses the median, then a part, then a client's file, then the figure."""
    done, before = interrupted(f"limited 1000 5000 {CARRIED - 4000} {CARRIED + 5000}", tmp_path)
    assert done.returncode == 0, done.stderr
    median, part, client, figure = done.stdout.splitlines()
    assert "/global/adapter_model.safetensors could not be written: " in median
    assert "/.parts/0.safetensors could not be written: " in part and "File too large" in part
    assert "/client0/adapter_model.safetensors could not be written: " in client and "File too large" in client
    assert figure.startswith("[Errno 27] File too large")
    assert all(".tmp" not in line.split("[")[-1] for line in (median, part, client, figure))
    assert contents(tmp_path / "out") == before
    assert {path.name for path in tmp_path.iterdir()} == {"out", "elsewhere"}


def test_a_kill_in_mid_write_leaves_the_former_result_alone(interrupted, tmp_path):
    """And a hidden folder, as the docstring says."""
    done, before = interrupted("killed in writing", tmp_path)
    assert done.returncode == -9, done.stderr
    assert contents(tmp_path / "out") == before
    (left,) = (path for path in tmp_path.iterdir() if path.name != "out")
    assert left.match(".out.*.tmp") and list((left / ".parts").iterdir()) and (left / "global").is_dir()
    assert ".OUT.*.tmp" in cj.adapters.save.__doc__


def test_a_kill_between_the_two_renames_leaves_the_former_result_where_the_docstring_says(interrupted, tmp_path):
    done, before = interrupted("killed in renaming", tmp_path)
    assert done.returncode == -9, done.stderr
    assert not (tmp_path / "out").exists() and ".OUT.*.old/out" in cj.adapters.save.__doc__
    (former,) = tmp_path.glob(".out.*.old/out")
    assert contents(former) == before
    (new,) = tmp_path.glob(".out.*.tmp")
    assert json.loads((new / "report.json").read_text())["rank"] == 6


@pytest.mark.parametrize("failing", [2, 3])
def test_a_rename_that_fails_never_costs_the_former_result(written, failing, monkeypatch, tmp_path):
    """The second, which gives the new one its name; the third, which would put the former one back."""
    _, found, _ = written
    cj.adapters.save(found, tmp_path / "out")
    before, rename, calls = contents(tmp_path / "out"), os.rename, []

    def broken(*places):
        calls.append(places)
        if 2 <= len(calls) <= failing:
            raise OSError(5, "Input/output error")
        rename(*places)

    monkeypatch.setattr("clairjax.adapters._out.os.rename", broken)
    with pytest.raises(OSError, match="Input/output error"):
        cj.adapters.save(found, tmp_path / "out", force=True)
    (left,) = tmp_path.iterdir()
    assert contents(left if failing == 2 else left / "out") == before
    assert left.match("out" if failing == 2 else ".out.*.old")
