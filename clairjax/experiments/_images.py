"""Labelled images for experiments on networks: of a folder, or those that a package ships; and a model of their size.

How an experiment uses it. A cell has a field `dataset`, the paper's: "CIFAR-10", "CIFAR-100" or "EMNIST". Its
`replicate(key, cell, images, folder)` gets the `Images` that stand for that data set:

    def replicate(key, cell, images, folder):
        deal_key, model_key, train_key = jax.random.split(key, 3)
        clients = images.deal(Shards(2), cell.clients, key=deal_key, most=500)
        model = images.model(flute_cnn, key=model_key)
        run = train(model, strategy, clients, rounds=cell.rounds, key=train_key, out=folder, devices=(device(),))

and the experiment is an `ImageExperiment` (in `_image_experiment`), whose tables take `dataset_notes` among their
notes: they say which images were used.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _validate
from .._typing import Key
from ..data import Federation, LabelledImages, Scheme, Split, digits, partition, read_images
from ..models import Network, small_cnn
from ..sweep import Results


MANY = 100  # classes of CIFAR-100, and more
SMALL = 24  # pixels of a side, below which the papers' networks do not fit
WIDTH = 16  # rows of clients are padded to a multiple, so that replicates share a program
PAIRS, TEST_PAIRS = 10_000, 4_000


@dataclasses.dataclass(frozen=True)
class Images:
    """Images with labels, and what they are called."""

    name: str
    data: LabelledImages

    @property
    def classes(self) -> int:
        return len(self.data.names) or int(self.data.labels.max()) + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        return self.data.images.shape[1:]

    @functools.cached_property
    def digest(self) -> str:
        """Of all images and labels: sixteen hexadecimal digits."""
        found = hashlib.sha256()
        for array in self.data[:4]:
            found.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        return found.hexdigest()[:16]

    @property
    def small(self) -> bool:
        return min(self.shape[:2]) < SMALL

    def __str__(self) -> str:
        height, width, channels = self.shape
        sizes = f"{len(self.data.labels):,} training and {len(self.data.test_labels):,} test images"
        colour = "" if channels == 1 else f" in {channels} channels"
        return f"{self.name}, {sizes} of {height} × {width}{colour}, {self.classes} classes"

    def deal(self, scheme: Scheme, clients: int, *, key: Key, **more: Any) -> Federation:
        """`data.partition` of these; test images are dealt in the clients' shares."""
        images, labels, *test = self.data[:4]
        more = {"classes": self.classes, "test": tuple(test) if len(test[0]) else 0.2, **more}
        return _widened(partition(images, labels, scheme=scheme, clients=clients, key=key, **more))

    def model(self, paper: Callable[..., Network], *, key: Key) -> Network:
        """The paper's network, or a small one for small images, in the precision of the process."""
        model = (small_cnn if self.small else paper)(self.classes, shape=self.shape, key=key)
        dtype = jnp.zeros(()).dtype
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, model)


def _widened(clients: Federation) -> Federation:
    """The same clients, with rows padded to a multiple of `WIDTH`."""

    def widened(split: Split) -> Split:
        return Split(jnp.pad(split.rows, ((0, 0), (0, -split.rows.shape[1] % WIDTH))), split.counts)

    parts = [widened(split) for split in (clients.train, clients.test, clients.validation)]
    return eqx.tree_at(lambda c: (c.train, c.test, c.validation), clients, tuple(parts))


def device() -> jax.Device:
    """The device of this thread: replicates run side by side, and each has one."""
    (device,) = jnp.zeros(()).devices()
    return device


def images_for(datasets: Sequence[str], folder: str | os.PathLike[str] | None) -> dict[str, Images]:
    """For each of the papers' data sets what stands for it: that of a folder for those it resembles, or digits.

    **Raises:** `ValueError` naming the folder if its images resemble none of these.
    """
    if folder is None:
        return {name: _stand_in(name) for name in datasets}
    images = read(folder)
    if images.classes < 2:
        raise _validate.fail("--data", "a folder with images of 2 classes or more", f"{images}")
    alike = [name for name in datasets if (name == "CIFAR-100") == (images.classes >= MANY)]
    if not alike:
        must_be = f"of {MANY} classes or more" if "CIFAR-100" in datasets else f"of fewer than {MANY} classes"
        raise _validate.fail("--data", f"a folder with images {must_be}", f"{images}")
    colour = [name for name in alike if (name != "EMNIST") == (images.shape[2] > 1)]
    return {(colour or alike)[0]: images}


def read(folder: str | os.PathLike[str]) -> Images:
    """Of a folder, in any format of `data.read_images`."""
    found = read_images(folder)
    return Images(f"images of the folder {Path(folder).resolve().name}", found)


def _stand_in(dataset: str) -> Images:
    return pairs_of_digits() if dataset == "CIFAR-100" else Images("scikit-learn's digits", digits())


def pairs_of_digits() -> Images:
    """Two of scikit-learn's digits side by side: a hundred classes of real images that need no download.

    Training pairs are of training digits, test pairs of test digits.
    """
    found, rng = digits(), np.random.default_rng(0)

    def pairs(images: np.ndarray, labels: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        wanted = np.arange(number) % MANY  # as many of each class
        of = [np.flatnonzero(labels == digit) for digit in range(10)]
        drawn = [np.array([rng.choice(of[digit]) for digit in half]) for half in divmod(wanted, 10)]
        return np.concatenate([images[each] for each in drawn], axis=2), wanted.astype(np.int32)

    train, test = pairs(found.images, found.labels, PAIRS), pairs(found.test_images, found.test_labels, TEST_PAIRS)
    names = tuple(f"{number:02d}" for number in range(MANY))
    return Images("pairs of scikit-learn's digits side by side", LabelledImages(*train, *test, names))


def dataset_notes(results: Results[Any]) -> str:
    """Which images the results are of: a note for a table."""
    return " ".join(f"In place of the paper's {name}: {text}." for name, text in _told(results).items())


def dataset_line(results: Results[Any]) -> str:
    """The same for a plot: without the numbers of images and classes."""
    return "\n".join(f"for {name}: {text.rsplit(', ', 2)[0]}" for name, text in _told(results).items())


def _told(results: Results[Any]) -> dict[str, str]:
    return {name: each["text"] for name, each in results.manifest["arguments"]["arguments"]["images"].items()}
