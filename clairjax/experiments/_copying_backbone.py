"""The backbone of the copying experiment: pretrained once and kept in a file."""

import dataclasses
import hashlib
import io
import json
import os
import time
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._files import create_file, locked, replace_file
from .._progress import Progress
from ..data import Copying
from ..models import CopyingTransformer
from ._copying_clients import Cell
from ._copying_training import Pretraining, accuracy, pretrain_steps, start


FORMAT = "clairjax backbone 1"
CACHE = "CLAIRJAX_CACHE"  # the folder of the files, in place of an experiment's output folder
STEPS_AT_ONCE = 100

_MANIFEST = "__manifest__"


def backbones(
    cells: Iterable[Cell], folder: str | os.PathLike[str] | None = None, progress: bool | None = False
) -> dict[Pretraining, CopyingTransformer]:
    """The models that the cells need."""
    settings = dict.fromkeys(cell.pretraining for cell in cells)
    return {each: backbone(each, folder, progress=progress) for each in settings}


def backbone(
    settings: Pretraining, folder: str | os.PathLike[str] | None = None, *, progress: bool | None = False
) -> CopyingTransformer:
    """The model that these settings give: from its file, or by training it and writing the file.

    **Args:** `settings`. `folder`: where its file is or shall be, unless the environment variable
    `CLAIRJAX_CACHE` names another; without either it is kept by the caller alone. `progress`: as in
    `clairjax.sweep.run`.

    **Returns:** the model with NumPy arrays for leaves, so that a trace takes them for constants.

    A file that is damaged or of other settings is reported by a warning and written anew. Of processes that need the
    same file at once, one trains and the others wait. Where folders cannot be locked all train, and all take the file
    of the first.
    """
    folder = os.environ.get(CACHE) or folder
    if folder is None:
        return pretrain(settings, progress=progress)[0]
    path = Path(folder) / file_name(settings)
    if (model := _load(path, settings)) is not None:
        return model
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):
        model = _load(path, settings)
        if model is None:
            unusable = path.exists()
            model, manifest = pretrain(settings, progress=progress)
            if not _save(path, model, manifest, unusable):
                model = _load(path, settings) or model
    return model


def file_name(settings: Pretraining) -> str:
    text = json.dumps([FORMAT, dataclasses.asdict(settings)], sort_keys=True)
    return f"backbone-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"


def pretrain(settings: Pretraining, *, progress: bool | None = False) -> tuple[CopyingTransformer, dict[str, Any]]:
    """Train it, a hundred steps a compiled call; the model and what is known of it."""
    began = time.perf_counter()
    model = settings.initial()
    state = start(model, settings.rate)
    value = jnp.zeros((), jnp.float32)
    with Progress(settings.steps, progress) as bar:
        bar.show("pretrain")
        for first in range(0, settings.steps, STEPS_AT_ONCE):
            count = min(STEPS_AT_ONCE, settings.steps - first)
            model, state, value = pretrain_steps(model, state, settings, jnp.asarray(first, jnp.int32), count)
            jax.block_until_ready(value)
            bar.advance(count)
    model = jax.tree.map(np.asarray, model)
    return model, {
        "format": FORMAT,
        "settings": dataclasses.asdict(settings),
        "loss": float(value),
        "accuracy": {str(length): _accuracy(model, settings, length) for length in (settings.longest, 16)},
        "seconds": time.perf_counter() - began,
        "jax": jax.__version__,
    }


def _accuracy(model: CopyingTransformer, settings: Pretraining, length: int) -> float:
    sequences = Copying(settings.exponent, jnp.array([length])).generate(
        500, key=jax.random.fold_in(jax.random.key(0), length)
    )
    return float(jax.jit(accuracy)(jax.tree.map(jnp.asarray, model), sequences))


def _save(path: Path, model: CopyingTransformer, manifest: dict[str, Any], replace: bool) -> bool:
    """False if another process's file is there, and not to be replaced."""
    arrays = _named(model)
    arrays[_MANIFEST] = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    if not replace:
        return create_file(path, file.getvalue())
    replace_file(path, lambda beside: beside.write_bytes(file.getvalue()))
    return True


def _load(path: Path, settings: Pretraining) -> CopyingTransformer | None:
    """None if there is no file, or none that can be used."""
    if not path.exists():
        return None
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        manifest = json.loads(arrays.pop(_MANIFEST).tobytes())
        template = jax.eval_shape(settings.initial)
        expected = {name: (leaf.shape, leaf.dtype) for name, leaf in _named(template).items()}
        found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        if manifest["settings"] != dataclasses.asdict(settings) or found != expected:
            raise ValueError("it holds another model")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        warnings.warn(f"{path} cannot be used and is written anew: {error}", stacklevel=3)
        return None
    return jax.tree.unflatten(jax.tree.structure(template), [arrays[name] for name in expected])


def _named(model: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(model)}
