"""What a round decided, and the file that outlives a ServerApp."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import _validate
from .._files import replace_file
from ..adapters import ClientVerdict, State, state


FORMAT = "clairjax flower 1"


@dataclass(frozen=True)
class Round:
    """One round, by node.

    - `verdicts`: of those whose adapters were compared; `members`: who counts.
    - `excluded`: whose adapter does not count, and why: another direction, NaN, another shape, …
    - `failed`: who was asked and sent no adapter, or was asked before and is gone, and why.
    - `truncation`: of members, the largest relative error of what is shared at the rank of the node.
    - `t`: t · own + (1 − t) · shared is what members get, None where nothing shows that sharing helps; `why`.
    - `losses`: of nodes that evaluated, by t: with what they were sent, and with their own, t = 1.
    """

    number: int
    members: tuple[int, ...] = ()
    verdicts: dict[int, ClientVerdict] = field(default_factory=dict)
    excluded: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    truncation: dict[int, float] = field(default_factory=dict)
    losses: dict[int, dict[float, float]] = field(default_factory=dict)
    t: float | None = None
    why: str = ""
    notices: tuple[str, ...] = ()
    seconds: float = 0.0


def write(path: Path, rounds: Iterable[Round], states: Mapping[str, State]) -> None:
    """Everything in one file."""
    from safetensors.numpy import save_file

    held = {f"{owner}/{key}": each for owner, state in states.items() for key, each in state.held.items()}
    fields = {owner: state.settings.fields for owner, state in states.items()}
    about = {"rounds": [asdict(each) for each in rounds], "configurations": fields}
    text = {"format": FORMAT, **{name: json.dumps(each) for name, each in about.items()}}
    replace_file(path, lambda beside: save_file(held, beside, metadata=text))


def read(path: Path) -> tuple[list[Round], dict[str, State]]:
    """**Raises:** `ValueError` for another file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            about = file.metadata() or {}
            held = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise _validate.fail("path", "what a strategy saved", f"{path} ({error})") from None
    if about.get("format") != FORMAT:
        raise _validate.fail("path", f"what a strategy saved, {FORMAT}", f"{path}, {about.get('format')}")
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, each in held.items():
        owner, _, key = name.partition("/")
        found.setdefault(owner, {})[key] = each
    fields = json.loads(about["configurations"])
    states = {owner: state(mine, fields[owner], owner) for owner, mine in found.items()}
    return [_round(each) for each in json.loads(about["rounds"])], states


def _round(content: Mapping[str, Any]) -> Round:
    """What JSON made texts of, numbers again; and tuples of lists."""
    tables = {name: {int(k): v for k, v in each.items()} for name, each in content.items() if isinstance(each, dict)}
    tables["verdicts"] = {node: ClientVerdict(**_tuples(each)) for node, each in tables["verdicts"].items()}
    tables["losses"] = {node: {float(t): loss for t, loss in mine.items()} for node, mine in tables["losses"].items()}
    return Round(**_tuples(content) | tables)


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(each) if isinstance(each, list) else each for name, each in content.items()}
