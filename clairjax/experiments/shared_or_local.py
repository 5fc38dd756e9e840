"""When a shared representation pays: its error beside that of each client alone, as the models leave the subspace."""

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._typing import Key
from ..data import SharedSubspace
from ..representation import best_of_rank, local_ridge, mean_distance, truncated_ridge
from ..sweep import Results
from ._claims import Claim, claimed
from ._experiment import Experiment, Preset, grid
from ._figure import curve, panels, sizes_below
from ._sharing_claims import ends_below
from ._table import Row, Tabulated, grouped, rows_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANK = 2
METHODS = {
    "ridge": f"truncated ridge, k = {RANK}",
    "full": "truncated ridge, k = min(M, d)",
    "local_ridge": "local ridge",
    "floor": f"best of rank {RANK}",
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """M = `clients` with N = `samples` each; a share `outside` of each model's squared length is its own."""

    clients: int
    samples: int
    features: int = 20
    outside: tuple[float, ...] = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)

    @property
    def model(self) -> SharedSubspace:
        return SharedSubspace(self.clients, self.samples, self.features, RANK, noise=0.3**0.5)


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """Of each method the distance to the truth, for each share outside: the same draws, turned out of the subspace."""
    data_key, own_key = jax.random.split(key)
    problem = cell.model.generate(key=data_key)
    shared = problem.heads @ problem.basis.T
    own = jax.random.normal(own_key, shared.shape, shared.dtype)
    own = own - (own @ problem.basis) @ problem.basis.T
    length = lambda rows: jnp.linalg.norm(rows, axis=1, keepdims=True)
    own = own * length(shared) / length(own)

    def errors(outside: Array) -> dict[str, Array]:
        truth = jnp.sqrt(1 - outside) * shared + jnp.sqrt(outside) * own
        data = problem.inputs, problem.targets + jnp.einsum("mnd,md->mn", problem.inputs, truth - shared)
        models = {
            "ridge": truncated_ridge(*data, RANK).coefficients,
            "full": truncated_ridge(*data, min(cell.clients, cell.features)).coefficients,
            "local_ridge": local_ridge(*data),
            "floor": best_of_rank(truth, RANK).coefficients,
        }
        return {name: mean_distance(model, truth) for name, model in models.items()}

    return jax.lax.map(errors, jnp.array(cell.outside, shared.dtype))


def by_share(results: Results[Cell]) -> list[Row[Cell]]:
    """A row for each cell and share outside."""
    return [part for row in rows_of(results) for part in row.along(outside=row.cell.outside)]


def outside(row: Row[Cell]) -> str:
    return f"{100 * row.get('outside'):g} %"


def claims(results: Results[Cell]) -> list[Claim]:
    return [
        ends_below(
            rows,
            method,
            "local_ridge",
            f"Truncated ridge of {label} ends below each client's own, {outside(rows[0])} outside",
        )
        for method, label in (("ridge", f"rank {RANK}"), ("full", "full rank"))
        for rows in grouped(by_share(results), outside)
    ]


DISTANCES = Tabulated[Cell](
    "Distance to the truth, mean over clients and {replicates} replicates ±standard error; d = {features}, "
    f"models of length √{RANK}",
    (
        *(("M", "clients"), ("N", "samples"), ("outside", outside)),
        *((label, name) for name, label in METHODS.items()),
        *((f"k = {RANK} / local", "ridge / local_ridge", 3), ("k = min(M, d) / local", "full / local_ridge", 3)),
    ),
    (f"Outside: the share of the models' squared length that the subspace of rank {RANK} does not hold.",),
    by_share,
    group="samples",
)


@panels("error / local ridge's", lambda results: grouped(by_share(results), lambda row: row.cell.clients), columns=2)
def plot(axis: "Axes", rows: list[Row[Cell]]) -> None:
    for i, line in enumerate(grouped(rows, outside)):
        for method, fmt in (("ridge", "o-"), ("full", "x:")):
            label = f"{METHODS[method]}, {outside(line[0])} outside"
            curve(axis, line, "samples", f"{method} / local_ridge", label, fmt=fmt, color=f"C{i}", linewidth=1)
    axis.axhline(1, color="0.4", linewidth=0.8)
    axis.set(title=f"M = {rows[0].cell.clients}", xlabel="samples N of a client", yscale="log")
    axis.set_yticks((0.25, 0.5, 1, 2, 4, 8), ("0.25", "0.5", "1", "2", "4", "8"))
    sizes_below(axis, [row.cell.samples for row in line])


EXPERIMENT = Experiment[Cell](
    name="shared-or-local",
    summary="When a shared representation pays: truncated ridge beside each client's own ridge",
    presets={
        "smoke": Preset(grid(Cell, clients=(10,), samples=(10,)), 3),
        "laptop": Preset(grid(Cell, clients=(10, 100), samples=(10, 20, 40, 160)), 40),
        "paper": Preset(grid(Cell, clients=(10, 30, 100, 300), samples=(10, 20, 40, 160)), 100),
    },
    replicate=replicate,
    tables=(DISTANCES, claimed("Does sharing pay?", claims)),
    plot=plot,
)
