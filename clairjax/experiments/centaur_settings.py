"""What settings of CENTAUR are best at a fixed ε, on draws that no table uses."""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _validate
from .._typing import Key
from ..subspaces import subspace_distance
from ..sweep import Results
from . import centaur_tradeoff
from ._budget import ADJACENCY, Setting, never_reached_moments, noise_for, spend, spend_at_server
from ._experiment import Experiment, Preset
from ._figure import legend_below, new_figure
from ._subspace_problems import draw
from ._table import Column, Row, Tabulated, rows_of_kind


if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON = 2.0
CLIPS = (0.03, 0.1, 0.3, 1.0)
PATHS = (0.8, 1.6, 4.0, 8.0, 16.0)  # sum of the step sizes times the clip norm
SHARES = (0.1, 0.3, 1.0)  # of the clip norms that are never reached


@dataclasses.dataclass(frozen=True)
class _AtOne(centaur_tradeoff.Budget):
    """A search at one ε; `--set epsilons=4` changes it."""

    def __post_init__(self) -> None:
        if len(self.epsilons) != 1:
            raise _validate.fail("epsilons", "one value, at which to search", self.epsilons)


@dataclasses.dataclass(frozen=True)
class Constant(_AtOne):
    """CENTAUR with a constant step, for each clip norm and path. `purpose` gives it keys of its own."""

    rounds: int = 40
    from_start: bool = False
    purpose: str = "tuning"


@dataclasses.dataclass(frozen=True)
class Server(_AtOne):
    """Perturbed least squares for each share of the clip norms that are never reached."""

    rounds: int = 4
    purpose: str = "tuning"


Cell: TypeAlias = Constant | Server


def sizes(rounds: tuple[int, ...], server_rounds: tuple[int, ...], clients: int) -> tuple[Cell, ...]:
    """Rounds to try for CENTAUR, and for perturbed least squares."""
    constant = (
        Constant("constant", (EPSILON,), clients, rounds=number, from_start=from_start)
        for from_start in (False, True)
        for number in rounds
    )
    return (*constant, *(Server("jain", (EPSILON,), clients, rounds=number) for number in server_rounds))


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """Distance at each point of the cell's grid."""
    problem, start, run_key = draw(key, cell.model)
    noise = noise_for(cell.epsilons[0], cell.rounds)

    def constant(turn: tuple[Array, Array]) -> Array:
        setting = Setting(cell.rounds, turn[0], turn[1], cell.from_start)  # type: ignore[union-attr]
        return subspace_distance(spend(problem, start, setting, noise, run_key).basis, problem.basis)

    def server(share: Array) -> Array:
        norms = never_reached_moments(cell.samples, cell.features)
        found = spend_at_server(problem, start, cell.rounds, (share * norms[0], share * norms[1]), noise, run_key)
        return subspace_distance(found.basis, problem.basis)

    if isinstance(cell, Server):
        return {"at_server": jax.lax.map(server, jnp.array(SHARES, start.dtype))}
    grid = jnp.meshgrid(jnp.array(CLIPS, start.dtype), jnp.array(PATHS, start.dtype), indexing="ij")
    distance = jax.lax.map(constant, (grid[0].reshape(-1), grid[1].reshape(-1)))
    return {"distance": distance.reshape(len(CLIPS), len(PATHS))}


AXES = {"distance": (CLIPS, PATHS), "at_server": (SHARES,)}


def best(row: Row[Cell], name: str, place: int | None = None) -> float:
    """The smallest mean distance of the grid, or where it is: a median would not see the runs that fail."""
    grid = np.mean(row[name], axis=0)
    index = np.unravel_index(np.argmin(grid), grid.shape)
    return float(grid[index]) if place is None else AXES[name][place][index[place]]


def grid_columns(name: str, *places: str) -> tuple[Column, ...]:
    found = (Column(title, partial(best, name=name, place=i)) for i, title in enumerate(places))
    return Column("rounds"), Column("distance", partial(best, name=name), 4), *found


def note(results: Results[Cell]) -> str:
    (epsilon,) = results.cells[0].epsilons
    return f"Mean distance at ε = {epsilon:g} ({ADJACENCY}), the smallest of a grid."


TABLES = (
    Tabulated[Cell](
        "CENTAUR with a constant step",
        (
            Column("start", lambda row: "at 0.2" if row.cell.from_start else "random"),
            *grid_columns("distance", "ζ", "η T ζ"),
        ),
        (note,),
        lambda results: rows_of_kind(results, Constant),
    ),
    Tabulated[Cell](
        "Jain et al., from 0.2",
        grid_columns("at_server", "share of the unreached norm"),
        (note,),
        lambda results: rows_of_kind(results, Server),
    ),
)


def plot(results: Results[Cell]) -> "Figure":
    rows = rows_of_kind(results, Constant)
    figure, axes = new_figure(len(rows))
    for axis, row in zip(axes, rows, strict=True):
        for clip_norm, distances in zip(CLIPS, np.mean(row["distance"], axis=0), strict=True):
            axis.plot(PATHS, distances, "o-", markersize=3, label=f"ζ = {clip_norm:g}")
        start = "from 0.2" if row.cell.from_start else "random start"
        axis.set(title=f"{start}, T = {row.cell.rounds}", xlabel="η T ζ", xscale="log", yscale="log")
    axes[0].set_ylabel("distance to the true subspace")
    return legend_below(figure, axes[0])


EXPERIMENT = Experiment[Cell](
    name="centaur-settings",
    summary="Clip norm, rounds and step of CENTAUR at a fixed ε, searched on draws that no table uses",
    presets={
        "smoke": Preset(sizes((10,), (2,), 200), 2),
        "laptop": Preset(sizes((10, 20, 40, 80), (1, 2, 4, 8), 1000), 8),
        "paper": Preset(sizes((10, 20, 40, 80), (1, 2, 4, 8), 1000), 24),
    },
    replicate=replicate,
    tables=TABLES,
    plot=plot,
)
