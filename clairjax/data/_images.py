"""Images from a folder, in the formats that their authors publish, or those that a package ships. Never a pickle."""

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .. import _validate
from ._cifar import is_cifar10, is_cifar100, read_cifar10, read_cifar100
from ._files import LabelledImages, hidden, refuse
from ._idx import idx_prefixes, read_idx


PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".gif", ".tif", ".tiff", ".webp"}
FORMATS = (
    "CIFAR's binary version (data_batch_1.bin …, or train.bin and test.bin), idx files (train-images-idx3-ubyte …, "
    "gzipped or not), or a folder of pictures for each class"
)


def read_images(folder: str | os.PathLike[str], *, prefix: str | None = None) -> LabelledImages:
    """Images and labels from a folder of files, whose format is seen from their names.

    - CIFAR-10 and CIFAR-100 in the binary version: `data_batch_1.bin` … `data_batch_5.bin` and `test_batch.bin`, or
      `train.bin` and `test.bin` (the fine labels), in the folder or in the one that their archive makes.
    - idx files, each gzipped or not: `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-…`; MNIST,
      Fashion-MNIST (Debian's `dataset-fashion-mnist` installs it), and EMNIST, whose images are set upright.
    - a folder of pictures for each class, or `train` and `test` with such folders. All pictures must be of one size.
      It needs Pillow. Sixteen bits become eight, and transparency is left out.

    Hidden files and folders are left out.

    **Args:** `folder`; `prefix`, of the idx files where a folder has several sets, such as `"emnist-digits-"`.

    **Returns:** `LabelledImages`. Classes of folders are numbered in the order of their names. Without test files the
    test arrays are empty.

    **Raises:** `ValueError` naming the file that is missing, truncated or foreign, and what was expected. Python
    versions of CIFAR are pickles, which run code when they are read: they are refused.

    **Cost:** the files are read once and kept in memory.

    >>> import pathlib, tempfile
    >>> from clairjax.data import read_images
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "train.bin").write_bytes(bytes(2 * 3074))
    ...     _ = pathlib.Path(folder, "test.bin").write_bytes(bytes(3074))
    ...     found = read_images(folder)
    >>> found.images.shape, found.test_labels.tolist()
    ((2, 32, 32, 3), [0])
    """
    path = Path(folder)
    if not path.is_dir():
        raise refuse(path, f"a folder with {FORMATS}", "no such folder")
    inner = [path, *(path / name for name in ("cifar-10-batches-bin", "cifar-100-binary") if (path / name).is_dir())]
    for place in inner:
        if is_cifar10(place):
            return read_cifar10(place)
        if is_cifar100(place):
            return read_cifar100(place)
    prefixes = idx_prefixes(path)
    if prefix is not None or prefixes:
        return read_idx(path, _chosen(path, prefixes, prefix))
    if pickled := [name for name in ("data_batch_1", "train", "test") if (path / name).is_file()]:
        got = "the Python version, whose pickles are not read"
        raise refuse(path / pickled[0], "of the binary version (data_batch_1.bin …, or train.bin)", got)
    return _read_folders(path)


def _chosen(path: Path, prefixes: list[str], prefix: str | None) -> str:
    if prefix is None and len(prefixes) > 1:
        raise _validate.fail("prefix", f"one of {', '.join(map(repr, prefixes))} in {path}", None)
    return prefixes[0] if prefix is None else prefix


def digits(*, test: float = 0.2) -> LabelledImages:
    """1,797 handwritten digits of 8 × 8 pixels that scikit-learn ships: real images at once, from no file.

    **Args:** `test`: the share of the samples that is held out, the last of their order, other writers' for the
    most part; 0 for none.

    **Raises:** `ImportError` without scikit-learn.

    **Cost:** 115 kB.

    >>> import pytest
    >>> _ = pytest.importorskip("sklearn")
    >>> from clairjax.data import digits
    >>> digits().images.shape
    (1438, 8, 8, 1)
    """
    if not 0 <= test < 1:
        raise _validate.fail("test", "at least 0 and below 1", test)
    if find_spec("sklearn") is None:
        raise ImportError("The digits are scikit-learn's: install it with pip install scikit-learn.")
    found = import_module("sklearn.datasets").load_digits()
    images = np.rint(found.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = found.target.astype(np.int32)
    first = len(labels) - round(test * len(labels))
    return LabelledImages(images[:first], labels[:first], images[first:], labels[first:], tuple("0123456789"))


def _read_folders(path: Path) -> LabelledImages:
    train = path / "train" if (path / "train").is_dir() else path
    names = _classes(train)
    if not names:
        raise refuse(path, f"a folder with {FORMATS}", "a folder with none of these")
    images, labels = _pictures(train, names)
    test = path / "test"
    if train == path or not test.is_dir():
        return LabelledImages(images, labels, images[:0], labels[:0], tuple(names))
    if foreign := sorted({*_classes(test)} - {*names}):
        raise refuse(test / foreign[0], f"one of the classes of {train} ({', '.join(names)})", foreign[0])
    return LabelledImages(images, labels, *_pictures(test, names, images.shape[1:]), tuple(names))


def _classes(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.is_dir() and not hidden(each))


def _pictures(folder: Path, names: list[str], shape: tuple[int, ...] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """All pictures of the classes' folders, by class and name."""
    if find_spec("PIL") is None:
        raise ImportError("Pictures are read with Pillow: install it with pip install pillow.")
    images, labels, all_needed = [], [], shape is None
    for number, name in enumerate(names):
        inside = folder / name
        files = sorted(inside.iterdir()) if inside.is_dir() else []
        pictures = [each for each in files if each.suffix.lower() in PICTURES and not hidden(each)]
        if not pictures and all_needed:
            raise refuse(inside, "a folder of pictures, one class", "no picture in it")
        for each in pictures:
            pixels = _pixels(each)
            shape = pixels.shape if shape is None else shape
            if pixels.shape != shape:
                raise refuse(each, f"a picture of {shape}, as the others are (height, width, channels)", pixels.shape)
            images.append(pixels)
            labels.append(number)
    if not images:
        raise refuse(folder, "a folder with pictures", "none in it")
    return np.stack(images), np.array(labels, np.int32)


def _pixels(path: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            mode = picture.mode
            deep = mode.startswith("I;16") or (mode == "I" and picture.format in ("PNG", "PPM"))
            colours = "L" if mode in ("1", "L", "LA", "La") else "RGB"
            pixels = np.asarray(picture if deep or mode in ("I", "F") else picture.convert(colours))
    except Exception as error:  # Pillow raises of many kinds for foreign, truncated and huge files
        raise refuse(path, "a picture that Pillow reads", error) from error
    if deep:  # Pillow's own conversion cuts at 255: nearly all would be white
        pixels = ((pixels.astype(np.int32) + 128) // 257).astype(np.uint8)
    elif mode in ("I", "F"):
        raise refuse(path, "a picture of 8 or 16 bits", f"32 bits (Pillow's mode {mode})")
    return pixels[..., None] if pixels.ndim == 2 else pixels
