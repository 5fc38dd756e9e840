"""The README's code runs and prints what the README says; it is short, and its links lead somewhere."""

import re
import tomllib

import jax
import pages
import pytest


README = (pages.ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_code_prints_what_the_readme_says(here):
    """Each Python block in a namespace of its own: a reader may begin with any."""
    examples = pages.blocks(README)
    assert {block.language for block in examples} == {"python", "console"}
    assert len(examples) == README.count("```python") + README.count("```console") >= 3
    wide = jax.config.jax_enable_x64
    for block in examples:
        if block.language == "python":
            assert sum(line.strip() != "" for line in block.code.splitlines()) <= 10
            assert block.expected == pages.printed(block.code, "README.md", {})
        else:
            pages.check(f"```console\n{block.code}```\n", "README.md")
    jax.config.update("jax_enable_x64", wide)


def test_it_is_short_and_its_links_lead_somewhere():
    assert len(README.split()) <= 700
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert links and all((pages.ROOT / link).exists() for link in links)


def test_the_licence_is_the_packages():
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
    assert f"`{project['license']}`" in README


def test_the_commands_named_exist():
    from clairjax.experiments import EXPERIMENTS

    named = set(re.findall(r"clairjax (?:reproduce|profile) ([a-z][\w-]*)(?![\w/-])", README))
    assert named and named <= set(EXPERIMENTS)
