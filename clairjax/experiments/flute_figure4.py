"""FLUTE, Figure 4: pairs (γ1, γ2) where a client has about as many samples as features."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._typing import Key
from ..representation import best_of_rank, flute, local_least_squares, local_ridge, mean_distance, truncated_ridge
from ..sweep import Results
from ._claims import Claim, above, claims_table
from ._old import band, experiment, kept, legend_below, mean, new_figure
from ._presets import FLUTE
from ._sharing import sharing_claims
from ._table import Table
from ._tasks import FEATURES, LABELS, LEVELS, STEP, Cell, cells, init_scale


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
        options = {"rounds": cell.rounds, "truth": problem.truth, **rates}
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


def ordered(results: Results) -> list[Cell]:
    return sorted(cast(list[Cell], results.cells), key=lambda cell: cell.samples)


def report(results: Results) -> list[Table]:
    replicates = len(next(iter(results.failed.values())))
    size = f"d = 10, k = {ordered(results)[0].rank}, M = {ordered(results)[0].clients}"
    names = ("ridge", "local_ridge", "local", "floor")
    tables = []
    for target, suffix in (("the truth", ""), ("the best model of rank k", "_best")):
        rows = []
        shown = names if not suffix else names[:-1]
        for cell in ordered(results):
            outputs = kept(results, cell)
            pairs = (str(mean(column)) for column in outputs["error" + suffix].T)
            rest = (str(mean(outputs[name + suffix])) if name in outputs else "–" for name in shown)
            rows.append((str(cell.samples), *pairs, *rest))
        title = (
            f"FLUTE, Figure 4: distance to {target} after the last round, mean over {replicates} replicates; {size}"
        )
        tables.append(Table(title, ("N", *PAIRS, *(LABELS[name] for name in shown)), tuple(rows)))
    return [*tables, claims_table("The paper's claims", claims(results))]


def claims(results: Results) -> list[Claim]:
    """FLUTE with γ1 = γ2, the paper's choice here, stands beside those that share less or nothing."""
    listed = [kept(results, cell) for cell in ordered(results)]
    chosen = [outputs | {"flute": outputs["error"][:, EQUAL]} for outputs in listed]
    return [_equal_is_best(results), _small_is_better(results), *sharing_claims(chosen)]


def _equal_is_best(results: Results) -> Claim:
    listed = [cell for cell in ordered(results) if cell.samples <= 10]
    errors = [kept(results, cell)["error"][:, :PRINTED] for cell in listed]
    names = list(PAIRS)
    best = (names[error.mean(0).argmin()] for error in errors)
    figures = ", ".join(f"N = {cell.samples}: {name}" for cell, name in zip(listed, best, strict=True))
    cases = [tuple(above(error[:, i], error[:, EQUAL]) for i in range(PRINTED) if i != EQUAL) for error in errors]
    return Claim("At N = 8, 9, 10 γ1 = γ2 is the best of the three", cases, figures)


def _small_is_better(results: Results) -> Claim:
    """Not the paper's: the regulariser acts as shrinkage, and there is no reason for γ1 to be 1/4."""
    errors = {cell.samples: kept(results, cell)["error"] for cell in ordered(results)}
    gains = {samples: mean(error[:, EQUAL] - error[:, SMALL]) for samples, error in errors.items()}
    figures = ", ".join(f"N = {samples}: lower by {gain}" for samples, gain in gains.items())
    cases = [(above(error[:, EQUAL], error[:, SMALL]),) for error in errors.values()]
    return Claim("(ours) γ1 = γ2 = 1/8 is better again than 1/4", cases, figures)


def plot(results: Results) -> Any:
    listed = ordered(results)
    figure, axes = new_figure(len(listed))
    for axis, cell in zip(axes, listed, strict=True):
        outputs = kept(results, cell)
        for i, label in enumerate(PAIRS):
            band(axis, cell.stored + 1, outputs["history"][:, i], label)
        for name in ("ridge", "floor", "local_ridge"):
            color, style = LEVELS[name]
            axis.axhline(outputs[name].mean(), color=color, linestyle=style, linewidth=0.9, label=LABELS[name])
        axis.set(title=f"N = {cell.samples}", xlabel="round", xscale="log")
    axes[0].set_ylabel("distance to the truth")
    legend_below(figure, axes[0])
    return figure


EXPERIMENT = experiment(
    name="flute-fig4",
    summary="FLUTE, Figure 4: pairs of regularisation constants with hardly more samples than features",
    presets=FLUTE["flute-fig4"],
    cells=functools.partial(cells, law="spectrum"),
    replicate=replicate,
    report=report,
    plot=plot,
)
