"""Experiments on labelled images: replicates that train networks, each a call, on the data of `--data` or digits."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax

from .. import _validate, sweep
from ._experiment import C, Experiment, Replicate
from ._images import Images, images_for


@dataclasses.dataclass(frozen=True)
class ImageExperiment(Experiment[C]):
    """An experiment whose cells have a field `dataset`, and whose replicates are calls of Python.

    - `replicate(key, cell, images, folder)` gives a dict of arrays: `images` are those for the cell's data set, and
      in `folder`, if there is one, a training may keep a checkpoint. Its result is stored, so a sweep that is killed
      repeats no finished replicate.
    - `alike(cell)`: what the key of a replicate is made from beside its number. Cells that are alike there, as methods
      to compare, get the same keys: the same clients and the same first model.
    - `fits(cell, images)`: whether a cell is for these images.

    Cells that do not fit are left out, as are those of data sets that the folder of `--data` does not resemble.
    """

    precision: ClassVar[str] = "float32"
    _sweeps = sweep.run_calls, sweep.run_calls_part
    alike: Callable[[Any], Any] = lambda cell: cell
    fits: Callable[[Any, Images], bool] = lambda cell, images: True

    def prepared(
        self, cells: Sequence[C], out: str | os.PathLike[str] | None = None, progress: bool | None = None
    ) -> Replicate:
        must_be = "an experiment whose replicate is one compiled program"
        raise _validate.fail("NAME", must_be, f"{self.name}, which trains networks round by round")

    def _asked(
        self,
        preset: str | None,
        replicates: int | None,
        seed: int,
        cells: Sequence[C] | None,
        out: str | os.PathLike[str] | None,
        progress: bool | None,
        data: str | os.PathLike[str] | None,
    ) -> dict[str, Any]:
        """`data`: a folder for `data.read_images`."""
        size = self.preset(self.default if preset is None else preset)
        cells = size.cells if cells is None else cells
        found = images_for(list(dict.fromkeys(map(dataset, cells))), data)
        cells = [cell for cell in cells if dataset(cell) in found and self.fits(cell, found[dataset(cell)])]
        if not cells:
            raise _validate.fail("preset", "one with cells for these images", "; ".join(map(str, found.values())))
        used = {name: found[name] for name in dict.fromkeys(map(dataset, cells))}
        key = jax.random.key(seed)

        def replicate(number: int, cell: C, folder: Path | None) -> dict[str, Any]:
            own = sweep.replicate_key(key, self.alike(cell), number)
            return self.replicate(own, cell, used[dataset(cell)], folder)

        return {
            "replicate": replicate,
            "cells": cells,
            "replicates": size.replicates if replicates is None else replicates,
            "out": out,
            "arguments": {"experiment": self.name, "seed": seed, "images": dict(map(_record, used.items()))},
            "progress": progress,
        }


def dataset(cell: Any) -> str:
    return cell.dataset


def _record(used: tuple[str, Images]) -> tuple[str, dict[str, str]]:
    name, images = used
    return name, {"text": str(images), "digest": images.digest}
