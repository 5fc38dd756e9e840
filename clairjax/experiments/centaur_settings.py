"""What settings of CENTAUR are best at a fixed ε, on draws that no table uses."""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _validate
from .._typing import Key
from ..subspaces import subspace_distance
from . import centaur_tradeoff
from ._budget import ADJACENCY, Setting, never_reached_moments, noise_for, spend, spend_at_server
from ._experiment import Experiment, Preset
from ._figure import means, panels
from ._subspace_problems import draw
from ._table import Row, Tabulated, rows_of_kind


if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
NOTE = f"Mean distance at ε = {{epsilons[0]:g}} ({ADJACENCY}), the smallest of a grid."


def best(row: Row[Cell], name: str, place: int | None = None) -> float:
    """The smallest mean distance of the grid, or where it is: a median would not see the runs that fail."""
    grid = np.mean(row[name], axis=0)
    index = np.unravel_index(np.argmin(grid), grid.shape)
    return float(grid[index]) if place is None else AXES[name][place][index[place]]


def best_of(name: str, *places: str) -> tuple[Any, ...]:
    found = ((title, partial(best, name=name, place=i)) for i, title in enumerate(places))
    return "rounds", ("distance", partial(best, name=name), 4), *found


TABLES = (
    Tabulated[Cell](
        "CENTAUR with a constant step",
        (
            ("start", lambda row: "at 0.2" if row.cell.from_start else "random"),
            *best_of("distance", "ζ", "η T ζ"),
        ),
        (NOTE,),
        partial(rows_of_kind, kind=Constant),
    ),
    Tabulated[Cell](
        "Jain et al., from 0.2",
        best_of("at_server", "share of the unreached norm"),
        (NOTE,),
        partial(rows_of_kind, kind=Server),
    ),
)


@panels("distance to the true subspace", partial(rows_of_kind, kind=Constant))
def plot(axis: "Axes", row: Row[Constant]) -> None:
    for line in row.along(clip_norm=CLIPS):
        label = f"ζ = {line.get('clip_norm'):g}"
        means(axis, line.along(path=PATHS), "path", "distance", label, "o-", markersize=3)
    start = "from 0.2" if row.cell.from_start else "random start"
    axis.set(title=f"{start}, T = {row.cell.rounds}", xlabel="η T ζ", xscale="log", yscale="log")


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
