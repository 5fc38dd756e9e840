"""Lists on the command line: of names, of verdicts, of clients' samples."""

import csv
import json
import os
from collections.abc import Collection
from pathlib import Path

from .. import _validate


def words(text: str, option: str, known: Collection[str] | None = None) -> list[str]:
    """**Raises:** `ValueError` for a word that is not known."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if known is not None and (unknown := [word for word in found if word not in known]):
        raise _validate.fail(option, f"among {', '.join(known)}", repr(unknown[0]))
    return found


def read_samples(text: str, clients: list[str], exclude: Collection[str] = ()) -> dict[str, float]:
    """By client: of a file, JSON or lines NAME,N, but for those left out; or a number for each in their order.

    **Raises:** `ValueError` for what is neither.
    """
    if os.path.isfile(text):  # `Path.is_file` would fail on a list that is longer than a name may be
        stored = {name: count for name, count in _stored(Path(text)).items() if name not in exclude}
        return {name: _number(count, name) for name, count in stored.items()}
    counts = words(text, "--samples")
    if len(counts) != len(clients):
        must_be = f"a file, or a number for each of {len(clients)} clients in their order, {', '.join(clients)}"
        raise _validate.fail("--samples", must_be, repr(text))
    return {name: _number(count, name) for name, count in zip(clients, counts, strict=True)}


def _stored(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise _validate.fail("--samples", "a file of text in UTF-8", path) from None
    if path.suffix == ".json":
        try:
            found = json.loads(text)
        except ValueError as error:
            raise _validate.fail("--samples", f"JSON in {path}", f"{error}") from None
        if not isinstance(found, dict):
            raise _validate.fail("--samples", f"an object of names and numbers in {path}", type(found).__name__)
        return found
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if wrong := [row for row in rows if len(row) != 2]:
        raise _validate.fail("--samples", f"lines NAME,N in {path}", ",".join(wrong[0]))
    return {name.strip(): count for name, count in rows}


def _number(count: object, name: str) -> float:
    try:
        number = float(str(count))
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise _validate.fail(f"--samples of client {name}", "a positive number", repr(count))
    return number
