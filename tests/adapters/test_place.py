"""A result takes its name: whatever happens in between, nothing is lost and nothing is mixed."""

import json
import os
import re

import pytest


pytest.importorskip("safetensors")

from clairjax.adapters._place import FORMAT, take_place


CLIENTS = ("one", "two")
INSIDE = ("adapter_config.json", "adapter_model.safetensors")
FILES = ["report.json", "report.png", *(f"{name}/{file}" for name in CLIENTS for file in INSIDE)]
# A former result is set aside by the first renaming and replaced by the second.
MOMENTS = [(which, when) for which in (1, 2) for when in ("before", "after")]


def result(place, number):
    """What `save` writes, with a number in each file."""
    for file in FILES:
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text(f"{number}")
    (place / "report.json").write_text(json.dumps({"format": FORMAT, "files": FILES, "number": number}))
    return place


def number(place):
    """Of a whole result, which is of one call and has nothing else in it."""
    assert sorted(files(place)) == sorted(FILES)
    found = {json.loads(text)["number"] if file == "report.json" else int(text) for file, text in files(place).items()}
    (only,) = found
    return only


def files(place):
    return {path.relative_to(place).as_posix(): path.read_text() for path in place.rglob("*") if path.is_file()}


def put(place):
    """Somebody's own file."""
    place.mkdir(exist_ok=True)
    (place / "thesis.txt").write_text("the only copy")


def at_rename(monkeypatch, which, when, event):
    """Let `event` happen before or after the so-manieth renaming; what it renames is not counted."""
    rename, calls = os.rename, []

    def renamed(*places):
        calls.append(places)
        mine = len(calls) == which
        if mine and when == "before":
            monkeypatch.setattr(os, "rename", rename)
            event()
        rename(*places)
        if mine and when == "after":
            monkeypatch.setattr(os, "rename", rename)
            event()

    monkeypatch.setattr(os, "rename", renamed)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("former", [None, "empty"])
def test_a_free_name_and_an_empty_folder_are_taken(former, force, tmp_path):
    out = tmp_path / "out"
    if former == "empty":
        out.mkdir()
    take_place(result(tmp_path / "new", 1), out, force)
    assert number(out) == 1 and [path.name for path in tmp_path.iterdir()] == ["out"]


APPEARING = {
    "files in a folder": put,
    "a folder in a folder": lambda out: (out / "deep").mkdir(parents=True),
    "a file": lambda out: out.write_text("mine"),
    "a link": lambda out: out.symlink_to(out.parent / "elsewhere"),
    "a link to a result": lambda out: out.symlink_to(result(out.parent / "elsewhere", 7)),
    "a result with something in it": lambda out: put(result(out, 7)),
    "another's result": lambda out: result(out, 7),
}


@pytest.mark.parametrize(
    ("appearing", "force"),
    [(name, force) for name in APPEARING for force in (False, True) if (name, force) != ("another's result", True)],
)
def test_what_has_the_name_stays_and_the_new_result_is_kept_beside(appearing, force, tmp_path):
    out = tmp_path / "out"
    APPEARING[appearing](out)
    before = os.readlink(out) if out.is_symlink() else out.read_text() if out.is_file() else files(out)
    with pytest.raises(ValueError, match=r"^out must be .*\. The new result is kept in ") as caught:
        take_place(result(tmp_path / "new", 1), out, force)
    (kept,) = tmp_path.glob("out.*.kept")
    assert number(kept) == 1 and f"kept in {kept}." in str(caught.value) and ".old" not in str(caught.value)
    assert before == (os.readlink(out) if out.is_symlink() else out.read_text() if out.is_file() else files(out))
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "elsewhere", kept.name}


