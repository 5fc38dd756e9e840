"""The binary versions of CIFAR-10 and CIFAR-100."""

from pathlib import Path

import numpy as np

from ._files import LabelledImages, read_bytes, refuse


PIXELS = 3 * 32 * 32
TEN = tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"
HUNDRED = ("train.bin",), "test.bin"


def is_cifar10(folder: Path) -> bool:
    return any((folder / name).exists() for name in (*TEN[0], TEN[1]))


def is_cifar100(folder: Path) -> bool:
    return any((folder / name).exists() for name in (*HUNDRED[0], HUNDRED[1]))


def read_cifar10(folder: Path) -> LabelledImages:
    """Records of a label and 32 × 32 pixels in three planes."""
    return _read(folder, TEN, labels=1, classes=10)


def read_cifar100(folder: Path) -> LabelledImages:
    """Records of a coarse and a fine label, of which the fine one counts, and the pixels."""
    return _read(folder, HUNDRED, labels=2, classes=100)


def _read(folder: Path, names: tuple[tuple[str, ...], str], *, labels: int, classes: int) -> LabelledImages:
    train = [_records(folder / name, labels, classes) for name in names[0]]
    images, numbers = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return LabelledImages(images, numbers, *_records(folder / names[1], labels, classes))


def _records(path: Path, labels: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    data = np.frombuffer(read_bytes(path), np.uint8)
    size = labels + PIXELS
    if len(data) == 0 or len(data) % size:
        raise refuse(
            path, f"records of {size} bytes, as in the binary version of CIFAR-{classes}", f"{len(data)} bytes"
        )
    records = data.reshape(-1, size)
    numbers = records[:, labels - 1]
    if numbers.max() >= classes:
        place = int(np.argmax(numbers >= classes))
        raise refuse(path, f"of labels in 0 … {classes - 1}", f"{numbers[place]} in record {place}")
    images = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), numbers.astype(np.int32)
