"""Experiments on labelled images: replicates that train networks, each a call, on the data of `--data` or digits."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax

from .. import _validate, sweep
from ._experiment import C, Experiment, Folder, Replicate
from ._images import Images, images_for


@dataclasses.dataclass(frozen=True)
class ImageExperiment(Experiment[C]):
    """An experiment whose cells have a field `dataset`, and whose replicates are calls of Python.

    - `replicate(key, cell, images, folder)` gives a dict of arrays: `images` are those for the cell's data set, and
      in `folder`, if there is one, a training may keep a checkpoint. Its result is stored, so a sweep that is killed
      repeats no finished replicate.
    - `alike(cell)`: what the key of a replicate is made from beside its number. Cells that are alike there, as methods
      to compare, get the same keys: the same clients and the same first model.

    Left out are cells of data sets that the folder of `--data` does not resemble, and those whose field `large`, if
    it is true or false, is not the size of the images.
    """

    precision: ClassVar[str] = "float32"
    _sweeps = sweep.run_calls, sweep.run_calls_part
    alike: Callable[[Any], Any] = lambda cell: cell

    def prepared(
        self, cells: Sequence[C], out: str | os.PathLike[str] | None = None, progress: bool | None = None
    ) -> Replicate:
        must_be = "an experiment whose replicate is one compiled program"
        raise _validate.fail("NAME", must_be, f"{self.name}, which trains networks round by round")

    def _asked(
        self, cells: Sequence[C], seed: int, out: Folder | None, progress: bool | None, data: Folder | None
    ) -> dict[str, Any]:
        """`data`: a folder for `data.read_images`."""
        found = images_for(list(dict.fromkeys(map(dataset, cells))), data)
        cells = [cell for cell in cells if dataset(cell) in found and _fits(cell, found[dataset(cell)])]
        if not cells:
            raise _validate.fail("preset", "one with cells for these images", "; ".join(map(str, found.values())))
        used = {name: found[name] for name in dict.fromkeys(map(dataset, cells))}
        key = jax.random.key(seed)

        def replicate(number: int, cell: C, folder: Path | None) -> dict[str, Any]:
            own = sweep.replicate_key(key, self.alike(cell), number)
            return self.replicate(own, cell, used[dataset(cell)], folder)

        arguments = {"experiment": self.name, "seed": seed, "images": dict(map(_record, used.items()))}
        return {"replicate": replicate, "cells": cells, "arguments": arguments}


def dataset(cell: Any) -> str:
    return cell.dataset


def _fits(cell: Any, images: Images) -> bool:
    large = getattr(cell, "large", None)
    return large is None or large != images.small


def _record(used: tuple[str, Images]) -> tuple[str, dict[str, str]]:
    name, images = used
    return name, {"text": str(images), "digest": images.digest}
