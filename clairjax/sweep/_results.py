"""What a sweep returns: arrays with a leading replicate axis for each cell, their means, and tables."""

import csv
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from jaxtyping import Bool

from .._files import replace_file
from ._estimate import Estimate, mean, standard_error
from ._plan import cell_record, labels
from ._store import Arrays


if TYPE_CHECKING:
    import xarray


C = TypeVar("C", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Results(Generic[C]):
    """Replicates of every cell, in the order given: `results[cell][name]` has a leading replicate axis.

    A replicate has failed where one of its outputs holds a NaN or an infinity, or where its boolean output
    `failed` is true. Failed replicates stay in the arrays and, unless asked for, out of the means.
    """

    arrays: Mapping[C, Arrays]
    failed: Mapping[C, Bool[np.ndarray, " replicates"]]
    compile_seconds: Mapping[C, float]
    run_seconds: Mapping[C, float]
    manifest: Mapping[str, Any]

    @property
    def cells(self) -> tuple[C, ...]:
        return tuple(self.arrays)

    @property
    def replicates(self) -> int:
        """How many each cell has, failed ones among them."""
        return len(next(iter(self.failed.values())))

    @property
    def failures(self) -> dict[C, tuple[int, ...]]:
        """Indices of the failed replicates of the cells that have any."""
        return {cell: tuple(np.flatnonzero(bad).tolist()) for cell, bad in self.failed.items() if bad.any()}

    @property
    def labels(self) -> dict[C, str]:
        """Each cell by the fields that tell it from the others."""
        return labels(self.cells)  # type: ignore[return-value]  # a mapping of these cells

    def __getitem__(self, cell: C) -> Arrays:
        return self.arrays[cell]

    def kept(self, cell: C) -> Arrays:
        """The outputs of a cell without its failed replicates."""
        return {name: values[~self.failed[cell]] for name, values in self.arrays[cell].items()}

    def estimate(self, cell: C, of: str | Callable[[Arrays], np.ndarray]) -> Estimate:
        """Mean and standard error of an output, or of what a function of the kept outputs gives, one a replicate."""
        return Estimate.of(of(self.kept(cell)) if callable(of) else self._values(cell, of, False))

    def _values(self, cell: C, name: str, include_failed: bool) -> np.ndarray:
        if name not in self.arrays[cell]:
            raise KeyError(f"name: must be one of {', '.join(self.arrays[cell])}; got {name}.")
        values = self.arrays[cell][name]
        return values if include_failed else values[~self.failed[cell]]

    def mean(self, name: str, *, include_failed: bool = False) -> dict[C, np.ndarray]:
        """Mean over replicates, for each cell, in float64 (NaN where no replicate is left)."""
        return {cell: mean(self._values(cell, name, include_failed)) for cell in self.arrays}

    def standard_error(self, name: str, *, include_failed: bool = False) -> dict[C, np.ndarray]:
        """Standard error of that mean: the sample deviation over √replicates (NaN below two replicates)."""
        return {cell: standard_error(self._values(cell, name, include_failed)) for cell in self.arrays}

    def __repr__(self) -> str:
        failed = sum(map(len, self.failures.values()))
        return f"Results({len(self.arrays)} cells x {self.replicates} replicates, {failed} failed)"

    def to_xarray(self, dims: Mapping[str, tuple[str, ...]] | None = None) -> "xarray.Dataset":
        """One labelled dataset over `cell` and `replicate`, with the cells' fields as coordinates of `cell`.

        Axes of an output are named `<output>_0`, `<output>_1`, … or as `dims` says, `{"votes": ("client",)}`.
        Where cells differ in size, the shorter are filled with NaN at the end of the axis, and an integer or
        boolean output becomes float64. Needs the extra `clairjax[experiments]`.
        """
        try:
            import xarray as xr
        except ImportError as error:
            raise ImportError("to_xarray needs xarray: pip install 'clairjax[experiments]'") from error
        names = list(dict.fromkeys(name for arrays in self.arrays.values() for name in arrays))
        data: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
        data["failed"] = ("cell", "replicate"), np.stack(list(self.failed.values()))
        for name in names:
            if name != "failed":
                values = _stack([arrays.get(name) for arrays in self.arrays.values()])
                axes = (dims or {}).get(name) or tuple(f"{name}_{axis}" for axis in range(values.ndim - 2))
                data[name] = (("cell", "replicate", *axes), values)
        coords = {name: ("cell", values) for name, values in self._columns().items()}
        for name in ("compile_seconds", "run_seconds"):
            coords[name] = ("cell", np.array(list(getattr(self, name).values())))
        replicates = np.arange(data["failed"][1].shape[1])
        arguments = self.manifest.get("arguments", {})
        attrs = {name: str(value) for name, value in arguments.items()}
        return xr.Dataset(data, {"replicate": replicates, **coords}, attrs)

    def _columns(self) -> dict[str, np.ndarray]:
        """The cells' fields, as numbers where all are numbers, else as text."""
        records = [cell_record(cell) for cell in self.arrays]
        columns = {}
        for name in dict.fromkeys(name for record in records for name in record):
            values = [record.get(name) for record in records]
            numbers = all(isinstance(value, bool | int | float) for value in values)
            columns[name] = np.array(values if numbers else ["" if v is None else str(v) for v in values])
        return columns

    def to_netcdf(self, path: str | os.PathLike[str], dims: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """Write `to_xarray()` as NetCDF (version 3, by SciPy), beside and then renamed.

        The format has no 64-bit integers and no complex numbers: integers must fit in 32 bits.
        """
        dataset = self.to_xarray(dims)
        replace_file(Path(path), lambda beside: dataset.to_netcdf(beside, engine="scipy"))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write one row a number, in UTF-8: cell, `replicate`, `failed`, `name`, `index` (as `1;0`) and `value`."""
        fields = list(self._columns())

        def write(beside: Path) -> None:
            with open(beside, "w", newline="", encoding="utf-8") as file:
                table = csv.writer(file)
                table.writerow([*fields, "replicate", "failed", "name", "index", "value"])
                for cell, arrays in self.arrays.items():
                    record = cell_record(cell)
                    label = [record.get(field) for field in fields]
                    for name, values in arrays.items():
                        for (replicate, *index), value in np.ndenumerate(values):
                            place = ";".join(map(str, index))
                            failed = bool(self.failed[cell][replicate])
                            table.writerow([*label, replicate, failed, name, place, value])

        replace_file(Path(path), write)


def failed_replicates(arrays: Arrays) -> Bool[np.ndarray, " replicates"]:
    bad = np.zeros(len(next(iter(arrays.values()))), bool)
    for name, values in arrays.items():
        axes = tuple(range(1, values.ndim))
        if values.dtype.kind in "fc":
            bad |= ~np.isfinite(values).all(axis=axes)
        elif name == "failed":
            bad |= values.astype(bool).any(axis=axes)
    return bad


def _stack(cells: list[np.ndarray | None]) -> np.ndarray:
    """Stack over cells; sizes that differ, and cells without this output, are filled with NaN."""
    present = [values for values in cells if values is not None]
    if len({values.ndim for values in present}) > 1:
        raise ValueError("to_xarray: an output must have the same number of axes in all cells.")
    shape = tuple(map(max, zip(*(values.shape for values in present), strict=True)))
    if len(present) == len(cells) and all(values.shape == shape for values in present):
        return np.stack(present)
    kind = np.result_type(*present)
    full = np.full((len(cells), *shape), np.nan, kind if kind.kind in "fc" else np.float64)
    for target, values in zip(full, cells, strict=True):
        if values is not None:
            target[tuple(map(slice, values.shape))] = values
    return full
