"""Folders for servers that know one rank and one alpha."""

import json
from pathlib import Path

import numpy as np

from ._config import CONFIG, refined_fields
from ._folder import WEIGHTS, Folder, read_folder
from ._tensors import wide, write


def for_serving(out: Path) -> None:
    """Bring every module of every adapter in `out` to one rank, padded with zeros, and to scale 1, folded into B."""
    folders = [read_folder(path, path.name) for path in sorted(out.iterdir()) if (path / CONFIG).is_file()]
    rank = max((place.rank for folder in folders for place in folder.modules.values()), default=0)
    for folder in folders:
        _unify(folder, rank)


def _unify(folder: Folder, rank: int) -> None:
    tensors = folder.read(folder.carried)
    for module, place in folder.modules.items():
        stored = folder.read([place.up_key, place.down_key])
        scale, missing = folder.settings.scale(module), rank - place.rank
        up, down = stored[place.up_key], stored[place.down_key]
        if scale != 1:
            up = (scale * wide(up)).astype(up.dtype)
        tensors[place.up_key] = np.ascontiguousarray(np.pad(up, ((0, 0), (0, missing))))
        tensors[place.down_key] = np.pad(down, ((0, missing), (0, 0)))
    write(tensors, folder.path / WEIGHTS, metadata={"format": "pt"})
    fields = refined_fields(folder.settings, dict.fromkeys(folder.modules, rank), dict.fromkeys(folder.modules, 1.0))
    (folder.path / CONFIG).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
