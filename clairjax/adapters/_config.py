"""`adapter_config.json` of a PEFT LoRA adapter: what it says of scale · B · A, and what it may not say.

Every field that says something is known by name: it changes nothing in the update, or it is used here, or its value is
refused.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
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
    """The first pattern that matches the end of a module's name, from a dot on: PEFT's rule, to the letter.

    So a client can write a pattern that takes for ever, here as there; an interrupt ends it.
    """
    return next((each for each in patterns if _ending(each).match(module)), module)


def _ending(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({pattern})$")


def read_settings(folder: Path, client: str) -> Settings:
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"client {client} must be a folder with a PEFT adapter, got no {CONFIG} in {folder}.")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        what = f"{CONFIG} must be JSON, no deep nesting and no name twice"
        raise ValueError(f"client {client}: {what}, got {error}.") from None
    return checked_settings(fields, client)


def checked_settings(fields: Any, client: str) -> Settings:
    """**Raises:** `ValueError` naming the client and the field."""
    if not isinstance(fields, dict):
        raise ValueError(f"client {client}: {CONFIG} must hold an object, got {type(fields).__name__}.")
    _check(fields, client)
    return Settings(client, fields)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} twice")
    return dict(pairs)


def _check(fields: dict[str, Any], client: str) -> None:
    if fields.get("peft_type") != "LORA":
        raise ValueError(f"client {client}: peft_type must be LORA, got {fields.get('peft_type')}.")
    for name, value in fields.items():
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                what = f"{name} must be {NEUTRAL[name][0]!r}: with it the update is not scale · B · A"
                raise _refusal(client, what, value)
        elif name not in HARMLESS | USED and value is not None and value is not False:  # an option that is off
            advice = "a later PEFT may have given it a meaning; remove it if it changes nothing"
            raise ValueError(f"client {client}: {CONFIG} must have known fields only ({advice}), got {name!r}.")
    start = fields.get("init_lora_weights", True)
    if not any(start is plain or start == plain for plain in PLAIN_STARTS):
        what = "init_lora_weights must leave the base model as it is (convert the adapter with PEFT first)"
        raise _refusal(client, what, start)
    for name, (what, good) in VALUES.items():
        if name in fields and not good(fields[name]):
            raise _refusal(client, f"{name} must be {what}", fields[name])
    for pattern, (what, good) in {"rank_pattern": VALUES["r"], "alpha_pattern": VALUES["lora_alpha"]}.items():
        _check_pattern(fields.get(pattern), pattern, what, good, client)


def _check_pattern(values: Any, field: str, what: str, good: Callable[[Any], bool], client: str) -> None:
    if not isinstance(values, dict | None):
        raise _refusal(client, f"{field} must be an object", values)
    for pattern, value in (values or {}).items():
        try:
            _ending(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            what = f"{field} must have regular expressions for names ({error})"
            raise _refusal(client, what, pattern) from None
        if not good(value):
            raise _refusal(client, f"{field} of {shortened(pattern)} must be {what}", value)


def _refusal(client: str, what: str, got: Any) -> ValueError:
    return ValueError(f"client {client}: {what}, got {shortened(got)}.")


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _whole(value: Any) -> bool:
    return isinstance(value, int) and _positive(value)


def _names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _text(value: Any) -> bool:
    return isinstance(value, str | None)


VALUES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "r": ("a positive integer", _whole),
    "lora_alpha": ("a positive number", _positive),
    "use_rslora": ("true or false", lambda value: isinstance(value, bool)),
    "modules_to_save": ("a list of names or null", _names),
    "base_model_name_or_path": ("a text or null", _text),
    "revision": ("a text or null", _text),
    **{
        name: ("a text, a list of names or null", lambda value: isinstance(value, str) or _names(value))
        for name in ("target_modules", "exclude_modules")
    },
}


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


def global_fields(settings: Settings, ranks: dict[str, int], adapted: Iterable[str]) -> dict[str, Any]:
    """Of an adapter at scale 1 that is nobody's own: of these modules, of which the client has `adapted`."""
    fields = refined_fields(settings, ranks, dict.fromkeys(ranks, 1.0))
    if settings.modules_to_save:  # nobody's own head is in it, and for a task with a head PEFT would look for one
        fields |= {"modules_to_save": None, "task_type": None}
    if set(adapted) != set(ranks):
        fields |= dict.fromkeys(("exclude_modules", "layers_to_transform", "layers_pattern"))
        fields["target_modules"] = sorted(ranks)
    return fields
