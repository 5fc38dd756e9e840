"""Tables as data: which rows, which columns; and the finished text, for a terminal and as markdown."""

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

from ..sweep import Estimate, Results
from ._changes import field_names


if TYPE_CHECKING:
    from rich.console import RenderableType

C = TypeVar("C", bound=Hashable)
C_co = TypeVar("C_co", bound=Hashable, covariant=True)
Kind = TypeVar("Kind", bound=Hashable)
Value: TypeAlias = str | Callable[["Row[Any]"], Any]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of text. `rules` are the numbers of rows after which a line is drawn."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    rules: tuple[int, ...] = ()

    def to_markdown(self) -> str:
        lines = [f"**{self.title}**", "", self._line(self.columns), self._line(["---"] * len(self.columns))]
        lines += [self._line(row) for row in self.rows]
        return "\n".join([*lines, "", *(f"{note}  " for note in self.notes), ""])

    @staticmethod
    def _line(cells: Sequence[str]) -> str:
        escaped = (cell.replace("|", r"\|") for cell in cells)
        return f"| {' | '.join(escaped)} |"

    def __rich__(self) -> "RenderableType":
        from rich import box
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=self.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for column in self.columns:
            table.add_column(column, justify="right", vertical="bottom")
        for number, row in enumerate(self.rows, 1):
            table.add_row(*row, end_section=number in self.rules)
        return Group(table, *(Text(note, style="dim") for note in self.notes), Text())


@dataclasses.dataclass(frozen=True)
class Row(Generic[C_co]):
    """What a column sees: a cell, its outputs without failed replicates, and its part where a cell has several."""

    cell: C_co
    outputs: Mapping[str, np.ndarray]
    part: Any = None

    def __getitem__(self, name: str) -> np.ndarray:
        return self.outputs[name]

    def mean(self, name: str) -> Estimate:
        """Of an output with one number a replicate."""
        return Estimate.of(self.outputs[name])

    def ratio(self, one: str, other: str) -> Estimate:
        """Of the means of two outputs, by paired replicates."""
        return Estimate.ratio(self.outputs[one], self.outputs[other])

    def along(self, **axes: Iterable[Any]) -> "list[Row[C_co]]":
        """A row for each place of these axes after the replicates'; its part is a dict of the values there.

        Outputs with fewer axes are the same in all of them.
        """
        rows = [self]
        for name, values in axes.items():
            rows = [row._at(i, {name: value}) for row in rows for i, value in enumerate(values)]
        return rows

    def _at(self, place: int, names: Mapping[str, Any]) -> "Row[C_co]":
        outputs = {name: values[:, place] if values.ndim > 1 else values for name, values in self.outputs.items()}
        return Row(self.cell, outputs, {**(self.part or {}), **names})

    def get(self, name: str) -> Any:
        """A field of the part, a dict or a NamedTuple, or else of the cell; None if neither has it."""
        part = self.part if isinstance(self.part, Mapping) else getattr(self.part, "_asdict", dict)()
        return part[name] if name in part else getattr(self.cell, name, None)

    def value(self, of: "Value") -> Any:
        """What a column or a plot shows: a mean, a ratio as `"one / other"`, a field, or what a function gives."""
        if callable(of):
            return of(self)
        if of in self.outputs:
            return self.mean(of)
        one, ratio, other = of.partition(" / ")
        return self.ratio(one, other) if ratio and one in self.outputs else self.get(of)


def rows_of(results: Results[C]) -> list[Row[C]]:
    """One row a cell, in the order of the results: the rows that `Tabulated` shows if it is given no others.

    **Args:**

    - `results`: of a sweep.

    **Returns:** the rows, to be filtered, or taken apart by `along`.

    **Cost:** a copy of the outputs without failed replicates.

    >>> import jax
    >>> from typing import NamedTuple
    >>> from clairjax import sweep
    >>> from clairjax.experiments import rows_of
    >>> class Cell(NamedTuple):
    ...     size: int
    >>> replicate = lambda key, cell: {"index": jax.numpy.arange(cell.size)}
    >>> results = sweep.run(replicate, [Cell(2)], key=jax.random.key(0), replicates=3)
    >>> [f"{part.get('place')}: {part.mean('index')}" for row in rows_of(results) for part in row.along(place="ab")]
    ['a: 0.000 ±0.000', 'b: 1.000 ±0.000']
    """
    return [Row(cell, results.kept(cell)) for cell in results.cells]


