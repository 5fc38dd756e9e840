"""The constants c1, c2 of CLAIR as published, tuned on draws that no table uses."""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._status import Status
from .._typing import Key
from ..alignment import clair, label_oracle
from ..sweep import Estimate, Results
from . import _clair_simulations as simulations
from ._clair_simulations import PUBLISHED, RANK, SIZES, SOLVER, Constants, by_dimension, mean_square_error
from ._experiment import Experiment, Preset
from ._figure import means, panels
from ._table import Row, Tabulated


if TYPE_CHECKING:
    from matplotlib.axes import Axes

C1 = (0.7, 1.4, 2.8)
RATIOS = (2.5, 2.75, 3.0, 3.25, 3.5, 3.75, 4.0, 4.5, 5.0, 6.0)  # c2 / c1


@dataclasses.dataclass(frozen=True)
class Cell(simulations.Cell):
    """A cell of Table 1. The field `purpose` gives it other keys, so that no table repeats its draws."""

    purpose: str = "tuning"


def sizes(dimensions: tuple[int, ...], clients: tuple[int, ...]) -> tuple[Cell, ...]:
    return tuple(Cell(**dataclasses.asdict(cell)) for cell in simulations.sizes(dimensions, clients))


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """Error of the published procedure over that of the label oracle, for each c1 and each c2/c1."""
    problem = cell.generate(key)
    oracle = mean_square_error(label_oracle(problem.estimates, problem.members, problem.basis), problem)

    def outcome(constants: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        c1, proportion = constants
        penalty = Constants(c1, c1 * proportion).penalty(cell.clients)  # type: ignore[arg-type]  # traced
        found = clair(problem.estimates, penalty=penalty, refit=False, solver=SOLVER)
        return mean_square_error(found.refined, problem) / oracle, found.rank, found.status == Status.converged

    dtype = oracle.dtype
    grid = jnp.meshgrid(jnp.array(C1, dtype), jnp.array(RATIOS, dtype), indexing="ij")
    ratio, rank, solved = jax.lax.map(outcome, (grid[0].reshape(-1), grid[1].reshape(-1)))
    shape = len(C1), len(RATIOS)
    return {"ratio": ratio.reshape(shape), "rank": rank.reshape(shape), "solved": solved.reshape(shape)}


class Point(NamedTuple):
    """A point of the grid: c1, and c2 over it."""

    c1: int
    proportion: int

    @property
    def constants(self) -> Constants:
        return Constants(C1[self.c1], C1[self.c1] * RATIOS[self.proportion])


def best(rows: list[Row[Cell]]) -> Point:
    """A grid point whose worst cell over K has the smallest mean error relative to the label oracle.

    Large parts of the grid are equal up to noise. So it is the middle point of those within 1 % of the smallest, in
    the order of c2/c1.
    """
    worst = np.max([row["ratio"].mean(0) for row in rows], axis=0)
    near = np.argwhere(worst.T / worst.min() <= 1.01)
    j, i = near[len(near) // 2]
    return Point(int(i), int(j))


def chosen(results: Results[Cell]) -> list[Row[Cell]]:
    """The rows, each with the best point of its p."""
    groups = ((rows, best(rows)) for rows in by_dimension(results))
    return [Row(row.cell, row.outputs, point) for rows, point in groups for row in rows]


def at_best(row: Row[Cell], name: str, equal: int | None = None) -> Estimate | float:
    """An output there, or how often it is `equal` to a number."""
    values = row[name][:, row.part.c1, row.part.proportion]
    return Estimate.of(values) if equal is None else float(np.mean(values == equal))


def show(constants: Constants | None) -> str | None:
    return None if constants is None else f"{constants.c1:g}, {constants.c2:g}"


TABLE = Tabulated[Cell](
    "CLAIR as published: constants c1, c2 in the middle of the smallest worst error over K",
    (
        *(*SIZES, ("best c1, c2", lambda row: show(row.part.constants))),
        ("recorded c1, c2", lambda row: show(PUBLISHED.get(row.cell.dimension))),
        ("error / label oracle", partial(at_best, name="ratio")),
        ("rank 2 found", partial(at_best, name="rank", equal=RANK), 2),
        ("solved", partial(at_best, name="solved", equal=True), 2),
    ),
    rows=chosen,
)


@panels("error / label oracle", by_dimension, columns=len(C1))
def plot(axis: "Axes", rows: list[Row[Cell]]) -> None:
    for number, row in enumerate(rows):
        for line, style in zip(row.along(c1=C1), ("-", "--", ":"), strict=True):
            label = f"K = {row.cell.clients}, c1 = {line.get('c1'):g}"
            means(axis, line.along(proportion=RATIOS), "proportion", "ratio", label, style, color=f"C{number}")
    axis.set(title=f"p = q = {rows[0].cell.dimension}", xlabel="c2 / c1", yscale="log")


EXPERIMENT = Experiment[Cell](
    name="clair-constants",
    summary="CLAIR section 7: the published procedure's constants c1, c2, tuned on draws that no table uses",
    presets={
        "smoke": Preset(sizes((10,), (5,)), 2),
        "laptop": Preset(sizes((10, 20, 50), (5, 10, 20)), 20),
        "paper": Preset(sizes((10, 20, 50), (5, 10, 20)), 100),
    },
    replicate=replicate,
    tables=[TABLE],
    plot=plot,
)
