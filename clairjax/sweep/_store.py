"""The folder of a sweep: `manifest.json` and one file a block of replicates, each written beside and renamed.

A block is `lane_width` replicates of one cell. It is the unit on disk whatever number of devices computed it.
"""

import hashlib
import io
import json
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from .._files import create_file, locked, replace_file
from ._processor import Processor, as_stored


FORMAT = "clairjax sweep 1"
_HEADER = "__block__"
NAMES_NEVER = ("file", "allow_pickle", _HEADER)  # `np.savez` takes its arrays as keywords, beside its own

Arrays = dict[str, np.ndarray]
Cells = Mapping[str, Mapping[str, Any]]
Shapes = Mapping[str, jax.ShapeDtypeStruct]


class Block(NamedTuple):
    arrays: Arrays
    seconds: float
    processor: Processor | None = None  # that computed it; None: an accelerator did, or it is not recorded


def _fault(manifest: Any) -> str | None:
    """What keeps this from being a sweep's manifest, as far as a sweep reads it."""
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return f"format must be {json.dumps(FORMAT)}"
    arguments, cells = manifest.get("arguments"), manifest.get("cells")
    if not isinstance(arguments, dict) or not isinstance(cells, dict):
        return "arguments and cells must be objects"
    lane_width = arguments.get("lane_width")
    if type(lane_width) is not int or lane_width < 1:
        return f"arguments.lane_width must be an integer of 1 or more, got {json.dumps(lane_width)}"
    for name, entry in cells.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("fields"), dict):
            return f"cells.{name}.fields must be an object"
        if not isinstance(entry.get("program"), str):
            return f"cells.{name}.program must be a string"
    timed = [("", manifest), *((f"cells.{name}.", entry) for name, entry in cells.items())]
    for prefix, entry in timed:
        for name in ("wall_seconds", "compile_seconds"):
            if type(entry.get(name, 0.0)) not in (int, float):
                return f"{prefix}{name} must be a number, got {json.dumps(entry[name])}"
    return None


def _text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=1) + "\n"


