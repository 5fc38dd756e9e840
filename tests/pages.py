"""Code on pages: it runs, and prints what stands behind it.

- A `python` block prints what the `text` block right behind it says, nothing where there is none.
- A `console` block holds commands after `$ ` and their output. `clairjax` and `python FILE` run in this process.
- Of an output, a line `…` stands for any lines.
"""

import contextlib
import glob
import io
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax


ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    language: str
    code: str
    expected: str


def blocks(text):
    return [Block(language, code, expected or "") for language, code, expected in BLOCK.findall(text)]


def printed(code, name, namespace):
    """What the code prints in a reader's process, which has JAX's own promotion rules and not the suite's."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(code, name, "exec"), namespace)
    return out.getvalue()


def commands(code):
    """Each command of a console block with its output."""
    for command in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        line, _, output = command.partition("\n")
        yield line, output


def answered(line):
    """What a command prints. A shell's `*` is matched here."""
    program, *words = shlex.split(line)
    words = [match for word in words for match in (sorted(glob.glob(word)) if "*" in word else [word])]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        if program == "clairjax":
            from typer.testing import CliRunner

            from clairjax.cli._app import app

            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, done.output
            return done.stdout
        assert program == "python"
        out = io.StringIO()
        with contextlib.redirect_stdout(out), mock.patch.object(sys, "argv", words):
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        return out.getvalue()


def says(expected, output):
    """Whether an output is what a page says, spaces at the ends of lines aside."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "…" else re.escape(line.rstrip()) + r"\n" for line in expected.splitlines()
    )
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in output.splitlines())) is not None


def check(text, name):
    """All blocks of a page, one after another, in one namespace and in the current folder."""
    namespace = {"__name__": "__main__"}
    for block in blocks(text):
        if block.language == "python":
            outputs = [(block.expected, printed(block.code, name, namespace))]
        else:
            outputs = [(expected, answered(line)) for line, expected in commands(block.code)]
        for expected, output in outputs:
            assert says(expected, output), f"{name} says\n{expected}\nand it is\n{output}"
