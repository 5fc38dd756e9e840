"""What clients are called, and over which base model they are."""

import os
import re

import pytest


pytest.importorskip("safetensors")

from folders import write

import clairjax as cj


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Adapters in these folders, by relative paths; what is not relative is under the test's own folder."""
    monkeypatch.chdir(tmp_path)
    made = []

    def make(*paths):
        for path in paths:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            write(tmp_path / "made", len(made)).rename(path)
            made.append(path)
        return list(paths)

    return make


def names(folders, **options):
    return list(cj.adapters.load(folders, **options).clients)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a", "b", "c"], ["a", "b", "c"]),
        (["p/x", "q/x", "r/y"], ["p-x", "q-x", "r-y"]),
        ([f"party{k}/output/checkpoint-500" for k in range(3)], [f"party{k}-output-checkpoint-500" for k in range(3)]),
        (["a/b/x", "a-b/x", "c/x"], ["b-x", "a-b-x", "c-x"]),  # "a-b-x" only once
        (["s/a-b/x", "s/a/b/x", "t/a/b/x"], None),  # three last words give "a-b-x" twice
        (["p/One", "q/one", "r/two"], ["p-One", "q-one", "r-two"]),  # one folder, where case does not count
        (["p/\u00e9", "q/e\u0301", "r/x"], ["p-\u00e9", "q-e\u0301", "r-x"]),  # one letter, written in two ways
        (["p/.out/x", "q/.out/x", "r/.in/x"], ["p-.out-x", "q-.out-x", "r-.in-x"]),
        ([".p/x", ".q/x", "r/x"], ["p-x", "q-x", "r-x"]),
        (["p/x/", "./q//x", "q/../r/x"], ["p-x", "q-x", "r-x"]),
        (["lr=3", "x=y/adapter", "z"], ["lr=3", "adapter", "z"]),  # folders of these names are there
    ],
)
def test_a_client_is_called_by_the_shortest_end_of_its_path_that_no_other_has(paths, expected, at, tmp_path):
    at(*(os.path.normpath(path) for path in paths))
    os.makedirs("q", exist_ok=True)
    found = names(paths)
    assert len({name.casefold() for name in found}) == 3 and not any(os.sep in name for name in found)
    assert expected is None or found == expected
    cj.adapters.check_out(cj.adapters.load(paths), tmp_path / "out", force=False)


def test_case_alone_tells_clients_apart_where_nothing_else_does(at):
    assert names(at("One", "one", "two"))[2] == "two" and len({*names(["One", "one", "two"])}) == 3


def test_links_keep_the_names_that_they_were_given(at):
    deep = at(*(f"party{k}/output/checkpoint" for k in range(3)))
    for k, folder in enumerate(deep):
        os.symlink(folder, f"client{k}")
    assert names([f"client{k}" for k in range(3)]) == ["client0", "client1", "client2"]
    with pytest.raises(ValueError, match=r"^client folders must differ, got client2 again, the same as party2/"):
        cj.adapters.load([*deep, "client2"])


def test_names_can_be_given(at):
    folders = at("p/x", "q/x", "z=1/x", "taken")
    by_hand = {"one": folders[0], "two words": folders[1], "ü": folders[2]}
    assert list(cj.adapters.load(by_hand).clients) == list(by_hand)
    loaded = cj.adapters.load(["one=p/x", "q/x", "equal=z=1/x", "z=1/x/../../taken"])
    assert list(loaded.clients) == ["one", "x", "equal", "taken"]
    assert [folder.path.parent.name for folder in loaded.clients.values()][:3] == ["p", "q", "z=1"]
    assert names(["x=p/x", "q/x", "equal=z=1/x"]) == ["x", "q-x", "equal"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "of 1 to 240 bytes, without a separator"),
        ("a/b", "of 1 to 240 bytes, without a separator"),
        ("ä" * 121, "of 1 to 240 bytes, without a separator"),
        ("..", "printable, not report.json, report.png or global, and start with no dot"),
        (".", "printable, not report.json, report.png or global, and start with no dot"),
        ("Report.JSON", "printable, not report.json, report.png or global, and start with no dot"),
        ("two\nlines", "printable, not report.json, report.png or global, and start with no dot"),
        ("\ud800", "printable, not report.json, report.png or global, and start with no dot"),
        (7, "texts, got 7."),
        ("ONE", "different, also where case does not count, got 'ONE' again."),
    ],
)
def test_a_name_that_no_result_can_have_is_refused(name, message, at):
    one, two, three = at("p", "q", "r")
    with pytest.raises(ValueError, match=f"^{re.escape(f'names of clients must be {message}')}"):
        cj.adapters.load({"one": one, name: two, "three": three})