@pytest.mark.parametrize(("which", "when"), MOMENTS)
def test_with_force_what_appears_at_any_moment_stays(which, when, monkeypatch, tmp_path):
    out = result(tmp_path / "out", 0)
    at_rename(monkeypatch, which, when, lambda: put(out))
    new = result(tmp_path / "new", 1)
    if (which, when) == (2, "after"):  # the new result is in its place
        take_place(new, out, True)
        assert files(out) == {**files(result(tmp_path / "expected", 1)), "thesis.txt": "the only copy"}
        assert not list(tmp_path.glob(".out.*"))
        return
    with pytest.raises(ValueError, match=r"^out must be .*\. The new result is kept in ") as caught:
        take_place(new, out, True)
    (kept,) = tmp_path.glob("out.*.kept")
    assert number(kept) == 1 and files(out)["thesis.txt"] == "the only copy"
    if (which, when) == (1, "before"):
        assert {path.name for path in tmp_path.iterdir()} == {"out", kept.name}
        (out / "thesis.txt").unlink()
        assert number(out) == 0
    else:
        (former,) = tmp_path.glob(".out.*.old/out")
        assert number(former) == 0 and f"What was there before is in {former}." in str(caught.value)


def test_what_comes_into_the_former_result_after_the_look_stays(monkeypatch, tmp_path):
    """As of a process that works in that folder."""
    out = result(tmp_path / "out", 0)
    at_rename(monkeypatch, 2, "after", lambda: [put(former) for former in tmp_path.glob(".out.*.old/out")])
    take_place(result(tmp_path / "new", 1), out, True)
    (former,) = tmp_path.glob(".out.*.old/out")
    assert number(out) == 1 and files(former) == {"thesis.txt": "the only copy"}


@pytest.mark.parametrize(("former", "which", "when"), [(False, 1, "before"), *((True, *moment) for moment in MOMENTS)])
def test_of_two_calls_with_force_one_whole_result_remains(former, which, when, monkeypatch, tmp_path):
    out = result(tmp_path / "out", 0) if former else tmp_path / "out"
    new, other = result(tmp_path / "new", 1), result(tmp_path / "other", 2)
    at_rename(monkeypatch, which, when, lambda: take_place(other, out, True))
    take_place(new, out, True)
    assert number(out) == (2 if (which, when) == (2, "after") else 1)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_of_two_calls_without_force_the_first_has_the_name(monkeypatch, tmp_path):
    out, new, other = tmp_path / "out", result(tmp_path / "new", 1), result(tmp_path / "other", 2)
    at_rename(monkeypatch, 1, "before", lambda: take_place(other, out, False))
    with pytest.raises(ValueError, match=r"new or empty folder .* The new result is kept in "):
        take_place(new, out, False)
    (kept,) = tmp_path.glob("out.*.kept")
    assert (number(out), number(kept)) == (2, 1)


@pytest.mark.parametrize(("which", "when"), MOMENTS)
def test_an_interruption_leaves_one_whole_result_in_its_place(which, when, monkeypatch, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    out = result(tmp_path / "out", 0)
    at_rename(monkeypatch, which, when, interrupt)
    with pytest.raises(KeyboardInterrupt):
        take_place(result(tmp_path / "new", 1), out, True)
    assert number(out) == (1 if (which, when) == (2, "after") else 0)


def test_nothing_outside_the_folder_is_removed_whatever_its_report_names(tmp_path):
    victim = result(tmp_path / "victim", 5)
    out = tmp_path / "out"
    out.mkdir()
    named = [f"{name}/{file}" for name in ("../victim", str(victim)) for file in FILES]
    (out / "report.json").write_text(json.dumps({"format": FORMAT, "files": ["report.json", *named]}))
    take_place(result(tmp_path / "new", 1), out, True)
    assert number(out) == 1 and number(victim) == 5


def test_save_loses_nothing_that_appears_while_it_works(written, tmp_path):
    import clairjax as cj

    _, found, _ = written
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=f"got {re.escape(str(out))}. The new result is kept in ") as caught:
        cj.adapters.save(found, out, progress=lambda module: put(out))
    (kept,) = tmp_path.glob("out.*.kept")
    assert files(out) == {"thesis.txt": "the only copy"} and f"{kept}." in str(caught.value)
    assert {path.name for path in kept.iterdir()} == {*found.members, "global", "report.json", "report.png"}
    assert "OUT.*.kept" in cj.adapters.save.__doc__ and len(list(tmp_path.iterdir())) == 2
