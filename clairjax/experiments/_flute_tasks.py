"""What FLUTE's synthetic figures share: their cells, their runs and the references beside them."""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jaxtyping import Array

from .._typing import Key
from ..data import LinearTasks
from ..representation import (
    alternating_least_squares,
    best_of_rank,
    fedrep,
    flute,
    local_least_squares,
    local_ridge,
    mean_distance,
    truncated_ridge,
)
from ._experiment import grid
from ._table import Row


if TYPE_CHECKING:
    from matplotlib.axes import Axes


FEATURES = 10
STEP = 0.03
POINTS = 60  # rounds at which a history is stored, evenly on a log scale


@dataclasses.dataclass(frozen=True)
class Cell:
    """M = `clients` with N = `samples` each, a representation of k = `rank`, and `rounds` of each iterative method.

    `law` is the model of the true coefficients, C.1's `spectrum` or 7.1's `normal`; see `clairjax.data.LinearTasks`.
    """

    clients: int
    samples: int
    rank: int
    rounds: int
    law: Literal["spectrum", "normal"]

    @property
    def model(self) -> LinearTasks:
        return LinearTasks(self.clients, FEATURES, self.samples, self.law)

    @property
    def source(self) -> str:
        return {"spectrum": "C.1's model", "normal": "7.1's model"}[self.law]

    @property
    def stored(self) -> np.ndarray:
        """Indices of the rounds whose errors are kept, the first and the last among them."""
        return np.unique(np.geomspace(1, self.rounds, POINTS).round().astype(int)) - 1


def tasks(
    clients: Sequence[int],
    samples: Sequence[int],
    ranks: Sequence[int],
    rounds: int,
    law: Literal["spectrum", "normal"],
) -> tuple[Cell, ...]:
    """Every combination of numbers of clients, of samples and of ranks."""
    return grid(partial(Cell, rounds=rounds, law=law), clients=clients, samples=samples, rank=ranks)


ITERATIVE = {"flute": "FLUTE", "fedrep": "FedRep", "fedrep_random": "FedRep(RI)", "fedrep_sum": "FedRep, summed"}
LABELS = {
    **ITERATIVE,
    "least_squares": "alternating least squares",
    "ridge": "truncated ridge",
    "local": "local least squares",
    "local_ridge": "local ridge",
    "floor": "best of rank k",
}
# What the plots show as a horizontal line.
LEVELS = {
    "ridge": ("k", "--"),
    "least_squares": ("k", ":"),
    "floor": ("k", "-."),
    "local_ridge": ("tab:purple", "-"),
}


def levels(axis: "Axes", row: Row[Cell], names: Iterable[str]) -> None:
    """A horizontal line at the mean error of each."""
    for name in names:
        color, style = LEVELS[name]
        axis.axhline(row[name].mean(), color=color, linestyle=style, linewidth=0.9, label=LABELS[name])


def init_scale(inputs: Array) -> float:
    """α of C.1, 1/(10 d)."""
    return 1 / (10 * inputs.shape[2])


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """Of each method the distance to the truth, (1/M) Σ‖B w_i − φ_i‖, and to its best rank-k model (`…_best`).

    Iterative methods have their history (`…_history`). FLUTE and FedRep run at the step 0.03, FedRep with the mean
    of the clients' gradients and, as FLUTE has it, with their sum.
    """
    data_key, run_key = jax.random.split(key)
    problem = cell.model.generate(key=data_key)
    data = problem.inputs, problem.targets
    options: dict[str, Any] = {"key": run_key, "rounds": cell.rounds, "true_coefficients": problem.truth}
    best = best_of_rank(problem.truth, cell.rank)
    runs = {
        "flute": flute(*data, cell.rank, step_size=STEP, init_scale=init_scale(problem.inputs), **options),
        "fedrep": fedrep(*data, cell.rank, step_size=STEP, **options),
        "fedrep_random": fedrep(*data, cell.rank, step_size=STEP, init="random", **options),
        "fedrep_sum": fedrep(*data, cell.rank, step_size=STEP * cell.clients, **options),
    }
    outputs = {f"{name}_history": run.errors[cell.stored] for name, run in runs.items()}  # type: ignore[index]
    models = {name: run.coefficients for name, run in runs.items()}
    models["least_squares"] = alternating_least_squares(*data, cell.rank).coefficients
    models["ridge"] = truncated_ridge(*data, cell.rank).coefficients
    models["local_ridge"] = local_ridge(*data)
    if cell.samples >= FEATURES:
        models["local"] = local_least_squares(*data)
    models["floor"] = best.coefficients
    for name, model in models.items():
        outputs[name] = mean_distance(model, problem.truth)
        outputs[f"{name}_best"] = mean_distance(model, best.coefficients)
    return outputs
