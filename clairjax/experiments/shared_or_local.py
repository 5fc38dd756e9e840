"""When a shared representation pays: its error beside that of each client alone, as the models leave the subspace."""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._typing import Key
from ..data import SharedSubspace
from ..representation import best_of_rank, local_ridge, mean_distance, truncated_ridge
from ..sweep import Results
from ._claims import Claim, claims_table
from ._old import experiment, kept, legend_below, mean, new_figure, ratio
from ._presets import SHARING, Sharing
from ._sharing import ends_below
from ._table import Table


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


def cells(preset: Sharing) -> tuple[Cell, ...]:
    return tuple(Cell(clients, samples) for clients in preset.clients for samples in preset.samples)


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


def ordered(results: Results) -> list[Cell]:
    return sorted(cast(list[Cell], results.cells), key=lambda cell: (cell.clients, cell.samples))


def report(results: Results) -> list[Table]:
    rows = []
    for cell in ordered(results):
        outputs = kept(results, cell)
        for i, outside in enumerate(cell.outside):
            errors = {name: outputs[name][:, i] for name in METHODS}
            gains = (ratio(errors[name], errors["local_ridge"]).text(3) for name in ("ridge", "full"))
            size = str(cell.clients), str(cell.samples), f"{100 * outside:g} %"
            rows.append((*size, *(str(mean(error)) for error in errors.values()), *gains))
    first, replicates = ordered(results)[0], len(next(iter(results.failed.values())))
    return [
        Table(
            f"Distance to the truth, mean over clients and {replicates} replicates ±standard error; "
            f"d = {first.features}, models of length √{RANK}",
            ("M", "N", "outside", *METHODS.values(), f"k = {RANK} / local", "k = min(M, d) / local"),
            tuple(rows),
            (f"Outside: the share of the models' squared length that the subspace of rank {RANK} does not hold.",),
            tuple(range(len(first.outside), len(rows), len(first.outside))),
        ),
        claims_table("Does sharing pay?", claims(results)),
    ]


def claims(results: Results) -> list[Claim]:
    found = []
    for method, label in (("ridge", f"rank {RANK}"), ("full", "full rank")):
        for i, outside in enumerate(ordered(results)[0].outside):
            errors = [{name: kept(results, cell)[name][:, i] for name in METHODS} for cell in ordered(results)]
            text = f"Truncated ridge of {label} ends below each client's own, {100 * outside:g} % outside"
            found.append(ends_below(errors, method, "local_ridge", text))
    return found


def plot(results: Results) -> Any:
    counts = sorted({cell.clients for cell in ordered(results)})
    figure, axes = new_figure(len(counts))
    for axis, clients in zip(axes, counts, strict=True):
        row = [cell for cell in ordered(results) if cell.clients == clients]
        sizes = [cell.samples for cell in row]
        for i, outside in enumerate(row[0].outside):
            for method, style in (("ridge", "o-"), ("full", "x:")):
                every = ((kept(results, cell)[name][:, i] for name in (method, "local_ridge")) for cell in row)
                values, errors = zip(*(ratio(*pair) for pair in every), strict=True)
                label = f"{METHODS[method]}, {100 * outside:g} % outside"
                axis.errorbar(
                    sizes, values, errors, fmt=style, color=f"C{i}", markersize=4, capsize=2, linewidth=1, label=label
                )
        axis.axhline(1, color="0.4", linewidth=0.8)
        axis.set(title=f"M = {clients}", xlabel="samples N of a client", xscale="log", yscale="log")
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        axis.set_yticks((0.25, 0.5, 1, 2, 4, 8), ("0.25", "0.5", "1", "2", "4", "8"))
    axes[0].set_ylabel("error / local ridge's")
    legend_below(figure, axes[0], columns=2)
    return figure


EXPERIMENT = experiment(
    name="shared-or-local",
    summary="When a shared representation pays: truncated ridge beside each client's own ridge",
    presets=SHARING,
    cells=cells,
    replicate=replicate,
    report=report,
    plot=plot,
)
