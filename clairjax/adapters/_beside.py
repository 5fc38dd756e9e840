"""Tensors beside LoRA's factors: which go through untouched, and which would give the factors another meaning.

Beside an adapter PEFT writes modules in full: those of `modules_to_save`, and with `save_embedding_layers` the model's
input and output embeddings, whatever the architecture calls them. They are known by what they are, not by their names.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable

from ._config import Settings


PREFIX = "base_model.model."
BASE = "base_layer"  # where an adapted layer holds what it adapts
MOST = 2  # modules: the input and the output embeddings
# What the tensors of PEFT's methods begin with; LoRA's own variants (DoRA's magnitudes) begin as LoRA's factors do.
METHODS = (
    *("lora_", "token_adapter", "trainable_tokens_", "ia3_", "hada_", "lokr_", "oft_", "boft_", "hra_"),
    *("vera_", "pvera_", "vblora_", "fourierft_", "c3a_", "randlora_", "shira_", "miss_", "bone_", "road_", "waveft_"),
    *("ln_tuning_", "poly_", "delora_", "gralora_", "glora_", "hira_", "lily_", "psoft_", "osf_", "peanut_", "frod_"),
    *("adamss_", "beft_", "deft_", "shadow_", "supertuning_", "tinylora_", "unilora_"),
)
Words = tuple[str, ...]


def trained_in_full(key: str, settings: Settings) -> bool:
    """Whether a tensor is of `modules_to_save`, by PEFT's rule: the text that a module's name ends with."""
    words = key.split(".")
    names = [".".join(words[:count]) for count in range(1, len(words))]
    return key.startswith(PREFIX) and any(name.endswith(end) for name in names for end in settings.modules_to_save)


def not_embeddings(shapes: dict[str, tuple[int, ...]], adapted: Collection[str]) -> str | None:
    """The first of these tensors that PEFT would not write as a part of the embeddings beside adapted modules.

    Each of the two is written whole, so with a weight that has rows. It is in no list of layers with an adapted
    layer. Of an adapted layer only the base is written: anything else there is another method's.
    """
    layers = [tuple(name.split(".")) for name in adapted]
    found: dict[Words, list[str]] = defaultdict(list)
    for key in shapes:
        words = tuple(key.removeprefix(PREFIX).split("."))
        module = _module(words)
        if not key.startswith(PREFIX) or not module or _is_listed(module, layers):
            return key
        if any(word.startswith(METHODS) for word in words[-2:]):
            return key
        if any(module[: len(layer)] == layer for layer in layers) and BASE not in words:
            return key
        found[_apart(module, layers)].append(key)
    for keys in (*list(found.values())[MOST:], *found.values()):
        if len(found) > MOST or not any(_is_weight(key, shapes[key]) for key in keys):
            return keys[0]
    return None


def _is_weight(key: str, shape: tuple[int, ...]) -> bool:
    return key.endswith(".weight") and len(shape) >= 2


def _module(words: Words) -> Words:
    """Whose tensor it is: up to an adapted layer's base, and a list of embeddings is one module."""
    module = words[: words.index(BASE)] if BASE in words else words[:-1]
    while module and module[-1].isdigit():
        module = module[:-1]
    return module


def _is_listed(module: Words, layers: Iterable[Words]) -> bool:
    """Whether it is in one of a list's numbered layers, of which some are adapted."""
    lists = [module[:count] for count, word in enumerate(module) if word.isdigit() and count]
    return any(layer[: len(each)] == each for each in lists for layer in layers)


def _apart(module: Words, layers: Iterable[Words]) -> Words:
    """The largest part of the model that holds a module and no adapted layer; an adapted module itself."""
    parts = (module[:count] for count in range(1, len(module)))
    return next((part for part in parts if not any(layer[: len(part)] == part for layer in layers)), module)
