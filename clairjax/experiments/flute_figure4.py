"""FLUTE, Figure 4: pairs (γ1, γ2) where a client has about as many samples as features."""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._typing import Key
from ..representation import best_of_rank, flute, local_least_squares, local_ridge, mean_distance, truncated_ridge
from ..sweep import Estimate, Results
from ._claims import Claim, above, claimed
from ._experiment import Experiment, Preset
from ._figure import band, panels
from ._flute_tasks import FEATURES, LABELS, STEP, Cell, init_scale, levels, tasks
from ._sharing_claims import sharing_claims
from ._table import Row, Tabulated, rows_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes

# γ1 = 2 γ2, γ1 = γ2 and γ1 = ⅔ γ2 with γ1 held, as the paper's ratios, and a smaller γ1 = γ2.
PAIRS = {
    "γ1 = 2γ2": (1 / 4, 1 / 8),
    "γ1 = γ2": (1 / 4, 1 / 4),
    "γ1 = ⅔γ2": (1 / 4, 3 / 8),
    "γ1 = γ2 = 1/8": (1 / 8, 1 / 8),
}
PRINTED = 3  # the first three are the paper's
EQUAL, SMALL = 1, 3


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """Errors of FLUTE for each pair: history, last distance to the truth and to the best rank-k model."""
    data_key, run_key = jax.random.split(key)
    problem = cell.model.generate(key=data_key)
    data, best = (problem.inputs, problem.targets), best_of_rank(problem.truth, cell.rank).coefficients

    def run(gammas: Array) -> tuple[Array, Array]:
        pair = gammas[0], gammas[1]
        rates = {"step_size": STEP, "init_scale": init_scale(problem.inputs), "gammas": pair}
        options = {"rounds": cell.rounds, "true_coefficients": problem.truth, **rates}
        found = flute(*data, cell.rank, key=run_key, **options)  # type: ignore[arg-type]
        assert found.errors is not None
        return found.errors[cell.stored], mean_distance(found.coefficients, best)

    history, to_best = jax.lax.map(run, jnp.array(list(PAIRS.values()), problem.inputs.dtype))
    models = {"ridge": truncated_ridge(*data, cell.rank).coefficients, "local_ridge": local_ridge(*data)}
    if cell.samples >= FEATURES:
        models["local"] = local_least_squares(*data)
    models["floor"] = best
    outputs = {"history": history, "error": history[:, -1], "error_best": to_best}
    for name, model in models.items():
        outputs |= {name: mean_distance(model, problem.truth), f"{name}_best": mean_distance(model, best)}
    return outputs


def distances(target: str, suffix: str, names: tuple[str, ...]) -> Tabulated[Cell]:
    """Of FLUTE at each pair and of references, where there are enough samples for them."""
    pair = lambda row, i: Estimate.of(row["error" + suffix][:, i])
    there = lambda row, name: row.mean(name) if name in row.outputs else None
    return Tabulated[Cell](
        f"FLUTE, Figure 4: distance to {target} after the last round, mean over {{replicates}} replicates; "
        f"d = {FEATURES}, k = {{rank}}, M = {{clients}}",
        (
            ("N", "samples"),
            *((label, partial(pair, i=i)) for i, label in enumerate(PAIRS)),
            *((LABELS[name], partial(there, name=name + suffix)) for name in names),
        ),
    )


def claims(results: Results[Cell]) -> list[Claim]:
    """FLUTE with γ1 = γ2, the paper's choice here, stands beside those that share less or nothing."""
    rows = rows_of(results)
    chosen = [dataclasses.replace(row, outputs={**row.outputs, "flute": row["error"][:, EQUAL]}) for row in rows]
    return [_equal_is_best(rows), _small_is_better(rows), *sharing_claims(chosen)]


def _equal_is_best(rows: list[Row[Cell]]) -> Claim:
    listed = [row for row in rows if row.cell.samples <= 10]
    errors = [row["error"][:, :PRINTED] for row in listed]
    best = (list(PAIRS)[error.mean(0).argmin()] for error in errors)
    figures = ", ".join(f"N = {row.cell.samples}: {name}" for row, name in zip(listed, best, strict=True))
    cases = [tuple(above(error[:, i], error[:, EQUAL]) for i in range(PRINTED) if i != EQUAL) for error in errors]
    return Claim("At N = 8, 9, 10 γ1 = γ2 is the best of the three", cases, figures)


def _small_is_better(rows: list[Row[Cell]]) -> Claim:
    """Not the paper's: the regulariser acts as shrinkage, and there is no reason for γ1 to be 1/4."""
    errors = {row.cell.samples: row["error"] for row in rows}
    gains = {samples: Estimate.of(error[:, EQUAL] - error[:, SMALL]) for samples, error in errors.items()}
    figures = ", ".join(f"N = {samples}: lower by {gain}" for samples, gain in gains.items())
    cases = [(above(error[:, EQUAL], error[:, SMALL]),) for error in errors.values()]
    return Claim("(ours) γ1 = γ2 = 1/8 is better again than 1/4", cases, figures)


@panels("distance to the truth")
def plot(axis: "Axes", row: Row[Cell]) -> None:
    for i, label in enumerate(PAIRS):
        band(axis, row.cell.stored + 1, row["history"][:, i], label)
    levels(axis, row, ("ridge", "floor", "local_ridge"))
    axis.set(title=f"N = {row.cell.samples}", xlabel="round", xscale="log")


EXPERIMENT = Experiment[Cell](
    name="flute-fig4",
    summary="FLUTE, Figure 4: pairs of regularisation constants with hardly more samples than features",
    presets={
        "smoke": Preset(tasks((10,), (8, 9), (6,), 200, "spectrum"), 3),
        "laptop": Preset(tasks((10,), (8, 9, 10, 11), (6,), 2000, "spectrum"), 100),
        "paper": Preset(tasks((10,), (8, 9, 10, 11), (6,), 2000, "spectrum"), 100),
    },
    replicate=replicate,
    tables=(
        distances("the truth", "", ("ridge", "local_ridge", "local", "floor")),
        distances("the best model of rank k", "_best", ("ridge", "local_ridge", "local")),
        claimed("The paper's claims", claims),
    ),
    plot=plot,
)
