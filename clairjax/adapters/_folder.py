"""One client's adapter: a folder as PEFT writes it, read tensor by tensor and strictly by name."""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ._beside import PREFIX, not_embeddings, trained_in_full
from ._config import Settings, checked_settings, read_settings
from ._tensors import FLOATS, KINDS, headers, kind_of, read, wide


WEIGHTS, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<kind>embedding_)?(?P<side>[AB])(?P<end>\.weight)?")
MODULE = re.compile(r"[\w-]+(\.[\w-]+)*")
NOWHERE = Path(os.devnull)  # nothing lies below it
EMPTY = (0,)  # the shape that ZeRO-3 leaves
Tensors = dict[str, tuple[tuple[int, ...], str]]  # shapes and types by key
PAIRS = ({"lora_A", "lora_B"}, {"lora_embedding_A", "lora_embedding_B"})


@dataclass(frozen=True)
class Factors:
    """Where one module's factors lie: keys, shapes (out × rank, rank × in) and type."""

    up_key: str
    down_key: str
    up_shape: tuple[int, int]
    down_shape: tuple[int, int]
    kind: str

    @property
    def matrix(self) -> tuple[int, int]:
        return self.up_shape[0], self.down_shape[1]

    @property
    def rank(self) -> int:
        return self.up_shape[1]


@dataclass(frozen=True)
class Folder:
    """A client. `modules` by name; `carried`: keys of tensors that are not LoRA's and go through untouched.

    `fault` says why a client cannot take part; then it has no modules.
    """

    name: str
    path: Path
    settings: Settings
    modules: dict[str, Factors]
    carried: tuple[str, ...]
    fault: str = ""

    def read(self, keys: list[str] | tuple[str, ...]) -> dict[str, np.ndarray]:
        return read(self.path / WEIGHTS, self.name, keys)

    def factors(self, module: str) -> tuple[np.ndarray, np.ndarray, float]:
        """B [out, rank] and A [rank, in] in float32 (float64 stays), and the scale. Columns and rows are of one size.

        Otherwise a client of huge A and tiny B, whose update is as usual, would be all that is seen of the rows.
        """
        place = self.modules[module]
        tensors = self.read([place.up_key, place.down_key])
        up, down = (wide(tensors[key]) for key in (place.up_key, place.down_key))
        return *evened(up, down), self.settings.scale(module)

    def product(self, module: str) -> tuple[np.ndarray, np.ndarray]:
        """The factors at scale 1, in float64."""
        up, down, scale = self.factors(module)
        return evened(scale * up.astype(np.float64), down.astype(np.float64))


