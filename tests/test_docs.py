"""The documentation: code on its pages runs, its reference leaves nothing public out, its commands exist."""

import inspect
import re
import sys

import jax
import pages
import pytest
from test_public import MAY_IMPORT, PUBLIC

import clairjax
from clairjax.experiments import EXPERIMENTS


DOCS = pages.ROOT / "docs"
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if path.relative_to(DOCS).parts[0] != "api"]
TEXTS = {str(path.relative_to(DOCS)): path.read_text(encoding="utf-8") for path in PAGES}


ENTRY = r"^:+\{py:\w+\} clairjax\.\w+\.(\w+)"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with nothing but `docs`; commands may change whether JAX has 64 bits, and where Python looks."""
    wide = jax.config.jax_enable_x64
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "docs").symlink_to(DOCS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    jax.config.update("jax_enable_x64", wide)


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if pages.blocks(text)])
def test_code_on_a_page_prints_what_the_page_says(name, here):
    pages.check(TEXTS[name], name)


def test_commands_name_experiments_and_each_has_a_place_in_the_results():
    commands = re.compile(r"clairjax (?:reproduce|profile) ([a-z][\w-]*)(?![\w/-])")
    assert {name for text in TEXTS.values() for name in commands.findall(text)} <= set(EXPERIMENTS)
    assert set(EXPERIMENTS) <= set(commands.findall(TEXTS["results.md"]))


def shown(door):
    return {name for name, value in vars(door).items() if not (name.startswith("_") or inspect.ismodule(value))}


def test_the_reference_shows_every_public_name(monkeypatch):
    """What it is made of is not asked: the names are looked for from outside."""
    monkeypatch.syspath_prepend(DOCS)
    import _api

    texts = {page.removesuffix(".md"): text for page, text in _api.pages().items()}
    top = set(re.findall(r"^\| \{py:obj\}`clairjax\.(\w+) <", texts.pop("index"), re.MULTILINE))
    public = {name: getattr(clairjax, name) for name in PUBLIC}
    assert top == {name for name, value in public.items() if not inspect.ismodule(value)}
    entries = {id(public[page]): set(re.findall(ENTRY, text, re.MULTILINE)) for page, text in texts.items()}
    for room in filter(inspect.ismodule, public.values()):
        assert shown(room) <= entries.get(id(room), top)


def test_the_table_of_rooms_is_the_layer_rule():
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", TEXTS["architecture.md"], re.MULTILINE)
    table = {room: set(re.findall(r"`(\w+)`", cell)) for room, cell in rows}
    public = lambda room: room
    assert table == {public(room): set(map(public, others)) for room, others in MAY_IMPORT.items()}
