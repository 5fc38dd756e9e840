"""Adapter folders as PEFT writes them, made without it: ten clients with planted factors."""

import json

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file


CONFIG = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": 6, "lora_alpha": 12, "use_rslora": False}
MODULES = {"layers.0.attn.q": (14, 20), "layers.0.mlp.up": (24, 16), "layers.1.attn.q": (14, 20)}
SHARED = 1


def factors(client, place, out, in_, *, bad=False, rank=6, noise=0.05):
    """B, A with B·A = a common part + an own part in a shared row space + little noise, at unit scale."""
    together, own = np.random.default_rng([7, place]), np.random.default_rng([8, place, client])
    shared, common_up, common_down = (together.normal(size=shape) for shape in ((SHARED, in_), (out, 1), (1, in_)))
    rest = rank - SHARED - 1
    up = [common_up, own.normal(size=(out, SHARED)), noise * own.normal(size=(out, rest))]
    down = [common_down, own.normal(size=(SHARED, in_)) if bad else shared, own.normal(size=(rest, in_))]
    return np.concatenate(up, 1), np.concatenate(down, 0)


def keys(module):
    return f"base_model.model.{module}.lora_B.weight", f"base_model.model.{module}.lora_A.weight"


def write(root, client, *, bad=False, modules=MODULES, config=None, dtype="float32", extra=None, change=None):
    """One client's folder; `change(B, A)` tampers with every module's factors."""
    fields = CONFIG | (config or {})
    tensors = dict(extra or {})
    for place, module in enumerate(MODULES):
        if module in modules:
            up, down = factors(client, place, *MODULES[module], bad=bad)
            if change is not None:
                up, down = change(up, down)
            kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
            scale = fields["lora_alpha"] / (fields["r"] ** 0.5 if fields["use_rslora"] else fields["r"])
            tensors |= dict(zip(keys(module), ((up / scale).astype(kind), down.astype(kind)), strict=True))
    folder = root / f"client{client}"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def write_all(root, *, bad=(3,), count=8, **rest):
    return [write(root, k, bad=k in bad, **rest) for k in range(count)]


def tensors(folder):
    return load_file(folder / "adapter_model.safetensors")


def config(folder):
    return json.loads((folder / "adapter_config.json").read_text())


def product(folder, module):
    """scale · B · A by PEFT's rule for plain names, in float64."""
    fields, stored = config(folder), tensors(folder)
    name = "^" + module.replace(".", r"\.")
    rank = fields["rank_pattern"].get(name, fields["r"]) if fields.get("rank_pattern") else fields["r"]
    alpha = (
        fields["alpha_pattern"].get(name, fields["lora_alpha"])
        if fields.get("alpha_pattern")
        else fields["lora_alpha"]
    )
    up, down = (stored[key].astype(float) for key in keys(module))
    assert up.shape[1] == down.shape[0] == rank
    return alpha / (rank**0.5 if fields["use_rslora"] else rank) * up @ down
