"""Nodes without a framework: a LoRA of a linear model, trained by gradient steps in NumPy. They share a task."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp

from clairjax.flower import arrays, measured, reply, start_from
from clairjax.flower._records import CONFIG


OUT, IN, MODULES, ALPHA = 24, 32, ("q_proj", "v_proj"), 8
SAMPLES, STEPS = 60, 60


def key(module, side):
    return f"base_model.model.model.layers.0.self_attn.{module}.lora_{side}.weight"


def config(rank):
    """As PEFT has it, with a None that no ConfigRecord would take."""
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": "toy",
        "revision": None,
        "r": rank,
        "lora_alpha": ALPHA,
        "target_modules": ["q_proj", "v_proj"],
    }


def truth(node, module, how):
    """One task of rank 2, and a little of a node's own; a contaminated node has another task."""
    rng = np.random.default_rng([7, MODULES.index(module), 1 + node if how == "contaminated" else 0])
    own = np.random.default_rng([8, MODULES.index(module), node])
    common = rng.normal(size=(OUT, 2)) @ rng.normal(size=(2, IN)) / np.sqrt(IN)
    return common + 0.2 * own.normal(size=(OUT, 2)) @ own.normal(size=(2, IN)) / np.sqrt(IN)


def start(rank):
    """The initial arrays: one A for all, and B = 0."""
    tensors = {}
    for place, module in enumerate(MODULES):
        draw = np.random.default_rng([5, place]).uniform(-1, 1, (rank, IN)) / np.sqrt(IN)
        tensors |= {key(module, "A"): draw.astype("f4"), key(module, "B"): np.zeros((OUT, rank), "f4")}
    return tensors


def data(node, module, how, number):
    rng = np.random.default_rng([13, node, number, MODULES.index(module)])
    inputs = rng.normal(size=(SAMPLES, IN))
    return inputs, inputs @ truth(node, module, how).T + 0.5 * rng.normal(size=(SAMPLES, OUT))


def trained(tensors, node, how, rank, number):
    scale, found = ALPHA / rank, {}
    for module in MODULES:
        inputs, targets = data(node, module, how, number)
        up, down = (tensors[key(module, side)].astype(float) for side in "BA")
        for _ in range(STEPS):
            gradient = scale * (inputs @ (scale * up @ down).T - targets).T @ inputs / SAMPLES
            up, down = up - 0.05 / scale * gradient @ down.T, down - 0.05 / scale * up.T @ gradient
        found |= {key(module, "B"): up.astype("f4"), key(module, "A"): down.astype("f4")}
    return found


def loss(tensors, node, how, rank, number=0):
    errors = 0.0
    for module in MODULES:
        inputs, targets = data(node, module, how, number)
        found = inputs @ (ALPHA / rank * tensors[key(module, "B")] @ tensors[key(module, "A")]).T
        errors += float(np.square(found - targets).mean())
    return errors


def who(context):
    return (
        int(context.node_config["partition-id"]),
        str(context.node_config.get("how", "")),
        int(context.node_config.get("rank", 4)),
    )


def spoil(answer, tensors, how, rank):
    """What a node sends that is not well."""
    first, content = key("q_proj", "A"), answer.content
    records = {
        "nan": lambda: arrays(tensors | {first: np.full((rank, IN), np.nan, "f4")}),
        "huge": lambda: arrays(tensors | {first: np.full((rank, IN), 1e38, "f4")}),
        "shape": lambda: arrays(tensors | {first: np.ones((rank, IN + 1), "f4")}),
        "keys": lambda: arrays({name.replace("q_proj", "o_proj"): each for name, each in tensors.items()}),
        "another model": lambda: arrays({"encoder.weight": np.ones((3, 3))}),
        "one factor": lambda: arrays({first: tensors[first]}),
        "nothing": lambda: arrays({}),
        "zeros": lambda: arrays({name: 0 * each for name, each in tensors.items()}),
        "another rank": lambda: arrays(
            {name: each[:1] if ".lora_A." in name else each[:, :1] for name, each in tensors.items()}
        ),
        "bytes": lambda: ArrayRecord({name: Array("float32", (2, 2), "numpy.ndarray", b"no") for name in tensors}),
        "bfloat16": lambda: ArrayRecord({name: Array(np.zeros(each.shape, "V2")) for name, each in tensors.items()}),
        "text": lambda: ArrayRecord({name: Array(np.full(each.shape, "x")) for name, each in tensors.items()}),
    }
    configs = {
        "no JSON": "{",
        "a list": "[1, 2]",
        "DoRA": json.dumps(config(rank) | {"use_dora": True}),
        "for ever": json.dumps(config(rank) | {"rank_pattern": {"(a+)+b": 4}}),
        "alpha": json.dumps(config(rank) | {"lora_alpha": 1e300}),
    }
    if how in records:
        content["arrays"] = records[how]()
    if how in configs:
        content["config"] = ConfigRecord({CONFIG: configs[how]})
    if how == "two records":
        content["more"] = arrays(tensors)
    if how == "no record":
        del content["arrays"]
    if how == "masked":
        content["fitins.secaggplus"] = ConfigRecord({"stage": "setup"})
    return answer


NOT_WELL = (
    *("nan", "huge", "shape", "keys", "another model", "one factor", "nothing", "zeros", "another rank", "bytes"),
    *("bfloat16", "text", "no JSON", "a list", "DoRA", "for ever", "alpha", "two records", "no record", "masked"),
)


def make_app():
    """What a node does, and how it misbehaves, is in its `node_config`."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        node, how, rank = who(context)
        number = int(message.content["config"]["server-round"])
        if how == "error":
            raise RuntimeError("out of memory, say")
        if "seen" in context.node_config:
            Path(str(context.node_config["seen"]), f"{node}").write_text(f"{context.node_id}", encoding="utf-8")
        if how == "to be killed":
            time.sleep(600)
        mine = start_from(message, context, config(rank), lambda each: loss(each, node, how, rank))
        before = loss(mine, node, how, rank)
        mine = trained(mine, node, how, rank, number)
        answer = reply(message, context, mine, config(rank), examples=SAMPLES, metrics={"loss": before})
        return spoil(answer, mine, how, rank)

    @app.evaluate()
    def evaluate(message, context):
        node, how, rank = who(context)
        return measured(message, context, config(rank), lambda each: loss(each, node, how, rank), examples=SAMPLES)

    return app


def fleet(ranks, bad=None, first=1000):
    """`node_config` of nodes 1000, 1001, …"""
    bad = bad or {}
    return {first + k: {"partition-id": k, "rank": rank, "how": bad.get(k, "")} for k, rank in enumerate(ranks)}
