"""FLUTE, Figures 1 and 3: error against rounds beside FedRep's, and beside what no paper compares with."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import numpy as np

from ..sweep import Estimate, Results
from ._claims import Case, Claim, above, above_apart, claims_table
from ._old import band, experiment, kept, legend_below, mean, new_figure, ratio
from ._presets import FLUTE
from ._sharing import ends_below, sharing_claims
from ._table import Table
from ._tasks import FEATURES, ITERATIVE, LABELS, LEVELS, Cell, cells, replicate


NOTES = (
    "Step 0.03. FedRep takes the mean of the clients' gradients or, “summed”, their sum.",
    "Local: each client alone, by least squares (where N ≥ d) or by ridge with a cross-validated penalty.",
)


def ordered(results: Results) -> list[Cell]:
    return sorted(cast(list[Cell], results.cells), key=lambda c: (c.clients, c.samples, c.rank))


def report(results: Results) -> list[Table]:
    return [_errors(results, ""), _errors(results, "_best"), claims_table("The paper's claims", claims(results))]


def _errors(results: Results, suffix: Literal["", "_best"]) -> Table:
    rows = []
    names = [name for name in LABELS if name != "floor" or not suffix]
    names = [name for name in names if any(name in results[cell] for cell in results.cells)]
    for cell in ordered(results):
        outputs = kept(results, cell)
        values = (str(mean(outputs[name + suffix])) if name in outputs else "–" for name in names)
        pairs = ("ridge", "flute"), ("local_ridge", "ridge")
        gains = (ratio(outputs[one + suffix], outputs[other + suffix]).text(3) for one, other in pairs)
        rows.append((str(cell.rank), str(cell.clients), str(cell.samples), *values, *gains))
    law = {"spectrum": "C.1's model", "normal": "7.1's model"}[ordered(results)[0].law]
    target = "the best model of rank k" if suffix else "the truth"
    replicates = len(next(iter(results.failed.values())))
    return Table(
        f"Distance to {target}, mean over clients and {replicates} replicates ±standard error; {law}, d = {FEATURES}",
        ("k", "M", "N", *(LABELS[name] for name in names), "truncated ridge / FLUTE", "local / truncated ridge"),
        tuple(rows),
        NOTES if not suffix else (),
    )


def gain_over(results: Results, cell: Cell, other: str) -> Estimate:
    """Other's error less FLUTE's, relative to FLUTE's, paired."""
    outputs = kept(results, cell)
    found = ratio(outputs[other], outputs["flute"])
    return Estimate(found.value - 1, found.error)


def overtakes(results: Results, cell: Cell) -> float:
    """First stored round from which FLUTE's mean error stays below FedRep's; infinite if it ends above."""
    outputs = kept(results, cell)
    ahead = outputs["flute_history"].mean(0) < outputs["fedrep_history"].mean(0)
    behind = np.flatnonzero(~ahead)
    if not behind.size:
        return 1.0
    last = behind[-1] + 1
    return float(cell.stored[last] + 1) if last < len(ahead) else math.inf


def rounds_to(results: Results, cell: Cell) -> dict[str, np.ndarray]:
    """Of FLUTE and FedRep(RI), by replicate: the first stored round within 5 % of the larger of their last errors.

    One goal for both, and no mean of several replicates: at a round that means choose, one of them has been lucky.
    """
    outputs = kept(results, cell)
    histories = {name: outputs[f"{name}_history"] for name in ("flute", "fedrep_random")}
    goal = 1.05 * np.max([history[:, -1:] for history in histories.values()], axis=0)
    return {name: cell.stored[(history <= goal).argmax(1)] + 1 for name, history in histories.items()}


def claims(results: Results) -> list[Claim]:
    listed = ordered(results)
    outputs = [kept(results, cell) for cell in listed]
    overtaken = [overtakes(results, cell) for cell in listed]
    found = [
        ends_below(outputs, "flute", "fedrep", "FLUTE ends below FedRep with the mean of the gradients"),
        ends_below(outputs, "flute", "fedrep_sum", "FLUTE ends below FedRep with their sum at the same step"),
        Claim(
            "FedRep is ahead at first, FLUTE overtakes it",
            [_leads_then_trails(each) for each in outputs],
            f"overtakes after {_range([first for first in overtaken if first < math.inf])} rounds where it does",
        ),
        _is_slower([rounds_to(results, cell) for cell in listed]),
        _edge(results, listed),
    ]
    if len({cell.clients for cell in listed}) > 1:
        found.append(_clients(results, listed))
    return [*found, *sharing_claims(outputs)]


