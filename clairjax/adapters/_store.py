"""Where what members share lies while their adapters are made: on the disk beside the results, or in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from ._folder import WEIGHTS
from ._names import GLOBAL
from ._tensors import read, write


PARTS = ".parts"


@runtime_checkable
class Store(Protocol):
    """Tensors of a part: `global`, or a module's number."""

    def put(self, part: str, tensors: Mapping[str, np.ndarray]) -> None: ...

    def get(self, part: str, keys: list[str]) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class OnDisk:
    """A fleet may be larger than memory. `global` is the result's own folder."""

    folder: Path

    def put(self, part: str, tensors: Mapping[str, np.ndarray]) -> None:
        (self.folder / PARTS).mkdir(exist_ok=True)
        write(tensors, self._file(part))

    def get(self, part: str, keys: list[str]) -> list[np.ndarray]:
        return list(read(self._file(part), part, keys).values())

    def _file(self, part: str) -> Path:
        return self.folder / GLOBAL / WEIGHTS if part == GLOBAL else self.folder / PARTS / f"{part}.safetensors"


@dataclass(frozen=True)
class InMemory:
    parts: dict[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    def put(self, part: str, tensors: Mapping[str, np.ndarray]) -> None:
        self.parts[part] = tensors

    def get(self, part: str, keys: list[str]) -> list[np.ndarray]:
        return [self.parts[part][key] for key in keys]
