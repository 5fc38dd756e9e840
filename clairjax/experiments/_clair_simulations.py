"""What the CLAIR paper's simulations share: their cells, their data, and the constants of the published procedure."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._typing import Key
from ..alignment import Factored, Penalty
from ..data import MultiResponse, Problem
from ..sweep import Results
from ._table import Column, Row, grouped, rows_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANK = 2
SAMPLES = {10: 100, 20: 150, 50: 300}  # n of each (p, q)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One row of Tables 1 and 2: p = q = `dimension`, n = `samples`, K = `clients`, 0.4 K of them contaminated.

    `contamination` is the law of the contamination's entries, `normal` or, as printed, `uniform`; see
    `clairjax.data.MultiResponse` for why the first is the default.
    """

    dimension: int
    samples: int
    clients: int
    contamination: str = "normal"

    @property
    def model(self) -> MultiResponse:
        return MultiResponse(
            clients=self.clients,
            outputs=self.dimension,
            inputs=self.dimension,
            samples=self.samples,
            rank=RANK,
            contamination=self.contamination,  # type: ignore[arg-type]  # checked there
        )

    @property
    def benign(self) -> int:
        """|C|."""
        return self.clients - self.model.contaminated

    def generate(self, key: Key) -> Problem:
        return self.model.generate(key=key)


def sizes(dimensions: Sequence[int], clients: Sequence[int]) -> tuple[Cell, ...]:
    """Cells of these p and K, with the paper's n."""
    return tuple(Cell(p, SAMPLES[p], number) for p in dimensions for number in clients)


C = TypeVar("C", bound=Cell)


class Constants(NamedTuple):
    """c1 and c2 of section 7: λ_L = c1 K^(−1/2), λ_S = c2 K^(−3/2)."""

    c1: float
    c2: float

    def penalty(self, clients: int) -> Penalty:
        return Penalty(self.c1 * clients**-0.5, self.c2 * clients**-1.5)


# By p. The paper says only that they are tuned on (p, q, n). These are what `clairjax reproduce clair-constants` finds
# (laptop preset, seed 0, float64) on draws that differ from those of the tables at every seed.
PUBLISHED = {10: Constants(0.7, 2.625), 20: Constants(1.4, 5.25), 50: Constants(1.4, 5.25)}

# The paper runs Algorithm 1; `Factored` reaches the same optimum and certifies it.
SOLVER = Factored()


def published_constants(cell: Cell) -> Constants:
    if cell.dimension not in PUBLISHED:
        raise ValueError(
            f"dimension must be one of {', '.join(map(str, PUBLISHED))}, where constants of the published "
            f"procedure are known, got {cell.dimension}."
        )
    return PUBLISHED[cell.dimension]


def mean_square_error(matrices: Float[Array, "clients out in"], problem: Problem) -> Float[Array, ""]:
    """Squared Frobenius error averaged over clients: the quantity of Table 1."""
    return jnp.sum((matrices - problem.weights) ** 2, axis=(1, 2)).mean()


SIZES = (("p = q", "dimension"), ("n", "samples"), ("K", "clients"))

Paper: TypeAlias = Mapping[tuple[int, int, int], Any]  # rows as printed, by p, n and K


def in_paper(paper: Paper, name: str, row: Row[Cell]) -> float | None:
    """The paper's number, where it has this size."""
    cell = row.cell
    return getattr(paper.get((cell.dimension, cell.samples, cell.clients)), name, None)


def printed(paper: Paper, name: str, title: str = "paper") -> Column:
    return Column(title, partial(in_paper, paper, name), 3)


def clients_below(
    axis: "Axes", rows: Sequence[Row[Cell]], paper: Callable[[Row[Any]], float | None], label: str
) -> np.ndarray:
    """The paper's numbers at the places 0, 1, …, which stand for the K of these rows; returns the places."""
    places = np.arange(len(rows))
    numbers = [np.nan if number is None else number for number in map(paper, rows)]
    axis.plot(places, numbers, "k_", markersize=16, markeredgewidth=1.6, label=label)
    axis.set_xticks(places, [str(row.cell.clients) for row in rows])
    axis.set(title=f"p = q = {rows[0].cell.dimension}", xlabel="clients K", xlim=(-0.5, len(rows) - 0.5))
    return places


def by_dimension(results: Results[C]) -> list[list[Row[C]]]:
    """The rows of each p."""
    return grouped(rows_of(results), lambda row: row.cell.dimension)


def law_note(results: Results[Cell]) -> str:
    laws = {cell.contamination for cell in results.cells}
    if laws == {"normal"}:
        return (
            "Contamination has entries of unit variance: with the printed Unif[−1, 1] the paper's own FedAvg columns "
            "do not come out (--set contamination=uniform shows it)."
        )
    return f"Contamination drawn {' and '.join(sorted(laws))}; the paper's FedAvg columns need unit variance (normal)."