class Store:
    """`out=None` keeps nothing and finds nothing."""

    def __init__(self, out: str | os.PathLike[str] | None):
        if out is not None and not os.fspath(out):  # `Path("")` is the current folder
            raise ValueError(f"out: must be a folder, got {out!r}.")
        self.folder = None if out is None else Path(out)
        self._ours: tuple[str, ...] = ()  # the cells that are asked for
        self._distrusted: set[Path] = set()  # blocks
        self.manifest = self._read_manifest()

    def create(self) -> None:
        """Make the folder, to learn before anything runs that it cannot be made."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def lane_width(self) -> int | None:
        return self.manifest.get("arguments", {}).get("lane_width")

    def _read_manifest(self) -> dict[str, Any]:
        if self.folder is None or not os.path.lexists(path := self.folder / "manifest.json"):
            return {}
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError, FileNotFoundError, IsADirectoryError):  # a link to nothing, a folder
            fault: str | None = "must be JSON"
        else:
            fault = _fault(manifest)
        if fault is not None:  # a sweep's own is renamed into place whole, so that no kill damages it
            raise ValueError(
                f"out: {self.folder} holds something else than a sweep: in {path}, {fault}. "
                "Choose a new folder, or delete that file if it is what is left of this sweep's."
            )
        return manifest

    def refuse_another(self, arguments: Mapping[str, Any], cells: Cells) -> None:
        """Say what differs if the folder has a manifest with other arguments or other programs of the same cells."""
        self._compare(self.manifest, arguments, cells)

    def check(self) -> None:
        """Refuse a folder that another sweep has taken meanwhile, as after somebody deleted this one's."""
        self._compare(self._read_manifest(), self.manifest["arguments"], self.manifest["cells"])

    def _compare(self, manifest: Mapping[str, Any], arguments: Mapping[str, Any], cells: Cells) -> None:
        stored = manifest.get("arguments", {})
        differ = [
            f"{name} must be {json.dumps(stored.get(name))}, got {json.dumps(value)}"
            for name, value in sorted(arguments.items() if stored else ())
            if stored.get(name) != value
        ]
        for name, entry in manifest.get("cells", {}).items():
            if name in cells and cells[name]["program"] != entry["program"]:
                differ.append(
                    f"the replicate function computes something else in cell {json.dumps(entry['fields'])} "
                    "(its code, or what it closes over, has changed)"
                )
        if differ:
            raise ValueError(
                f"out: {self.folder} holds another sweep: {'; '.join(differ)}. "
                "Repeat those arguments, or choose a new folder."
            )

    def claim(self, arguments: Mapping[str, Any], cells: Cells, circumstances: Mapping[str, Any]) -> bool:
        """Take the folder for these arguments and the cells' programs, or say what differs from its own.

        A manifest that is there stays as it is. False: another process has just written one. It is read, and the
        claim can be made again.
        """
        unasked = dict.fromkeys(self.manifest.get("arguments", {}))
        self.refuse_another(unasked | dict(arguments), cells)
        self._ours = tuple(cells)
        known = self.manifest.get("cells", {})
        merged = known | {name: known.get(name, {}) | dict(entry) for name, entry in cells.items()}
        taken = bool(self.manifest)
        self.manifest |= {"format": FORMAT, "arguments": dict(arguments), "cells": merged, **circumstances}
        if taken or self.folder is None or create_file(self.folder / "manifest.json", _text(self.manifest)):
            return True
        self.manifest = self._read_manifest()
        return False

    def write_manifest(self) -> None:
        """Write what is known now, and leave what other processes wrote of other cells of this sweep."""
        if self.folder is None:
            return
        self.create()
        ours = {name: self.manifest["cells"][name] for name in self._ours}
        with locked(self.folder):
            while not self._updated(self.folder / "manifest.json", ours):
                pass  # it had been deleted, and another process has just written one

    def _updated(self, path: Path, ours: Cells) -> bool:
        there = self._read_manifest()
        self._compare(there, self.manifest["arguments"], ours)
        cells = there.get("cells", {})
        merged = cells | {name: cells.get(name, {}) | dict(entry) for name, entry in ours.items()}
        text = _text({**there, **self.manifest, "cells": merged})
        if not there:
            return create_file(path, text)
        replace_file(path, lambda beside: beside.write_text(text, encoding="utf-8"))
        return True

    def _path(self, cell: str, block: int) -> Path:
        assert self.folder is not None
        return self.folder / cell / f"block-{block:06d}.npz"

    def _header(self, cell: str, block: int) -> dict[str, Any]:
        owner = json.dumps([self.manifest["arguments"], cell, self.manifest["cells"][cell]["program"]], sort_keys=True)
        return {"format": FORMAT, "sweep": hashlib.sha256(owner.encode()).hexdigest(), "block": block}

    def write(self, cell: str, block: int, content: Block) -> bool:
        """Store a block where there is none, or one that was found not to be trusted; False where there is another.

        What another process has stored meanwhile stays.
        """
        if self.folder is None:
            return True
        told = {"seconds": content.seconds, "processor": content.processor}
        header = json.dumps(self._header(cell, block) | told)
        arrays: Any = {_HEADER: np.array(header), **content.arrays}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        path = self._path(cell, block)
        if path not in self._distrusted:
            return create_file(path, file.getvalue())
        replace_file(path, lambda beside: beside.write_bytes(file.getvalue()))
        self._distrusted.remove(path)
        return True

    def read(self, cell: str, block: int, shapes: Shapes | None, lane_width: int) -> Block | None:
        """The stored block, or None if there is none. One that cannot be trusted is reported and not used.

        `shapes`: of a replicate, or None where they are not known before it is computed.
        """
        if self.folder is None or not os.path.lexists(path := self._path(cell, block)):
            return None
        try:
            return self._parse(path.read_bytes(), self._header(cell, block), shapes, lane_width)
        except Exception as error:  # whatever a damaged file makes zipfile or NumPy raise
            self._distrusted.add(path)
            warnings.warn(f"{path} is not used and its replicates are computed again: {error}", stacklevel=3)
            return None

    def _parse(self, data: bytes, expected: dict[str, Any], shapes: Shapes | None, lane_width: int) -> Block:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if (damaged := archive.testzip()) is not None:  # NumPy alone would not compare the checksums
                raise ValueError(f"{damaged} is damaged")
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            header = json.loads(str(file[_HEADER]))
            arrays = {name: file[name] for name in file.files if name != _HEADER}
        if {name: header.get(name) for name in expected} != expected:
            raise ValueError("it belongs to another sweep, cell or block")
        found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        if shapes is None:
            known = found
        else:
            known = {name: ((lane_width, *shape.shape), shape.dtype) for name, shape in shapes.items()}
        if found != known:
            raise ValueError("its arrays are not those that the replicate function returns")
        return Block(arrays, float(header["seconds"]), as_stored(header.get("processor")))


def check_folder(out: str | os.PathLike[str] | None, arguments: Mapping[str, Any], cells: Cells | None = None) -> None:
    """Make the folder `out` of a sweep, and refuse one that holds another sweep.

    A sweep does so itself. Ask before work that comes first, and before files are written beside the sweep's own.

    **Args:**

    - `out`: the folder; None: there is none, and nothing is done.
    - `arguments`: what must be equal in the folder's manifest, where it has one. The arguments that `run` is given
        are the entry `arguments` there.
    - `cells`: the entry `cells` of a manifest, whose programs must be those in the folder; None: any.

    **Raises:** `ValueError` that names what differs; `OSError` if the folder cannot be made.

    **Cost:** one small file is read.

    >>> import tempfile
    >>> from clairjax import sweep
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sweep.check_folder(folder, {"arguments": {"data": "version 2"}})  # nothing is in it yet
    """
    store = Store(out)
    store.refuse_another(arguments, cells or {})
    store.create()
