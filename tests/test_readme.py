"""The README's python blocks run and print what stands in the text block behind each."""

import re
import tomllib

import pages


README = (pages.ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_readme_says():
    """Each in a namespace of its own: a reader may begin with any."""
    examples = [block for block in pages.blocks(README) if block.language == "python"]
    assert len(examples) == README.count("```python") >= 2
    for block in examples:
        assert sum(line.strip() != "" for line in block.code.splitlines()) <= 10
        assert block.expected == pages.printed(block.code, "README.md", {})


def test_the_licence_is_the_packages():
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
    assert f"`{project['license']}`" in README


def test_the_commands_named_exist():
    from clairjax.experiments import EXPERIMENTS

    named = set(re.findall(r"clairjax (?:reproduce|profile) ([a-z][\w-]*)(?![\w/-])", README))
    assert named and named <= set(EXPERIMENTS)
