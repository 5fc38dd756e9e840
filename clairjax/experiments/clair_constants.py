"""The constants c1, c2 of CLAIR as published, tuned on draws that no table uses."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._status import Status
from .._typing import Key
from ..alignment import clair, label_oracle
from ..sweep import Results
from . import _section7
from ._old import experiment, kept, legend_below, mean, new_figure
from ._presets import PRESETS, Preset
from ._section7 import PUBLISHED, SIZE_TITLES, SOLVER, Constants, by_dimension, mean_square_error
from ._table import Table


C1 = (0.7, 1.4, 2.8)
RATIOS = (2.5, 2.75, 3.0, 3.25, 3.5, 3.75, 4.0, 4.5, 5.0, 6.0)  # c2 / c1


@dataclasses.dataclass(frozen=True)
class Cell(_section7.Cell):
    """A cell of Table 1. The field `purpose` gives it other keys, so that no table repeats its draws."""

    purpose: str = "tuning"


def cells(preset: Preset) -> tuple[Cell, ...]:
    return tuple(Cell(**dataclasses.asdict(cell)) for cell in _section7.cells(preset))


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


def best(results: Results) -> dict[int, Constants]:
    """By p, a grid point whose worst cell over K has the smallest mean error relative to the label oracle.

    Large parts of the grid are equal up to noise: of the points within 1 % of the smallest it is the middle one, in
    the order of c2/c1.
    """
    found = {}
    for dimension, row in by_dimension(results).items():
        worst = np.max([kept(results, cell)["ratio"].mean(0) for cell in row], axis=0)
        relative = worst.T / worst.min()
        near = np.argwhere(relative <= 1.01)
        j, i = near[len(near) // 2]
        found[dimension] = Constants(C1[i], C1[i] * RATIOS[j])
    return found


def report(results: Results) -> list[Table]:
    rows = []
    for dimension, (c1, c2) in best(results).items():
        i, j = C1.index(c1), int(np.argmin(np.abs(np.array(RATIOS) * c1 - c2)))
        for cell in by_dimension(results)[dimension]:
            outputs = {name: values[:, i, j] for name, values in kept(results, cell).items()}
            recorded = PUBLISHED.get(dimension, Constants(math.nan, math.nan))
            rows.append(
                (
                    *_section7.size_columns(cell),
                    f"{c1:g}, {c2:g}",
                    f"{recorded.c1:g}, {recorded.c2:g}",
                    str(mean(outputs["ratio"])),
                    f"{np.mean(outputs['rank'] == _section7.RANK):.2f}",
                    f"{np.mean(outputs['solved']):.2f}",
                )
            )
    title = "CLAIR as published: constants c1, c2 in the middle of the smallest worst error over K"
    columns = (*SIZE_TITLES, "best c1, c2", "recorded c1, c2", "error / label oracle", "rank 2 found", "solved")
    return [Table(title, columns, tuple(rows), _section7.failure_notes(results))]


def plot(results: Results) -> Any:
    groups = by_dimension(results)
    figure, axes = new_figure(len(groups))
    for axis, (dimension, row) in zip(axes, groups.items(), strict=True):
        for number, cell in enumerate(row):
            ratios = kept(results, cell)["ratio"].mean(0)
            for i, c1 in enumerate(C1):
                style = ("-", "--", ":")[i]
                axis.plot(RATIOS, ratios[i], style, color=f"C{number}", label=f"K = {cell.clients}, c1 = {c1:g}")
        axis.set(title=f"p = q = {dimension}", xlabel="c2 / c1", yscale="log")
    axes[0].set_ylabel("error / label oracle")
    legend_below(figure, axes[0], columns=len(C1))
    return figure


EXPERIMENT = experiment(
    name="clair-constants",
    summary="CLAIR section 7: the published procedure's constants c1, c2, tuned on draws that no table uses",
    presets=PRESETS["clair-constants"],
    cells=cells,
    replicate=replicate,
    report=report,
    plot=plot,
)