def rows_of_kind(results: Results[Any], kind: type[Kind]) -> list[Row[Kind]]:
    """Of the cells of this class."""
    return [Row(cell, results.kept(cell)) for cell in results.cells if isinstance(cell, kind)]


def grouped(rows: Iterable[Row[C]], by: Callable[[Row[C]], Hashable]) -> list[list[Row[C]]]:
    """The rows with one value of `by` after another, in the order in which they first come."""
    groups: dict[Hashable, list[Row[C]]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    return list(groups.values())


class _Fields(dict[str, Any]):
    """What a title or a note may name: what is given, and the fields of a row."""

    def __init__(self, row: Row[Any] | None, **given: Any):
        super().__init__(given)
        self.row = row

    def __missing__(self, name: str) -> Any:
        found = None if self.row is None else self.row.get(name)
        if found is None:
            raise ValueError(f"title and notes: each name in braces must be a field of the cells, got {name}.")
        return found


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a table.

    - `title`: its head;
    - `value`: the name of an output, whose mean is shown with its standard error, or of a field of the cell. Or
      `"one / other"`, the ratio of two outputs' means. Or a function of a `Row` that gives text, a number, an
      `Estimate`, or None where there is nothing to show. The title if left out;
    - `digits`: after the point; as many as fit if left out.
    """

    title: str
    value: Value | None = None
    digits: int | None = None

    @property
    def of(self) -> Value:
        return self.title if self.value is None else self.value

    def text(self, row: Row[Any]) -> str:
        return _text(row.value(self.of), self.digits)

    def check(self, rows: Sequence[Row[Any]]) -> None:
        """Refuses a name that no row has."""
        names = () if callable(self.of) or not rows else self.of.split(" / ")
        for name in names:
            if not any(name in row.outputs or row.get(name) is not None for row in rows):
                known = dict.fromkeys(each for row in rows for each in (*field_names(row.cell), *row.outputs))
                raise ValueError(f"columns: each name must be one of {', '.join(known)}, got {name}.")


def _text(value: Any, digits: int | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, Estimate):
        return str(value) if digits is None else value.text(digits)
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:g}" if digits is None else f"{value:.{digits}f}"
    return str(value)


Text: TypeAlias = str | Callable[[Results[Any]], str]
Columns: TypeAlias = Sequence[Column | tuple[Any, ...] | str]


@dataclasses.dataclass(frozen=True)
class Tabulated(Generic[C]):
    """A table as data, a function of a sweep's results.

    - `title`: text, or a function of the results that gives it. Text may name `{replicates}`, or a field of the first
      row's cell;
    - `columns`: each a `Column`, its arguments as a tuple, or its title alone; or a function of the results that gives
      them;
    - `notes`: lines below the table, as the title; an empty one is left out;
    - `rows`: a function of the results that gives the rows, one a cell if left out;
    - `group`: a field of the cells or a function of a `Row`; a line is drawn where it changes.
    """

    title: Text
    columns: Columns | Callable[[Results[C]], Columns]
    notes: Sequence[Text] = ()
    rows: Callable[[Results[C]], Iterable[Row[Any]]] = rows_of
    group: Value = ""

    def __call__(self, results: Results[C]) -> Table:
        """The table of these results."""
        rows = list(self.rows(results))
        columns = [_column(each) for each in (self.columns(results) if callable(self.columns) else self.columns)]
        for column in columns:
            column.check(rows)
        fields = _Fields(rows[0] if rows else None, replicates=results.replicates)
        text = lambda given: given(results) if callable(given) else given.format_map(fields)
        groups = [row.value(self.group) for row in rows]
        return Table(
            text(self.title),
            tuple(column.title for column in columns),
            tuple(tuple(column.text(row) for column in columns) for row in rows)
            or (("none", *[""] * (len(columns) - 1)),),
            tuple(filter(None, map(text, self.notes))),
            tuple(i for i in range(1, len(rows)) if groups[i] != groups[i - 1]),
        )


def _column(given: Column | tuple[Any, ...] | str) -> Column:
    return given if isinstance(given, Column) else Column(*(given if isinstance(given, tuple) else (given,)))
