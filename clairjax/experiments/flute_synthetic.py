"""FLUTE, Figures 1 and 3: error against rounds beside FedRep's, and beside what no paper compares with."""

import functools
import math
import os
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from ..sweep import Results
from ._claims import Claim, both, claims_table, is_above, is_positive
from ._experiment import Experiment
from ._presets import FLUTE
from ._replicates import kept
from ._table import Estimate, Table, band, legend_below, mean, new_figure, ratio, save
from ._tasks import FEATURES, ITERATIVE, LABELS, Cell, cells, replicate


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
        gain = ratio(outputs["ridge" + suffix], outputs["flute" + suffix])
        rows.append((str(cell.rank), str(cell.clients), str(cell.samples), *values, gain.text(3)))
    law = {"spectrum": "C.1's model", "normal": "7.1's model"}[ordered(results)[0].law]
    target = "the best model of rank k" if suffix else "the truth"
    replicates = len(next(iter(results.failed.values())))
    return Table(
        f"Distance to {target}, mean over clients and {replicates} replicates ±standard error; {law}, d = {FEATURES}",
        ("k", "M", "N", *(LABELS[name] for name in names), "ridge / FLUTE"),
        tuple(rows),
        ("Step 0.03. FedRep takes the mean of the clients' gradients or, “summed”, their sum.",) if not suffix else (),
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


def rounds_to(results: Results, cell: Cell, name: str) -> float:
    """First stored round at which the mean error is within 5 % of the larger of FLUTE's and FedRep(RI)'s last."""
    outputs = kept(results, cell)
    goal = 1.05 * max(outputs[f"{other}_history"].mean(0)[-1] for other in ("flute", "fedrep_random"))
    reached = np.flatnonzero(outputs[f"{name}_history"].mean(0) <= goal)
    return float(cell.stored[reached[0]] + 1) if reached.size else math.inf


def claims(results: Results) -> list[Claim]:
    listed = ordered(results)
    gains = {cell: gain_over(results, cell, "fedrep") for cell in listed}
    summed = {cell: gain_over(results, cell, "fedrep_sum") for cell in listed}
    overtaken = [overtakes(results, cell) for cell in listed]
    pace = [(rounds_to(results, c, "flute"), rounds_to(results, c, "fedrep_random")) for c in listed]
    found = [
        _ends_below("the mean of the gradients", gains),
        _ends_below("their sum at the same step", summed),
        Claim(
            "FedRep is ahead at first, FLUTE overtakes it",
            [_leads_then_trails(results, cell) for cell in listed],
            f"overtakes after {_range([first for first in overtaken if first < math.inf])} rounds where it does",
        ),
        Claim(
            "From a random start FedRep needs more rounds than FLUTE",
            [_is_slower(results, cell, *rounds) for cell, rounds in zip(listed, pace, strict=True)],
            f"rounds FLUTE {_range([ours for ours, _ in pace])}, FedRep(RI) {_range([theirs for _, theirs in pace])}",
        ),
        Claim("FLUTE's edge over FedRep shrinks as k grows", *_edge(gains)),
    ]
    if len({cell.clients for cell in listed}) > 1:
        found.append(Claim("More clients lower FLUTE's error", *_clients(results, listed)))
    return found


def _ends_below(gradient: str, gains: dict[Cell, Estimate]) -> Claim:
    return Claim(
        f"FLUTE ends below FedRep with {gradient}",
        [is_positive(gain) for gain in gains.values()],
        f"FedRep's error over FLUTE's, less one: {_range([100 * gain.value for gain in gains.values()])} %",
    )


def _leads_then_trails(results: Results, cell: Cell) -> bool | None:
    """FedRep below FLUTE at the first stored round, above it at the last."""
    outputs = kept(results, cell)
    ours, theirs = outputs["flute_history"], outputs["fedrep_history"]
    return both(is_above(ours[:, 0], theirs[:, 0]), is_above(theirs[:, -1], ours[:, -1]))


def _is_slower(results: Results, cell: Cell, ours: float, theirs: float) -> bool | None:
    """Whether FedRep(RI) needs more rounds: when the first of the two is there, the other is still above it."""
    if ours == theirs or math.isinf(min(ours, theirs)):
        return None
    outputs = kept(results, cell)
    then = int(np.flatnonzero(cell.stored + 1 == min(ours, theirs))[0])
    return is_above(outputs["fedrep_random_history"][:, then], outputs["flute_history"][:, then])


def _edge(gains: dict[Cell, Estimate]) -> tuple[list[bool | None], str]:
    flags, texts = [], []
    for group in _groups(list(gains), lambda c: (c.clients, c.samples)):
        low, high = gains[group[0]], gains[group[-1]]
        flags.append(_is_lower(high, low))
        texts.append(f"M {group[0].clients}, N {group[0].samples}: {100 * low.value:.1f} → {100 * high.value:.1f} %")
    return flags, "edge at the smallest and the largest k: " + "; ".join(texts)


def _is_lower(one: Estimate, other: Estimate) -> bool | None:
    """Of two estimates from different draws."""
    return is_positive(Estimate(other.value - one.value, math.hypot(one.error, other.error)))


def _clients(results: Results, listed: Sequence[Cell]) -> tuple[list[bool | None], str]:
    flags, changes = [], []
    for group in _groups(listed, lambda c: (c.samples, c.rank)):
        few, many = (mean(kept(results, cell)["flute"]) for cell in (group[0], group[-1]))
        flags.append(_is_lower(many, few))
        changes.append(100 * (many.value / few.value - 1))
    return flags, f"change of the error: {_range(changes)} %"


def _groups(listed: Sequence[Cell], by) -> list[list[Cell]]:  # type: ignore[no-untyped-def]
    groups: dict[tuple[int, int], list[Cell]] = {}
    for cell in listed:
        groups.setdefault(by(cell), []).append(cell)
    return list(groups.values())


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if values else "none"


def plot(results: Results, path: str | os.PathLike[str]) -> None:
    largest = max((c.clients, c.samples) for c in ordered(results))
    shown = [cell for cell in ordered(results) if (cell.clients, cell.samples) == largest]
    figure, axes = new_figure(len(shown), shared=False)
    for axis, cell in zip(axes, shown, strict=True):
        outputs = kept(results, cell)
        for name, label in ITERATIVE.items():
            band(axis, cell.stored + 1, outputs[f"{name}_history"], label)
        for name, style in (("ridge", "--"), ("least_squares", ":"), ("floor", "-.")):
            axis.axhline(outputs[name].mean(), color="k", linestyle=style, linewidth=0.9, label=LABELS[name])
        axis.set(title=f"k = {cell.rank}, M = {cell.clients}, N = {cell.samples}", xlabel="round", xscale="log")
    axes[0].set_ylabel("distance to the truth")
    legend_below(figure, axes[0])
    save(figure, path)


FIGURE_1 = Experiment(
    name="flute-fig1",
    summary="FLUTE, Figure 1: FLUTE, FedRep and FedRep(RI) on 7.1's model, beside references no paper compares with",
    presets=FLUTE["flute-fig1"],
    cells=functools.partial(cells, law="normal"),
    replicate=replicate,
    report=report,
    plot=plot,
)
FIGURE_3 = Experiment(
    name="flute-fig3",
    summary="FLUTE, Figure 3: the same on C.1's model, over k, M and N",
    presets=FLUTE["flute-fig3"],
    cells=functools.partial(cells, law="spectrum"),
    replicate=replicate,
    report=report,
    plot=plot,
)
