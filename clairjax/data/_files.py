"""What the readers of images share: their result, and errors that name the file."""

from pathlib import Path
from typing import NamedTuple

import numpy as np


class LabelledImages(NamedTuple):
    """Images [samples, height, width, channels] in uint8 with labels, for training and, if there are any, for testing.

    `names`: of the classes, where the files say them.
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    names: tuple[str, ...] = ()


def refuse(path: Path, must_be: str, got: object) -> ValueError:
    return ValueError(f"{path} must be {must_be}, got {got}.")


def read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise refuse(path, "there", "no such file")
    return path.read_bytes()


def hidden(path: Path) -> bool:
    """Notes of other programs, as `.ipynb_checkpoints`, and macOS's `._train-images-idx3-ubyte` and `__MACOSX`."""
    return path.name.startswith(".") or path.name == "__MACOSX"
