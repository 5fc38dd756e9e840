"""The README's python blocks run and print what stands in the text block behind each."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import jax


ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_example_prints_what_the_readme_says():
    examples = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", README, re.DOTALL)
    assert len(examples) == README.count("```python") >= 2
    for code, expected in examples:
        assert sum(line.strip() != "" for line in code.splitlines()) <= 10
        printed = io.StringIO()
        # The reader's process has JAX's own promotion rules, not the suite's strict ones.
        plain = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
        with contextlib.redirect_stdout(printed), plain[0], plain[1]:
            exec(compile(code, "README.md", "exec"), {})
        assert printed.getvalue() == expected


def test_the_licence_is_the_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"`{project['license']}`" in README


def test_the_commands_named_exist():
    from clairjax.experiments import EXPERIMENTS

    named = set(re.findall(r"clairjax (?:reproduce|profile) ([a-z][\w-]*)", README))
    assert named and named <= set(EXPERIMENTS)
