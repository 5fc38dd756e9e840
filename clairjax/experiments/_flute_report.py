"""FLUTE, Figures 1 and 3: error beside FedRep's, and beside what no paper compares with; the paper's claims."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sweep import Estimate, Results
from ._claims import Case, Claim, Difference, above, above_apart, claimed
from ._experiment import Experiment
from ._figure import band, panels
from ._flute_tasks import FEATURES, ITERATIVE, LABELS, LEVELS, Cell, levels, replicate
from ._sharing_claims import ends_below, sharing_claims
from ._table import Row, Tabulated, grouped, rows_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes


def columns(suffix: str, results: Results[Cell]) -> list[tuple[Any, ...]]:
    """Of the methods that run in some cell; the best model of rank k is at no distance to itself."""
    names = [name for name in LABELS if any(name in results[cell] for cell in results.cells)]
    return [
        *(("k", "rank"), ("M", "clients"), ("N", "samples")),
        *((LABELS[name], name + suffix) for name in names if name != "floor" or not suffix),
        ("truncated ridge / FLUTE", f"ridge{suffix} / flute{suffix}", 3),
        ("local / truncated ridge", f"local_ridge{suffix} / ridge{suffix}", 3),
    ]


def distances(target: str, suffix: str, *notes: str) -> Tabulated[Cell]:
    title = f"Distance to {target}, mean over clients and {{replicates}} replicates ±standard error; {{source}}"
    return Tabulated[Cell](f"{title}, d = {FEATURES}", partial(columns, suffix), notes)


def overtakes(row: Row[Cell]) -> float:
    """First stored round from which FLUTE's mean error stays below FedRep's; infinite if it ends above."""
    ahead = row["flute_history"].mean(0) < row["fedrep_history"].mean(0)
    behind = np.flatnonzero(~ahead)
    if not behind.size:
        return 1.0
    last = behind[-1] + 1
    return float(row.cell.stored[last] + 1) if last < len(ahead) else math.inf


def rounds_to(row: Row[Cell]) -> dict[str, np.ndarray]:
    """Of FLUTE and FedRep(RI), by replicate: the first stored round within 5 % of the larger of their last errors.

    One goal for both, and no mean of several replicates: at a round that means choose, one of them has been lucky.
    """
    histories = {name: row[f"{name}_history"] for name in ("flute", "fedrep_random")}
    goal = 1.05 * np.max([history[:, -1:] for history in histories.values()], axis=0)
    return {name: row.cell.stored[(history <= goal).argmax(1)] + 1 for name, history in histories.items()}


def claims(results: Results[Cell]) -> list[Claim]:
    rows = rows_of(results)
    overtaken = [first for first in map(overtakes, rows) if first < math.inf]
    found = [
        ends_below(rows, "flute", "fedrep", "FLUTE ends below FedRep with the mean of the gradients"),
        ends_below(rows, "flute", "fedrep_sum", "FLUTE ends below FedRep with their sum at the same step"),
        Claim(
            "FedRep is ahead at first, FLUTE overtakes it",
            list(map(_leads_then_trails, rows)),
            f"overtakes after {_range(overtaken)} rounds where it does",
        ),
        _is_slower(list(map(rounds_to, rows))),
        _edge(rows),
    ]
    if len({row.cell.clients for row in rows}) > 1:
        found.append(_clients(rows))
    return [*found, *sharing_claims(rows)]


def _leads_then_trails(row: Row[Cell]) -> Case:
    """FedRep below FLUTE at the first stored round, above it at the last."""
    ours, theirs = row["flute_history"], row["fedrep_history"]
    return above(ours[:, 0], theirs[:, 0]), above(theirs[:, -1], ours[:, -1])


def _is_slower(rounds: Sequence[dict[str, np.ndarray]]) -> Claim:
    ours, theirs = ([np.exp(np.log(each[name]).mean()) for each in rounds] for name in ("flute", "fedrep_random"))
    return Claim(
        "From a random start FedRep needs more rounds than FLUTE",
        [(above(np.log(each["fedrep_random"]), np.log(each["flute"])),) for each in rounds],
        f"rounds, geometric mean: FLUTE {_range(ours)}, FedRep(RI) {_range(theirs)}",
    )


def _edge(rows: Sequence[Row[Cell]]) -> Claim:
    """FedRep's error over FLUTE's, at the smallest and the largest k."""
    cases, texts = [], []
    for group in grouped(rows, lambda row: (row.cell.clients, row.cell.samples)):
        few, many = group[0], group[-1]
        low, high = (row.ratio("fedrep", "flute") for row in (few, many))
        cases.append((_apart(low, high, few, many),))
        gains = f"{100 * (low.value - 1):.1f} → {100 * (high.value - 1):.1f} %"
        texts.append(f"M {few.cell.clients}, N {few.cell.samples}: {gains}")
    figures = "edge at the smallest and the largest k: " + "; ".join(texts)
    return Claim("FLUTE's edge over FedRep shrinks as k grows", cases, figures)


def _clients(rows: Sequence[Row[Cell]]) -> Claim:
    cases, changes = [], []
    for group in grouped(rows, lambda row: (row.cell.samples, row.cell.rank)):
        few, many = group[0], group[-1]
        low, high = few.mean("flute"), many.mean("flute")
        cases.append((_apart(low, high, few, many),))
        changes.append(100 * (high.value / low.value - 1))
    return Claim("More clients lower FLUTE's error", cases, f"change of the error: {_range(changes)} %")


def _apart(one: Estimate, other: Estimate, first: Row[Cell], last: Row[Cell]) -> Difference:
    return above_apart(one, other, (len(first["flute"]), len(last["flute"])))


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if values else "none"


def largest(results: Results[Cell]) -> list[Row[Cell]]:
    """The rows of most clients with most samples."""
    return grouped(rows_of(results), lambda row: (row.cell.clients, row.cell.samples))[-1]


@panels("distance to the truth", largest, shared=False)
def plot(axis: "Axes", row: Row[Cell]) -> None:
    cell = row.cell
    for name, label in ITERATIVE.items():
        band(axis, cell.stored + 1, row[f"{name}_history"], label)
    levels(axis, row, LEVELS)
    axis.set(title=f"k = {cell.rank}, M = {cell.clients}, N = {cell.samples}", xlabel="round", xscale="log")


synthetic = partial(
    Experiment[Cell],
    replicate=replicate,
    tables=(
        distances(
            "the truth",
            "",
            "Step 0.03. FedRep takes the mean of the clients' gradients or, “summed”, their sum.",
            "Local: each client alone, by least squares (where N ≥ d) or by ridge with a cross-validated penalty.",
        ),
        distances("the best model of rank k", "_best"),
        claimed("The paper's claims", claims),
    ),
    plot=plot,
)
