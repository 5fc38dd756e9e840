"""Writes eight LoRA adapters as PEFT does; the fourth was trained on something else. `python adapters.py FOLDER`."""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


MODULES = {"layers.0.attn.q": (14, 20), "layers.0.mlp.up": (24, 16)}  # out, in
RANK, STRANGER = 6, 3


def factors(client, place):
    """B and A: a part in common, a part of the client's own in a row space that all share, and a little noise."""
    out, in_ = list(MODULES.values())[place]
    together, own = np.random.default_rng([7, place]), np.random.default_rng([8, place, client])
    shared, common_up, common_down = (together.normal(size=shape) for shape in ((1, in_), (out, 1), (1, in_)))
    up = [common_up, own.normal(size=(out, 1)), 0.05 * own.normal(size=(out, RANK - 2))]
    down = [common_down, own.normal(size=(1, in_)) if client == STRANGER else shared, own.normal(size=(RANK - 2, in_))]
    return np.concatenate(up, 1).astype("float32"), np.concatenate(down, 0).astype("float32")


def write(folder, client):
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": RANK, "lora_alpha": RANK}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    for place, module in enumerate(MODULES):
        up, down = factors(client, place)
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
    save_file(tensors, folder / "adapter_model.safetensors")


for number in range(8):
    write(Path(sys.argv[1]) / f"client{number}", number)
