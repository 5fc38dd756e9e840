"""A node's half, with NumPy and flwr alone: what to go on with, what to send, and what to say of it."""

import json
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict

from ._records import CONFIG, arrays, tensors, with_config


OWN = "clairjax-own"  # in the node's state, which never leaves it: the adapter that it sent last
LOSS, LOSS_OWN, EXAMPLES = "loss", "loss-own", "num-examples"
Tensors = dict[str, np.ndarray]
Loss = Callable[[Tensors], float]


def start_from(message: Message, context: Context, fields: Mapping[str, Any], loss: Loss | None = None) -> Tensors:
    """The adapter that a node goes on with: what it received, or its own where that is better.

    **Args:**

    - `message`, `context`: of Flower.
    - `fields`: of the node's own adapter_config.json. What came at another rank or scale is fitted to it.
    - `loss`: of a state dictionary, on data that the node did not train on; None takes what was received.

    **Returns:** a state dictionary of NumPy arrays.

    **Raises:** `ValueError` as `fit`.

    **Cost:** two evaluations.

    >>> from clairjax.flower import start_from
    >>> start_from(message, context, config.to_dict(), loss)  # doctest: +SKIP
    """
    received, own = _received(message, fields), _own(context)
    if own is None or loss is None:
        return received
    return own if _number(loss, own) < _number(loss, received) else received


def reply(
    message: Message,
    context: Context,
    state: Mapping[str, Any],
    fields: Mapping[str, Any],
    *,
    examples: float,
    metrics: Mapping[str, float] | None = None,
) -> Message:
    """What a node sends when it has trained: its adapter, its configuration and numbers. It remembers the adapter.

    **Args:** `state`: of PEFT's `get_peft_model_state_dict`, float16, float32 or float64. `fields`: of
    adapter_config.json. `examples`: that it trained on. `metrics`: more numbers.

    **Raises:** `ValueError` for bfloat16, which does not survive the transport.

    **Cost:** a copy of the adapter, kept in the node's state.

    >>> from clairjax.flower import reply
    >>> reply(message, context, get_peft_model_state_dict(model), fields, examples=900)  # doctest: +SKIP
    """
    record = arrays(state)
    context.state[OWN] = record
    numbers = MetricRecord({EXAMPLES: examples, **(metrics or {})})
    content = RecordDict({"arrays": record, "metrics": numbers, "config": with_config({}, fields)})
    return Message(content, reply_to=message)


def measured(message: Message, context: Context, fields: Mapping[str, Any], loss: Loss, *, examples: float) -> Message:
    """A node's answer to an evaluation: its loss with what it received, and with its own.

    From these losses of all nodes the server chooses whether what is shared goes out to all.

    **Args:** `message`, `context`, `fields`, `loss`: as in `start_from`. `examples`: that were evaluated.

    **Raises:** `ValueError` as `fit`.

    **Cost:** two evaluations.

    >>> from clairjax.flower import measured
    >>> measured(message, context, config.to_dict(), loss, examples=100)  # doctest: +SKIP
    """
    numbers = {EXAMPLES: examples, LOSS: float(loss(_received(message, fields)))}
    if (own := _own(context)) is not None:
        numbers[LOSS_OWN] = float(loss(own))
    return Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)


def fit(state: Mapping[str, np.ndarray], given: Mapping[str, Any], mine: Mapping[str, Any]) -> Tensors:
    """An adapter of one rank and scale as another's: cut, or with a random A beside a zero B, as PEFT starts.

    What the server sends is the best approximation of any smaller rank in its first columns and rows.

    **Args:** `state`, of the configuration `given`; `mine`, the configuration of the result.

    **Raises:** `ValueError` for ranks or alphas that differ by module, where the two configurations differ, and for a
    rank or an alpha that is not positive.

    **Cost:** a copy.

    >>> import numpy as np
    >>> from clairjax.flower import fit
    >>> sides = {"m.lora_A.weight": np.ones((2, 4), "f"), "m.lora_B.weight": np.ones((3, 2), "f")}
    >>> halved = fit(sides, {"r": 2, "lora_alpha": 4}, {"r": 1, "lora_alpha": 4})
    >>> {key: each.shape for key, each in halved.items()}, float(halved["m.lora_B.weight"][0, 0])
    ({'m.lora_A.weight': (1, 4), 'm.lora_B.weight': (3, 1)}, 0.5)
    """
    names = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
    ratio = _scale(given, "the received") / _scale(mine, "the node's own")
    if [given.get(name) or None for name in names] == [mine.get(name) or None for name in names]:
        return dict(state)
    if any(fields.get(name) for fields in (given, mine) for name in names[3:]):
        raise ValueError("rank_pattern and alpha_pattern must be the same where ranks or scales differ, got others.")
    rank, found = int(mine.get("r", 8)), {}
    for place, (key, each) in enumerate(state.items()):
        if "lora_A" in key or "lora_embedding_A" in key:
            extra = max(0, rank - len(each))
            drawn = np.random.default_rng([rank, place]).uniform(-1, 1, (extra, *each.shape[1:]))
            each = np.concatenate([each[:rank], (drawn / math.sqrt(each.shape[1])).astype(each.dtype)])
        elif "lora_B" in key or "lora_embedding_B" in key:
            each = np.pad(each[:, :rank] * each.dtype.type(ratio), ((0, 0), (0, max(0, rank - each.shape[1]))))
        found[key] = each
    return found


def _scale(fields: Mapping[str, Any], whose: str) -> float:
    rank, alpha = fields.get("r", 8), fields.get("lora_alpha", 8)
    for name, value, kinds in (("r", rank, Integral), ("lora_alpha", alpha, Real)):
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < float(value) < math.inf:
            kind = "integer" if kinds is Integral else "number"
            raise ValueError(f"{name} of {whose} configuration must be a positive {kind}, got {value!r}.")
    return alpha / (math.sqrt(rank) if fields.get("use_rslora") else rank)


def _received(message: Message, fields: Mapping[str, Any]) -> Tensors:
    (record,) = message.content.array_records.values()
    for config in message.content.config_records.values():
        if CONFIG in config:
            return fit(tensors(record), json.loads(str(config[CONFIG])), fields)
    return tensors(record)


def _own(context: Context) -> Tensors | None:
    return tensors(context.state[OWN]) if OWN in context.state else None


def _number(loss: Loss, state: Tensors) -> float:
    """What cannot be measured is not better than anything."""
    value = float(loss(state))
    return value if math.isfinite(value) else math.inf
