"""Tensors of a safetensors file: every type in and out bit for bit, and failures in our own words."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}  # names of NumPy and ml_dtypes
# Their bytes are read here: safetensors looks for types of these names in NumPy itself.
FLOAT8 = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
KINDS = {*FLOATS, *FLOAT8, "BOOL", "C64", *(f"{sign}{bits}" for sign in "IU" for bits in (8, 16, 32, 64))}


def kind_of(dtype: np.dtype[Any]) -> str:
    """The format's name of a type of NumPy or ml_dtypes; their own name of it where the format has none."""
    names = {name: kind for kind, name in (FLOATS | FLOAT8).items()} | {"bool": "BOOL", "complex64": "C64"}
    whole = f"{dtype.kind.upper()}{8 * dtype.itemsize}"
    return names.get(dtype.name, whole if whole in KINDS else dtype.name)


@contextmanager
def opened(path: Path, client: str) -> Iterator[Any]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError("clairjax.adapters needs safetensors: pip install 'clairjax[adapters]'") from error
    try:
        with safe_open(path, "numpy") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"client {client}: {path.name} must be a whole safetensors file, got: {error}.") from None


def headers(path: Path, client: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each tensor."""
    with opened(path, client) as file:
        slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        return {key: (tuple(one.get_shape()), one.get_dtype()) for key, one in slices.items()}


def read(path: Path, client: str, keys: list[str] | tuple[str, ...]) -> dict[str, np.ndarray]:
    with opened(path, client) as file:
        float8 = {key for key in keys if file.get_slice(key).get_dtype() in FLOAT8}
        return {key: _float8(path, key) if key in float8 else file.get_tensor(key) for key in keys}


def _float8(path: Path, key: str) -> np.ndarray:
    """By the format: the header's length in 8 bytes, the header, and the numbers where it says."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        place = json.loads(file.read(length))[key]
        start, end = place["data_offsets"]
        file.seek(8 + length + start)
        numbers = np.fromfile(file, np.uint8, end - start)
    return numbers.view(FLOAT8[place["dtype"]]).reshape(place["shape"])


def write(tensors: Mapping[str, np.ndarray], path: Path, metadata: dict[str, str] | None = None) -> None:
    """`safetensors.numpy.save_file`, where a full disk is an `OSError`."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from None


def wide(tensor: np.ndarray) -> np.ndarray:
    return tensor if tensor.dtype == np.float64 else tensor.astype(np.float32)
