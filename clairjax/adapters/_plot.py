"""The heat map of a report: clients by modules."""

from pathlib import Path

import numpy as np

from ._refine import Refinement
from ._verdict import MEMBER


MOST_LABELS = 40


def heat_map(refinement: Refinement, path: Path) -> None:
    """Median off-subspace distance over the threshold; crosses for votes against, red names for non-members."""
    try:
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the heat map needs matplotlib: pip install 'clairjax[experiments]'") from error
    clients, modules = list(refinement.verdicts), list(refinement.findings)
    table = np.array(
        [[refinement.findings[module].distance.get(name, np.nan) for module in modules] for name in clients]
    )
    figure = Figure(figsize=_size(clients, modules), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(np.clip(table, 0.1, 10), cmap="PuOr_r", norm=LogNorm(0.1, 10), aspect="auto")
    for place, module in enumerate(modules):
        each = refinement.findings[module]
        out = [
            row
            for row, name in enumerate(clients)
            if each.decided and name in each.clients and name not in each.members
        ]
        axis.plot([place] * len(out), out, "x", color="black", markersize=5)
    bar = figure.colorbar(image, label="median off-subspace distance / threshold")
    bar.set_ticks([0.1, 0.3, 1, 3, 10], labels=["≤ 0.1", "0.3", "1", "3", "≥ 10"])
    axis.set_yticks(range(len(clients)), clients, parse_math=False)  # names may hold a $
    for label, name in zip(axis.get_yticklabels(), clients, strict=True):
        label.set_color("black" if refinement.verdicts[name].verdict == MEMBER else "crimson")
    if len(modules) <= MOST_LABELS:
        axis.set_xticks(range(len(modules)), _short(modules), rotation=90)
    else:
        axis.set_xlabel(f"{len(modules)} modules, in the order of report.json")
    axis.set_title("Who is off the shared row space (×: voted out of the module; red: not a member)", fontsize=9)
    figure.savefig(path, dpi=120)


def _size(clients: list[str], modules: list[str]) -> tuple[float, float]:
    return min(4 + 0.35 * min(len(modules), MOST_LABELS), 16), min(2.5 + 0.28 * len(clients), 20)


def _short(modules: list[str]) -> list[str]:
    """The names without the words that all begin with."""
    words = [module.split(".") for module in modules]
    common = 0
    while all(len(each) > common + 1 and each[common] == words[0][common] for each in words):
        common += 1
    return [".".join(each[common:]) for each in words]