def evened(up: np.ndarray, down: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same product, to the bit: powers of two go from the larger of a column and its row to the smaller."""
    sizes = np.abs(up).max(0), np.abs(down).max(1)
    there = np.isfinite(sizes).all(0) & (np.minimum(*sizes) > 0)
    (_, larger), (_, smaller) = (np.frexp(np.where(there, size, 1)) for size in sizes)
    shift = (smaller - larger) // 2
    return np.ldexp(up, shift), np.ldexp(down, -shift[:, None])


def read_folder(path: Path, name: str) -> Folder:
    """Look at everything of a client but its numbers.

    **Raises:** `ValueError` naming the client and what is wrong with it.
    """
    if not path.is_dir():
        got = f"the file {path}" if path.exists() else f"{path}, which does not exist"
        raise ValueError(f"client {name} must be a folder with a PEFT adapter, got {got}.")
    settings = read_settings(path, name)
    if not (path / WEIGHTS).is_file():
        if (path / PICKLE).exists():
            advice = "load it with PEFT where you trust its source and save it with safe_serialization=True"
            raise ValueError(
                f"client {name} must have {WEIGHTS}, got the pickle {PICKLE}, which can run code: {advice}."
            )
        raise ValueError(f"client {name} must have {WEIGHTS}, got none in {path}.")
    modules, carried = _sort(headers(path / WEIGHTS, name), settings)
    return Folder(name, path, settings, modules, carried)


@dataclass(frozen=True)
class State(Folder):
    """An adapter that is in memory and was never on a disk, as it came in a message."""

    held: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)

    def read(self, keys: list[str] | tuple[str, ...]) -> dict[str, np.ndarray]:
        return {key: self.held[key] for key in keys}


def read_state(tensors: Mapping[str, np.ndarray], fields: Any, name: str) -> State:
    """As `read_folder`, of a state dictionary and what `adapter_config.json` would say."""
    settings = checked_settings(fields, name)
    modules, carried = _sort({key: (one.shape, kind_of(one.dtype)) for key, one in tensors.items()}, settings)
    return State(name, NOWHERE, settings, modules, carried, held=tensors)


def faulty(name: str, path: Path, why: str) -> Folder:
    """A client that cannot take part."""
    return Folder(name, path, Settings(name, {}), {}, (), fault=why)


def _sort(tensors: Tensors, settings: Settings) -> tuple[dict[str, Factors], tuple[str, ...]]:
    found: dict[str, dict[str, str]] = {}
    saved, beside = [], []
    for key in tensors:
        match = KEY.fullmatch(key)
        if trained_in_full(key, settings):
            saved.append(key)
        elif match is not None and bool(match["kind"]) != bool(match["end"]):
            if not MODULE.fullmatch(match["module"]):
                what = f"module names must be words between dots, got {match['module']!r}"
                raise ValueError(f"client {settings.client}: {what}.")
            found.setdefault(match["module"], {})[f"lora_{match['kind'] or ''}{match['side']}"] = key
        else:
            beside.append(key)
    _check_carried(tensors, saved, beside, found, settings.client)
    if not found:
        raise ValueError(f"client {settings.client} must have LoRA factors, got none in {WEIGHTS}.")
    modules = {name: _factors(name, sides, tensors, settings) for name, sides in sorted(found.items())}
    return modules, (*saved, *beside)


def _check_carried(
    tensors: Tensors, saved: list[str], beside: list[str], adapted: Collection[str], client: str
) -> None:
    for key in (*saved, *beside):
        if tensors[key][0] == EMPTY:
            raise ValueError(f"client {client}: {key} must have been saved whole, got {_shards(EMPTY)}.")
    for key in beside:
        if not key.startswith(PREFIX):
            what = f"tensors must be named {PREFIX}…, got {key!r}: save the PEFT model itself, not a wrapper of it"
            raise ValueError(f"client {client}: {what}.")
    if (other := not_embeddings({key: tensors[key][0] for key in beside}, adapted)) is not None:
        known = "lora_A.weight, lora_B.weight, lora_embedding_A and _B, those of modules_to_save, and whole embeddings"
        raise ValueError(f"client {client}: tensors must be {known}, got {other!r}.")
    for key in saved:
        if ".lora_" in key:
            what = "modules of modules_to_save must have no factors: with them their update is not scale · B · A"
            raise ValueError(f"client {client}: {what}, got {key!r}.")
    for key in (*saved, *beside):
        if (kind := tensors[key][1]) not in KINDS:
            raise ValueError(f"client {client}: {key} must be of a type among {sorted(KINDS)}, got {kind}.")


def _shards(*shapes: tuple[int, ...]) -> str:
    """What is left of a tensor where every process holds a part of it and none has collected them."""
    left = " and ".join(map(str, shapes))
    return f"{left}, a shard's, as of ZeRO-3 or FSDP: gather the parameters before saving"


def _factors(module: str, sides: dict[str, str], tensors: Tensors, settings: Settings) -> Factors:
    where = f"client {settings.client}, module {module}"
    if set(sides) not in PAIRS:
        pairs = "lora_A and lora_B, or lora_embedding_A and lora_embedding_B"
        raise ValueError(f"{where}: factors must be {pairs}, got {', '.join(sorted(sides))}.")
    down_key, up_key = (sides[side] for side in sorted(sides))
    (down_shape, down_kind), (up_shape, up_kind) = tensors[down_key], tensors[up_key]
    if 1 in (len(up_shape), len(down_shape)):
        raise ValueError(f"{where}: factors must have been saved whole, got {_shards(up_shape, down_shape)}.")
    if len(down_shape) != 2 or len(up_shape) != 2:
        raise ValueError(f"{where}: factors must be matrices (convolutions are not), got {up_shape} and {down_shape}.")
    if 0 in up_shape + down_shape:
        raise ValueError(f"{where}: factors must have no empty axis, got {up_shape} and {down_shape}.")
    if {down_kind, up_kind} - set(FLOATS) or down_kind != up_kind:
        raise ValueError(f"{where}: factors must be of one type of {sorted(FLOATS)}, got {up_kind} and {down_kind}.")
    rank = settings.rank(module)
    if not up_shape[1] == down_shape[0] == rank:
        raise ValueError(f"{where}: the rank must be the configuration's, {rank}, got {up_shape} and {down_shape}.")
    return Factors(up_key, down_key, up_shape, down_shape, up_kind)


def followed(path: str | os.PathLike[str], what: str) -> Path:
    """The path without links. Of a loop of links it is a `RuntimeError` (before Python 3.13) or an `OSError`."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):  # `Path("")` is the current folder
        raise ValueError(f"{what} must be paths, got {path!r}.")
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{what} must be paths that lead somewhere, got {os.fspath(path)!r} ({error}).") from None
