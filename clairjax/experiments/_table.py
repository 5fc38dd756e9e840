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

    def split(self, parts: Iterable[Any]) -> "list[Row[C_co]]":
        """A row for each part, with that index of each output's axis after the replicates'."""
        return [
            Row(self.cell, {name: values[:, i] for name, values in self.outputs.items()}, part)
            for i, part in enumerate(parts)
        ]


def rows_of(results: Results[C]) -> list[Row[C]]:
    """One row a cell, in the order of the results: the rows that `Tabulated` shows if it is given no others.

    **Args:**

    - `results`: of a sweep.

    **Returns:** the rows, to be filtered, or `split` into parts.

    **Cost:** a copy of the outputs without failed replicates.

    >>> import jax
    >>> from typing import NamedTuple
    >>> from clairjax import sweep
    >>> from clairjax.experiments import rows_of
    >>> class Cell(NamedTuple):
    ...     size: int
    >>> replicate = lambda key, cell: {"index": jax.numpy.arange(cell.size)}
    >>> results = sweep.run(replicate, [Cell(2)], key=jax.random.key(0), replicates=3)
    >>> [str(part.mean("index")) for row in rows_of(results) for part in row.split(("first", "second"))]
    ['0.000 ±0.000', '1.000 ±0.000']
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


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a table.

    - `title`: its head;
    - `value`: the name of an output, whose mean is shown with its standard error, or of a field of the cell; or a
      function of a `Row` that gives text, a number, an `Estimate`, or None where there is nothing to show. The title
      if left out;
    - `digits`: after the point; as many as fit if left out.
    """

    title: str
    value: str | Callable[[Row[Any]], Any] | None = None
    digits: int | None = None

    @property
    def of(self) -> str | Callable[[Row[Any]], Any]:
        return self.title if self.value is None else self.value

    def text(self, row: Row[Any]) -> str:
        if callable(self.of):
            return _text(self.of(row), self.digits)
        shown = row.mean(self.of) if self.of in row.outputs else getattr(row.cell, self.of, None)
        return _text(shown, self.digits)


def _text(value: Any, digits: int | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, Estimate):
        return str(value) if digits is None else value.text(digits)
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:g}" if digits is None else f"{value:.{digits}f}"
    return str(value)


Text: TypeAlias = str | Callable[[Results[Any]], str]


@dataclasses.dataclass(frozen=True)
class Tabulated(Generic[C]):
    """A table as data, a function of a sweep's results.

    - `title`: text, or a function of the results that gives it;
    - `columns`: `Column`s, or a function of the results that gives them;
    - `notes`: lines below the table, texts or functions of the results; an empty one is left out;
    - `rows`: a function of the results that gives the rows, one a cell if left out;
    - `group`: a field of the cells or a function of a `Row`; a line is drawn where it changes.
    """

    title: Text
    columns: Sequence[Column] | Callable[[Results[C]], Sequence[Column]]
    notes: Sequence[Text] = ()
    rows: Callable[[Results[C]], Iterable[Row[Any]]] = rows_of
    group: str | Callable[[Row[Any]], Hashable] = ""

    def __call__(self, results: Results[C]) -> Table:
        """The table of these results."""
        given = lambda value: value(results) if callable(value) else value
        columns, rows = given(self.columns), list(self.rows(results))
        known = dict.fromkeys(name for row in rows for name in (*field_names(row.cell), *row.outputs))
        for of in (column.of for column in columns if rows):
            if isinstance(of, str) and of not in known and not any(hasattr(row.cell, of) for row in rows):
                raise ValueError(f"columns: each name must be one of {', '.join(known)}, got {of}.")
        by = self.group if callable(self.group) else lambda row: getattr(row.cell, self.group, None)
        groups = list(map(by, rows))
        return Table(
            given(self.title),
            tuple(column.title for column in columns),
            tuple(tuple(column.text(row) for column in columns) for row in rows)
            or (("none", *[""] * (len(columns) - 1)),),
            tuple(filter(None, map(given, self.notes))),
            tuple(i for i in range(1, len(rows)) if groups[i] != groups[i - 1]),
        )
