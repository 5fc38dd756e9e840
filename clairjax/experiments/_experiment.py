"""What every experiment is: cells, a replicate function, a report and a plot; and one way to run any of them."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import jax
from jaxtyping import Array

from .. import sweep
from .._files import replace_file
from .._typing import Key
from ..sweep import Results
from ..sweep._store import Store
from ._table import Table


_WORDS: dict[Any, dict[str, bool | None]] = {bool: {"true": True, "false": False}, NoneType: {"none": None}}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    - `name`, `summary`: as `clairjax list` prints them;
    - `presets`: sizes by name, each with its number of `replicates`;
    - `cells(preset)`: what the sweep runs, frozen dataclasses;
    - `replicate(key, cell)`: one replicate, a dict of arrays;
    - `report(results)`: our figures beside the paper's, as tables;
    - `plot(results, path)`: writes a PNG;
    - `prepare(cells, out, progress)`: computes what all replicates share, before the sweep; may keep it in `out`.
    """

    name: str
    summary: str
    presets: Mapping[str, Any]
    cells: Callable[[Any], tuple[Any, ...]]
    replicate: Callable[[Key, Any], dict[str, Array]]
    report: Callable[[Results], list[Table]]
    plot: Callable[[Results, str | os.PathLike[str]], None]
    prepare: Callable[[Sequence[Any], str | os.PathLike[str] | None, bool | None], None] | None = None

    def choose(self, preset: str, changes: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """The cells of a preset, with some fields replaced in those that have them."""
        cells, changes = self.cells(self.presets[preset]), changes or {}
        names = [_names(cell) for cell in cells]
        if unknown := [name for name in changes if not any(name in own for own in names)]:
            known = dict.fromkeys(name for own in names for name in own)
            raise ValueError(f"changes: each must be one of {', '.join(known)}, got {', '.join(unknown)}.")
        return tuple(
            dataclasses.replace(cell, **{name: changes[name] for name in own if name in changes})
            for cell, own in zip(cells, names, strict=True)
        )

    def parse(self, preset: str, changes: Sequence[str]) -> dict[str, Any]:
        """What `--set FIELD=VALUE` asks `choose` for: each value of the type that the cells' class declares."""
        kinds: dict[str, Any] = {}
        for one in dict.fromkeys(map(type, self.cells(self.presets[preset]))):
            kinds = {**kinds, **get_type_hints(one), **kinds}  # the first class decides
        values: dict[str, Any] = {}
        for change in changes:
            name, separator, text = change.partition("=")
            if not separator or name not in kinds:
                raise ValueError(f"--set must be FIELD=VALUE with FIELD one of {', '.join(kinds)}, got {change}.")
            try:
                values[name] = _value(text, kinds[name])
            except ValueError as error:
                raise ValueError(f"--set {name} must be {_wanted(kinds[name])}, got {text}.") from error
        return values

    def run(
        self,
        *,
        preset: str = "laptop",
        replicates: int | None = None,
        seed: int = 0,
        cells: Sequence[Any] | None = None,
        out: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> Results:
        """Run it as a sweep: the cells and replicates of the preset unless given; see `clairjax.sweep.run`."""
        size = self.presets[preset]
        cells = self.cells(size) if cells is None else cells
        arguments = {"experiment": self.name, "seed": seed}
        if self.prepare is not None:
            store = Store(out)
            store.refuse_another({"arguments": arguments}, {})  # before the work, as far as it is known
            store.create()
            self.prepare(cells, out, progress)
        return sweep.run(
            self.replicate,
            cells,
            key=jax.random.key(seed),
            replicates=size.replicates if replicates is None else replicates,
            out=out,
            arguments=arguments,
            progress=progress,
        )

    def write(self, results: Results, out: str | os.PathLike[str]) -> list[Table]:
        """Write `results.csv`, `results.nc`, `report.md` and `figure.png` to the folder `out`; returns the report.

        Each is UTF-8 or binary, and replaced at once. A folder with the manifest of another sweep is refused.
        """
        Store(out).refuse_another(results.manifest.get("arguments", {}), results.manifest.get("cells", {}))
        folder = Path(out)
        tables = self.report(results)
        results.to_csv(folder / "results.csv")
        results.to_netcdf(folder / "results.nc")
        report = "\n".join(table.to_markdown() for table in tables)
        replace_file(folder / "report.md", lambda beside: beside.write_text(report, encoding="utf-8"))
        self.plot(results, folder / "figure.png")
        return tables


def _names(cell: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cell)]


def _value(text: str, kind: Any) -> Any:
    """`text` as a value of the annotated type `kind`: a tuple with commas between its elements."""
    if kind in (int, float, str):
        return kind(text)
    if kind in _WORDS and text.lower() in _WORDS[kind]:
        return _WORDS[kind][text.lower()]
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return _first(text, arguments)
    if get_origin(kind) is Literal and text in map(str, arguments):
        return next(value for value in arguments if str(value) == text)
    if get_origin(kind) is tuple and arguments[1:] == (...,):
        return tuple(_value(item, arguments[0]) for item in text.split(","))
    raise ValueError(text)


def _first(text: str, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        try:
            return _value(text, kind)
        except ValueError:
            continue
    raise ValueError(text)


def _wanted(kind: Any) -> str:
    arguments = get_args(kind)
    if kind in _WORDS:
        return " or ".join(_WORDS[kind])
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_wanted, arguments))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if get_origin(kind) is tuple and arguments[1:] == (...,):
        return f"{_wanted(arguments[0])}, with commas between several"
    return f"of type {kind.__name__}" if kind in (int, float, str) else "left as it is"