def test_a_name_of_the_paths_that_is_too_long_is_refused_before_the_work(at, tmp_path):
    paths = at(*(f"{k}{'x' * 100}/{'y' * 100}/{'z' * 100}" for k in range(3)))
    with pytest.raises(ValueError, match=r"^names of client folders must be of 1 to 240 bytes, .* got '0xxx"):
        cj.adapters.check_out(cj.adapters.load(paths), tmp_path / "out", force=False)
    cj.adapters.check_out(cj.adapters.load([f"c{path[0]}={path}" for path in paths]), tmp_path / "out", force=False)


def bases(root, *fields):
    keys = ("base_model_name_or_path", "revision")
    return [write(root, k, config=dict(zip(keys, each, strict=False))) for k, each in enumerate(fields)]


ALIKE = {
    "the hub's default revision": [("b", None), ("b", "main"), ("b",)],
    "a slash at the end": [("/data/llama", None), ("/data/llama/", None), ("/data/llama//", "main")],
    "nothing said": [("",), (None,), ("",)],
}
PATHS = {
    "a path each": [("/home/a/llama",), ("/srv/llama/",), ("../llama",)],
    "of another system": [("C:\\models\\llama",), ("/srv/llama",), (".\\llama\\",)],
    "letters of the hub's, where case does not count": [("meta/Llama",), ("meta/llama",), ("Meta/llama",)],
    "copies of the hub's": [("meta/llama",), ("/srv/llama",), ("/home/b/llama",)],
}
OTHERS = {
    "names": [("base",), ("base",), ("other",)],
    "owners on the hub": [("a/llama",), ("a/llama",), ("b/llama",)],
    "revisions": [("b", None), ("b", "main"), ("b", "v2")],
    "paths that end differently": [("/srv/llama",), ("/home/llama",), ("/srv/llama-2",)],
    "a path like two owners' models": [("a/llama",), ("a/llama",), ("/srv/llama",), ("a/llama",), ("b/llama",)],
}


@pytest.mark.parametrize("what", ALIKE)
def test_spellings_of_one_base_model_are_the_same(what, tmp_path):
    loaded = cj.adapters.load(bases(tmp_path, *ALIKE[what]), strict=True)
    assert len(loaded.clients) == 3 and not loaded.notices


@pytest.mark.parametrize("what", PATHS)
def test_copies_in_places_of_their_own_are_the_same_with_a_notice(what, tmp_path):
    inputs = bases(tmp_path, *PATHS[what])
    (notice,) = cj.adapters.load(inputs).notices
    assert notice.startswith("base models are taken as the same: ") and notice.lower().count("llama (client") == 3
    with pytest.raises(ValueError, match=r"^base models must be the same, got .* \(client0\) and .* \(client1\)\.$"):
        cj.adapters.load(inputs, strict=True)


@pytest.mark.parametrize("what", OTHERS)
def test_the_client_over_another_base_is_unusable_unless_it_is_said_to_be_the_same(what, tmp_path):
    fields = OTHERS[what] if len(OTHERS[what]) > 3 else [OTHERS[what][0], *OTHERS[what]]
    inputs = bases(tmp_path, *fields)
    *_, odd = cj.adapters.load(inputs).clients.values()
    said = "base models must be the same, got "
    assert odd.fault.startswith(said) and odd.fault.endswith("If they are, same_base=True (--same-base) says so.")
    assert f"({odd.name})." in odd.fault and not odd.modules
    with pytest.raises(ValueError, match=f"^{said}"):
        cj.adapters.load(inputs, strict=True)
    told = cj.adapters.load(inputs, strict=True, same_base=True)
    assert not any(folder.fault for folder in told.clients.values())
    assert told.notices[0].startswith("base models are taken as the same, as was said: ")


def test_two_base_models_that_are_as_common_are_refused(tmp_path):
    inputs = bases(tmp_path, ("a",), ("b",), ("b",), ("a",))
    with pytest.raises(
        ValueError, match=r"^base models must be the same, got a \(client0\) and b \(client1\)\. If they"
    ):
        cj.adapters.load(inputs)
    assert len(cj.adapters.load(inputs, same_base=True).modules) == 3
