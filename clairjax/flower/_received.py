"""What nodes sent, read with suspicion: adapters by node, and why the others are none. No reply stops a round."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from ..adapters import State, state
from ._records import CONFIG, tensors


Average = Callable[[list[RecordDict], str], MetricRecord]
log = getLogger("flwr").log
PLAIN = re.compile(r"\^?[\w\\.-]+\$?")  # a pattern without repetitions cannot take for ever
LONGEST = 500  # letters of a reason, since nodes can put what they like into it
MASKED = "secagg"
SECURE = (
    "ClairStrategy must see each adapter to judge it, so that secure aggregation (SecAgg, SecAgg+), which hides them, "
    "cannot be used with it: take the mod out of the ClientApp, and the workflow out of the ServerApp"
)


def read_replies(
    replies: Iterable[Message], asked: Iterable[int], like: State
) -> tuple[dict[int, State], dict[int, str], dict[int, str]]:
    """Adapters, reasons why others cannot be used, and reasons why nothing came; by node, in the order of numbers."""
    received: dict[int, State] = {}
    unusable: dict[int, str] = {}
    failed = dict.fromkeys(sorted(asked), "no reply")
    for each in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = each.metadata.src_node_id
        if node not in failed:  # the SuperLink speaks for nodes that are gone, in its own name
            continue
        if each.has_error():
            reason = f"{each.error.reason}"[:LONGEST]
            failed[node] = f"an error: {SECURE if MASKED in reason.lower() else reason}"
            continue
        del failed[node]
        try:
            received[node] = _adapter(node, each.content, like)
        except Exception as error:  # whatever a node sent
            unusable[node] = (str(error) or repr(error))[:LONGEST]
    return received, unusable, failed


def _adapter(node: int, content: RecordDict, like: State) -> State:
    if any(MASKED in name.lower() for name in content.config_records):
        raise ValueError(SECURE)
    if len(content.array_records) != 1:
        raise ValueError(f"a reply must have one ArrayRecord, got {len(content.array_records)}")
    (record,) = content.array_records.values()
    found = state(tensors(record), _fields(content, like), str(node))
    for name, place in found.modules.items():
        if name not in like.modules:
            raise ValueError(f"modules must be those of the initial arrays, got {name}")
        if place.matrix != (expected := like.modules[name].matrix):
            raise ValueError(f"module {name} must be of shape (out, in) {expected}, got {place.matrix}")
    for place in found.modules.values():
        for key in (place.up_key, place.down_key):
            if not np.isfinite(found.held[key]).all():
                raise ValueError(f"{key} must be finite, got NaN or infinite values")
    return found


def _fields(content: RecordDict, like: State) -> dict[str, Any]:
    """The node's configuration, where it sent one."""
    for config in content.config_records.values():
        if CONFIG in config:
            fields = json.loads(str(config[CONFIG]))
            if isinstance(fields, Mapping):
                _check_patterns(fields)
            return fields
    return like.settings.fields


def _check_patterns(fields: Mapping[str, Any]) -> None:
    for name in ("rank_pattern", "alpha_pattern"):
        patterns = fields.get(name) or {}
        if isinstance(patterns, Mapping):
            for pattern in patterns:
                if not PLAIN.fullmatch(str(pattern)):
                    raise ValueError(f"{name} from a node must have plain names of modules, got {pattern!r:.80}")


def claimed(replies: Iterable[Message], nodes: Iterable[int], weight: str) -> dict[int, float]:
    """How many examples each node says it trained on. Who says nothing, or no number, counts as the middle one."""
    said = {reply.metadata.src_node_id: _weight(reply.content, weight) for reply in replies}
    found = {node: said.get(node) for node in nodes}
    usual = float(np.median([number for number in found.values() if number is not None] or [1.0]))
    return {node: usual if number is None else number for node, number in found.items()}


def _weight(content: RecordDict, weight: str) -> float | None:
    """The one number of this name, if it is one and positive."""
    found = [record[weight] for record in content.metric_records.values() if weight in record]
    number = _number(found[0]) if len(found) == 1 else None
    return number if number is not None and number > 0 else None


def _number(value: object) -> float | None:
    """A finite one."""
    try:
        number = float(value) if isinstance(value, int | float) else math.inf
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else None


def averaged(average: Average, contents: Iterable[RecordDict], weight: str) -> MetricRecord:
    """Of those replies whose metrics can be averaged; empty where a function of the user's cannot do it."""
    usable = sound(contents, weight)
    try:
        return average(usable, weight) if usable else MetricRecord()
    except Exception as error:  # on what nodes sent
        log(WARNING, "metrics of the round are left out: %r", error)
        return MetricRecord()


def sound(contents: Iterable[RecordDict], weight: str) -> list[RecordDict]:
    """Of replies those whose metrics can be averaged: one record each, with a weight, and the names that most have."""
    usable = [each for each in contents if len(each.metric_records) == 1 and _weight(each, weight) and _plain(each)]
    names = [frozenset(next(iter(each.metric_records.values()))) for each in usable]
    usual = max(names, key=names.count, default=frozenset())
    return [each for each, mine in zip(usable, names, strict=True) if mine == usual]


def _plain(content: RecordDict) -> bool:
    return all(_number(each) is not None for record in content.metric_records.values() for each in record.values())
