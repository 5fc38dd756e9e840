"""What settings of CENTAUR are best at a fixed ε, on draws that no table uses."""

import dataclasses
from typing import Any, TypeAlias

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
from ._centaur import draw
from ._old import experiment, kept, legend_below, new_figure
from ._presets import CENTAUR_SETTINGS, CentaurSettings
from ._table import Table


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


def cells(preset: CentaurSettings) -> tuple[Cell, ...]:
    constant = (
        Constant("constant", (EPSILON,), preset.clients, rounds=rounds, from_start=from_start)
        for from_start in (False, True)
        for rounds in preset.rounds
    )
    return (*constant, *(Server("jain", (EPSILON,), preset.clients, rounds=rounds) for rounds in preset.server_rounds))


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


def best(results: Results, cell: Cell) -> tuple[float, tuple[float, ...]]:
    """The smallest mean distance of the grid, and where: a median would not see the runs that fail."""
    grid = np.mean(kept(results, cell)["at_server" if isinstance(cell, Server) else "distance"], axis=0)
    place = np.unravel_index(np.argmin(grid), grid.shape)
    axes = (SHARES,) if isinstance(cell, Server) else (CLIPS, PATHS)
    return float(grid[place]), tuple(axis[i] for axis, i in zip(axes, place, strict=True))


def report(results: Results) -> list[Table]:
    constant, server = [], []
    for cell in results.cells:
        distance, place = best(results, cell)  # type: ignore[arg-type]
        figures = (f"{distance:.4f}", *(f"{value:g}" for value in place))
        if isinstance(cell, Server):
            server.append((str(cell.rounds), *figures))
        elif isinstance(cell, Constant):
            constant.append(("at 0.2" if cell.from_start else "random", str(cell.rounds), *figures))
    (epsilon,) = results.cells[0].epsilons  # type: ignore[attr-defined]
    note = f"Mean distance at ε = {epsilon:g} ({ADJACENCY}), the smallest of a grid."
    return [
        Table("CENTAUR with a constant step", ("start", "rounds", "distance", "ζ", "η T ζ"), tuple(constant), (note,)),
        Table("Jain et al., from 0.2", ("rounds", "distance", "share of the unreached norm"), tuple(server), (note,)),
    ]


def plot(results: Results) -> Any:
    cells = [cell for cell in results.cells if isinstance(cell, Constant)]
    figure, axes = new_figure(len(cells))
    for axis, cell in zip(axes, cells, strict=True):
        grid = np.mean(kept(results, cell)["distance"], axis=0)
        for clip_norm, row in zip(CLIPS, grid, strict=True):
            axis.plot(PATHS, row, "o-", markersize=3, label=f"ζ = {clip_norm:g}")
        start = "from 0.2" if cell.from_start else "random start"
        axis.set(title=f"{start}, T = {cell.rounds}", xlabel="η T ζ", xscale="log", yscale="log")
    axes[0].set_ylabel("distance to the true subspace")
    legend_below(figure, axes[0])
    return figure


EXPERIMENT = experiment(
    name="centaur-settings",
    summary="Clip norm, rounds and step of CENTAUR at a fixed ε, searched on draws that no table uses",
    presets=CENTAUR_SETTINGS,
    cells=cells,
    replicate=replicate,
    report=report,
    plot=plot,
)
