"""A command that measures an adapter: for clients' validation, from the command line."""

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .. import _validate


FIELDS = ("{client}", "{adapter}")


@dataclass(frozen=True)
class Command:
    """Words of a command, with {client} and {adapter} in them for a client's name and a folder that PEFT loads.

    No shell reads them: a client's name is one word, or a part of one, whatever it holds. What the command prints last
    is the loss.
    """

    words: tuple[str, ...]

    def __call__(self, client: str, folder: Path) -> float:
        """**Raises:** `ValueError` for a command that cannot be run, fails, or prints no number last."""
        known = dict(zip(FIELDS, (client, str(folder)), strict=True))
        words = [_filled(word, known) for word in self.words]
        what = f"the evaluation of client {client}"
        try:
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
        except OSError as error:
            raise _validate.fail(what, "a command that can be run", f"{words[0]}: {error.strerror}") from None
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
            raise _validate.fail(what, "a command that ends with status 0", f"{done.returncode}, saying: {last}")
        printed = done.stdout.split()
        try:
            return float(printed[-1])
        except (IndexError, ValueError):
            got = repr(printed[-1]) if printed else "nothing"
            raise _validate.fail(what, "a command that prints a loss last", got) from None


def _filled(word: str, known: dict[str, str]) -> str:
    """In one pass: what is put in is not looked at again."""
    for field, value in known.items():
        if field in word:
            return value.join(_filled(piece, known) for piece in word.split(field))
    return word


def command(text: str) -> Command:
    """A command line that measures a client's adapter, for `save(…, evaluate=…)`.

    **Args:** `text`, as "python score.py {client} {adapter}". Quotes group words as in a shell, but no shell
    runs: no variable, pipe or `;` means anything.

    **Raises:** `ValueError` for a text without words or without {adapter}, or with a quote that does not end.

    **Cost:** none; the command is run once a client and candidate.

    >>> import clairjax as cj
    >>> cj.adapters.command("python 'my score.py' {client} {adapter}").words
    ('python', 'my score.py', '{client}', '{adapter}')
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise _validate.fail("evaluate", "a command whose quotes end", f"{text!r} ({error})") from None
    if not any("{adapter}" in word for word in words):
        raise _validate.fail("evaluate", "a command with the word {adapter}, for the folder to measure", repr(text))
    return Command(words)
