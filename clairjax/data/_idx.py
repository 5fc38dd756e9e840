"""Files in the idx format of MNIST, Fashion-MNIST and EMNIST, gzipped or not."""

import gzip
import math
import re
import struct
import zlib
from pathlib import Path

import numpy as np

from ._files import LabelledImages, hidden, read_bytes, refuse


IMAGES, LABELS = 0x803, 0x801  # unsigned bytes in three dimensions, in one


def idx_prefixes(folder: Path) -> list[str]:
    """What the names of the folder's sets start with: nothing for MNIST, `emnist-digits-` for a part of EMNIST."""
    names = (path.name for path in folder.iterdir() if not hidden(path))
    found = (re.match(r"(.*)(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte", name) for name in names)
    return sorted({match[1] for match in found if match})


def read_idx(folder: Path, prefix: str) -> LabelledImages:
    """The four files of one set. EMNIST's images are stored lying down, and come back upright."""
    images, labels, test_images, test_labels = (
        _read(_find(folder, prefix, name), magic)
        for name, magic in (
            ("train-images", IMAGES),
            ("train-labels", LABELS),
            ("t10k-images", IMAGES),
            ("t10k-labels", LABELS),
        )
    )
    for name, pair in (("train", (images, labels)), ("t10k", (test_images, test_labels))):
        if len(pair[0]) != len(pair[1]):
            path = _find(folder, prefix, f"{name}-labels")
            raise refuse(path, f"as many labels as {name}-images has images, {len(pair[0])}", len(pair[1]))
    if not images.size:
        size = " × ".join(map(str, images.shape))
        raise refuse(_find(folder, prefix, "train-images"), "of images", f"{size} pixels")
    if images.shape[1:] != test_images.shape[1:]:
        sizes = [" × ".join(map(str, each.shape[1:])) for each in (images, test_images)]
        raise refuse(
            _find(folder, prefix, "t10k-images"), f"of images of {sizes[0]} pixels, as train-images is", sizes[1]
        )
    if prefix.startswith("emnist"):
        images, test_images = images.swapaxes(1, 2), test_images.swapaxes(1, 2)
    numbers = labels.astype(np.int32), test_labels.astype(np.int32)
    return LabelledImages(images[..., None], numbers[0], test_images[..., None], numbers[1])


def _find(folder: Path, prefix: str, name: str) -> Path:
    """Both `train-images-idx3-ubyte` and `train-images.idx3-ubyte` are about, each also with `.gz`."""
    kind = "idx3-ubyte" if name.endswith("images") else "idx1-ubyte"
    # What the authors of EMNIST call test, MNIST's call t10k.
    names = [name, name.replace("t10k", "test")]
    for candidate in (f"{prefix}{each}{dot}{kind}{end}" for each in names for dot in "-." for end in ("", ".gz")):
        if (folder / candidate).is_file():
            return folder / candidate
    raise refuse(folder / f"{prefix}{name}-{kind}", "there, or with .gz", "no such file")


def _read(path: Path, magic: int) -> np.ndarray:
    data = read_bytes(path)
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise refuse(path, "a whole gzip file", f"a damaged one ({error})") from error
    dimensions = magic & 0xFF
    start = 4 + 4 * dimensions
    if len(data) < start or struct.unpack(">I", data[:4])[0] != magic:
        raise refuse(path, f"an idx file that starts with {magic:#010x}", f"0x{data[:4].hex() or '0'}")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) - start != math.prod(shape):
        must_be = f"{' × '.join(map(str, shape))} = {math.prod(shape)} bytes behind its header"
        raise refuse(path, must_be, len(data) - start)
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
