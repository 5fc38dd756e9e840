"""`adapter_config.json` of a PEFT LoRA adapter: what it says of scale · B · A, and what it may not say.

Every field is known by name: it changes nothing in the update, or it is used here, or its value is refused.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


CONFIG = "adapter_config.json"

# Of training, loading or bookkeeping: whatever they say, the update of a finished adapter is scale · B · A.
HARMLESS = {
    *("auto_mapping", "task_type", "peft_version", "inference_mode", "lora_dropout", "runtime_config"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "megatron_core"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size"),
    "fan_in_fan_out",  # of the base weight: PEFT transposes the product, the factors stay rank × in and out × rank
}
USED = {
    *("peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "use_rslora"),
    *("rank_pattern", "alpha_pattern", "modules_to_save", "init_lora_weights"),
}
# Fields that change the update unless they have one of these values.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "use_qalora": (False, None),
    "use_bdlora": (None, False),
    "ensure_weight_tying": (False, None),
    "megatron_config": (None,),
    "trainable_token_indices": (None,),
    "layer_replication": (None,),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None,),
    "arrow_config": (None,),
    "velora_config": (None,),
    "monteclora_config": (None,),
    "kasa_config": (None,),
}
# Starts that leave the base model as it is. PiSSA and its kin move a part of the base weight into the adapter.
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class Settings:
    """What the configuration of one client says; `fields` is the whole of it."""

    client: str
    fields: dict[str, Any]

    @property
    def base_model(self) -> tuple[str | None, str | None]:
        return self.fields.get("base_model_name_or_path"), self.fields.get("revision")

    @property
    def modules_to_save(self) -> list[str]:
        return list(self.fields.get("modules_to_save") or [])

    def rank(self, module: str) -> int:
        return int(self._of_module("rank_pattern", "r", 8, module))

    def scale(self, module: str) -> float:
        alpha, rank = float(self._of_module("alpha_pattern", "lora_alpha", 8, module)), self.rank(module)
        return alpha / math.sqrt(rank) if self.fields.get("use_rslora") else alpha / rank

    def _of_module(self, pattern: str, default: str, unsaid: int, module: str) -> Any:
        patterns = self.fields.get(pattern) or {}
        return patterns.get(matching(patterns, module), self.fields.get(default, unsaid))


def matching(patterns: Iterable[str], module: str) -> str:
    """The first pattern that matches the end of a module's name, from a dot on: PEFT's rule, to the letter."""
    return next((each for each in patterns if re.match(rf"(.*\.)?({each})$", module)), module)


def read_settings(folder: Path, client: str) -> Settings:
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"client {client} must be a folder with a PEFT adapter, got no {CONFIG} in {folder}.")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"client {client}: {CONFIG} must be JSON, got {error}.") from None
    if not isinstance(fields, dict):
        raise ValueError(f"client {client}: {CONFIG} must hold an object, got {type(fields).__name__}.")
    _check(fields, client)
    return Settings(client, fields)


def _check(fields: dict[str, Any], client: str) -> None:
    if fields.get("peft_type") != "LORA":
        raise ValueError(f"client {client}: peft_type must be LORA, got {fields.get('peft_type')}.")
    for name, value in fields.items():
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                what = f"{name} must be {NEUTRAL[name][0]!r}: with it the update is not scale · B · A"
                raise ValueError(f"client {client}: {what}, got {value!r}.")
        elif name not in HARMLESS | USED:
            advice = "a later PEFT may have given it a meaning; remove it if it changes nothing"
            raise ValueError(f"client {client}: {CONFIG} must have known fields only ({advice}), got {name!r}.")
    start = fields.get("init_lora_weights", True)
    if not any(start is plain or start == plain for plain in PLAIN_STARTS):
        what = "init_lora_weights must leave the base model as it is (convert the adapter with PEFT first)"
        raise ValueError(f"client {client}: {what}, got {start!r}.")
    for name in ("r", "lora_alpha", *(fields.get("rank_pattern") or {}), *(fields.get("alpha_pattern") or {})):
        for table in (fields, fields.get("rank_pattern") or {}, fields.get("alpha_pattern") or {}):
            if name in table and not _positive(table[name]):
                raise ValueError(f"client {client}: {name} must be a positive number, got {table[name]!r}.")


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def refined_fields(settings: Settings, ranks: dict[str, int], scales: dict[str, float]) -> dict[str, Any]:
    """The configuration of an adapter whose modules have these ranks and scales."""
    alphas = {module: _plain(scales[module] * rank) for module, rank in ranks.items()}
    pairs = [(ranks[module], alphas[module]) for module in ranks]
    rank, alpha = max(set(pairs), key=pairs.count)
    changed = {
        "r": rank,
        "lora_alpha": alpha,
        "use_rslora": False,
        "rank_pattern": _pattern({module: each for module, each in ranks.items() if each != rank}),
        "alpha_pattern": _pattern({module: each for module, each in alphas.items() if each != alpha}),
        "init_lora_weights": True,
        "inference_mode": True,
    }
    unused = ("loftq_config", "eva_config", "corda_config", "lora_ga_config")
    return (
        settings.fields
        | changed
        | {name: {} if name == "loftq_config" else None for name in unused if name in settings.fields}
    )


def _plain(alpha: float) -> int | float:
    return int(alpha) if alpha == int(alpha) else alpha


def _pattern(values: dict[str, Any]) -> dict[str, Any]:
    """From the start of the name, so that no other module's name ends like it."""
    return {f"^{re.escape(module)}": value for module, value in values.items()}
