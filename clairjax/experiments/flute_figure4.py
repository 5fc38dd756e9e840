"""FLUTE, Figure 4: pairs (γ1, γ2) where a client has about as many samples as features."""

import functools
import os
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._typing import Key
from ..representation import best_of_rank, flute, mean_distance, truncated_ridge
from ..sweep import Results
from ._claims import Claim, claims_table, is_above, is_positive
from ._experiment import Experiment
from ._presets import FLUTE
from ._replicates import kept
from ._table import Estimate, Table, band, legend_below, mean, new_figure, save
from ._tasks import STEP, Cell, cells, init_scale


# γ1 = 2 γ2, γ1 = γ2 and γ1 = ⅔ γ2 with γ1 held, as the paper's ratios, and a smaller γ1 = γ2.
PAIRS = {
    "γ1 = 2γ2": (1 / 4, 1 / 8),
    "γ1 = γ2": (1 / 4, 1 / 4),
    "γ1 = ⅔γ2": (1 / 4, 3 / 8),
    "γ1 = γ2 = 1/8": (1 / 8, 1 / 8),
}
PRINTED = 3  # the first three are the paper's


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """Errors of FLUTE for each pair: history, last distance to the truth and to the best rank-k model."""
    data_key, run_key = jax.random.split(key)
    problem = cell.model.generate(key=data_key)
    data, best = (problem.inputs, problem.targets), best_of_rank(problem.truth, cell.rank).coefficients

    def run(gammas: Array) -> tuple[Array, Array]:
        pair = gammas[0], gammas[1]
        rates = {"step_size": STEP, "init_scale": init_scale(problem.inputs), "gammas": pair}
        options = {"rounds": cell.rounds, "truth": problem.truth, **rates}
        found = flute(*data, cell.rank, key=run_key, **options)  # type: ignore[arg-type]
        assert found.errors is not None
        return found.errors[cell.stored], mean_distance(found.coefficients, best)

    history, to_best = jax.lax.map(run, jnp.array(list(PAIRS.values()), problem.inputs.dtype))
    ridge = truncated_ridge(*data, cell.rank).coefficients
    return {
        "history": history,
        "error": history[:, -1],
        "to_best": to_best,
        "ridge": mean_distance(ridge, problem.truth),
        "ridge_best": mean_distance(ridge, best),
    }


def ordered(results: Results) -> list[Cell]:
    return sorted(cast(list[Cell], results.cells), key=lambda cell: cell.samples)


def report(results: Results) -> list[Table]:
    replicates = len(next(iter(results.failed.values())))
    size = f"d = 10, k = {ordered(results)[0].rank}, M = {ordered(results)[0].clients}"
    tables = []
    for target, output, ridge in (
        ("the truth", "error", "ridge"),
        ("the best model of rank k", "to_best", "ridge_best"),
    ):
        rows = []
        for cell in ordered(results):
            outputs = kept(results, cell)
            columns = (str(mean(outputs[output][:, i])) for i in range(len(PAIRS)))
            rows.append((str(cell.samples), *columns, str(mean(outputs[ridge]))))
        title = (
            f"FLUTE, Figure 4: distance to {target} after the last round, mean over {replicates} replicates; {size}"
        )
        tables.append(Table(title, ("N", *PAIRS, "truncated ridge"), tuple(rows)))
    return [*tables, claims_table("The paper's claims", [_equal_is_best(results), _small_is_better(results)])]


def _best_pair(results: Results, cell: Cell, count: int) -> int:
    means = kept(results, cell)["error"].mean(0)[:count]
    return int(means.argmin())


def _equal_is_best(results: Results) -> Claim:
    listed = [cell for cell in ordered(results) if cell.samples <= 10]
    best = [_best_pair(results, cell, PRINTED) for cell in listed]
    names = list(PAIRS)
    figures = ", ".join(f"N = {cell.samples}: {names[i]}" for cell, i in zip(listed, best, strict=True))
    holds = [_beats_the_others(results, cell) for cell in listed]
    return Claim("At N = 8, 9, 10 γ1 = γ2 is the best of the three", holds, figures)


def _beats_the_others(results: Results, cell: Cell) -> bool | None:
    """γ1 = γ2, of the printed three."""
    error = kept(results, cell)["error"]
    other = min((0, 2), key=lambda i: error[:, i].mean())
    return is_above(error[:, other], error[:, 1])


def _small_is_better(results: Results) -> Claim:
    """Not the paper's: the regulariser acts as shrinkage, and there is no reason for γ1 to be 1/4."""
    gains: list[Estimate] = []
    for cell in ordered(results):
        error = kept(results, cell)["error"]
        gains.append(mean(error[:, 1] - error[:, 3]))
    figures = ", ".join(f"N = {cell.samples}: lower by {g}" for cell, g in zip(ordered(results), gains, strict=True))
    return Claim("(ours) γ1 = γ2 = 1/8 is better again than 1/4", list(map(is_positive, gains)), figures)


def plot(results: Results, path: str | os.PathLike[str]) -> None:
    listed = ordered(results)
    figure, axes = new_figure(len(listed))
    for axis, cell in zip(axes, listed, strict=True):
        outputs = kept(results, cell)
        for i, label in enumerate(PAIRS):
            band(axis, cell.stored + 1, outputs["history"][:, i], label)
        axis.axhline(outputs["ridge"].mean(), color="k", linestyle="--", linewidth=0.9, label="truncated ridge")
        axis.set(title=f"N = {cell.samples}", xlabel="round", xscale="log")
    axes[0].set_ylabel("distance to the truth")
    legend_below(figure, axes[0])
    save(figure, path)


EXPERIMENT = Experiment(
    name="flute-fig4",
    summary="FLUTE, Figure 4: pairs of regularisation constants with hardly more samples than features",
    presets=FLUTE["flute-fig4"],
    cells=functools.partial(cells, law="spectrum"),
    replicate=replicate,
    report=report,
    plot=plot,
)