def _leads_then_trails(outputs: dict[str, np.ndarray]) -> Case:
    """FedRep below FLUTE at the first stored round, above it at the last."""
    ours, theirs = outputs["flute_history"], outputs["fedrep_history"]
    return above(ours[:, 0], theirs[:, 0]), above(theirs[:, -1], ours[:, -1])


def _is_slower(rounds: Sequence[dict[str, np.ndarray]]) -> Claim:
    ours, theirs = ([np.exp(np.log(each[name]).mean()) for each in rounds] for name in ("flute", "fedrep_random"))
    return Claim(
        "From a random start FedRep needs more rounds than FLUTE",
        [(above(np.log(each["fedrep_random"]), np.log(each["flute"])),) for each in rounds],
        f"rounds, geometric mean: FLUTE {_range(ours)}, FedRep(RI) {_range(theirs)}",
    )


def _edge(results: Results, listed: Sequence[Cell]) -> Claim:
    cases, texts = [], []
    for group in _groups(listed, lambda c: (c.clients, c.samples)):
        ends = group[0], group[-1]
        low, high = (gain_over(results, cell, "fedrep") for cell in ends)
        cases.append((above_apart(low, high, _counts(results, ends)),))
        texts.append(f"M {group[0].clients}, N {group[0].samples}: {100 * low.value:.1f} → {100 * high.value:.1f} %")
    figures = "edge at the smallest and the largest k: " + "; ".join(texts)
    return Claim("FLUTE's edge over FedRep shrinks as k grows", cases, figures)


def _clients(results: Results, listed: Sequence[Cell]) -> Claim:
    cases, changes = [], []
    for group in _groups(listed, lambda c: (c.samples, c.rank)):
        ends = group[0], group[-1]
        few, many = (mean(kept(results, cell)["flute"]) for cell in ends)
        cases.append((above_apart(few, many, _counts(results, ends)),))
        changes.append(100 * (many.value / few.value - 1))
    return Claim("More clients lower FLUTE's error", cases, f"change of the error: {_range(changes)} %")


def _counts(results: Results, ends: tuple[Cell, Cell]) -> tuple[int, int]:
    few, many = (len(kept(results, cell)["flute"]) for cell in ends)
    return few, many


def _groups(listed: Sequence[Cell], by: Callable[[Cell], tuple[int, int]]) -> list[list[Cell]]:
    groups: dict[tuple[int, int], list[Cell]] = {}
    for cell in listed:
        groups.setdefault(by(cell), []).append(cell)
    return list(groups.values())


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if values else "none"


def plot(results: Results) -> Any:
    largest = max((c.clients, c.samples) for c in ordered(results))
    shown = [cell for cell in ordered(results) if (cell.clients, cell.samples) == largest]
    figure, axes = new_figure(len(shown), shared=False)
    for axis, cell in zip(axes, shown, strict=True):
        outputs = kept(results, cell)
        for name, label in ITERATIVE.items():
            band(axis, cell.stored + 1, outputs[f"{name}_history"], label)
        for name, (color, style) in LEVELS.items():
            axis.axhline(outputs[name].mean(), color=color, linestyle=style, linewidth=0.9, label=LABELS[name])
        axis.set(title=f"k = {cell.rank}, M = {cell.clients}, N = {cell.samples}", xlabel="round", xscale="log")
    axes[0].set_ylabel("distance to the truth")
    legend_below(figure, axes[0])
    return figure


FIGURE_1 = experiment(
    name="flute-fig1",
    summary="FLUTE, Figure 1: FLUTE, FedRep and FedRep(RI) on 7.1's model, beside references no paper compares with",
    presets=FLUTE["flute-fig1"],
    cells=functools.partial(cells, law="normal"),
    replicate=replicate,
    report=report,
    plot=plot,
)
FIGURE_3 = experiment(
    name="flute-fig3",
    summary="FLUTE, Figure 3: the same on C.1's model, over k, M and N",
    presets=FLUTE["flute-fig3"],
    cells=functools.partial(cells, law="spectrum"),
    replicate=replicate,
    report=report,
    plot=plot,
)
