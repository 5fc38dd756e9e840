"""The picture of a report: how each client agrees with the others, and how large its update is."""

from pathlib import Path

import numpy as np

from ._refine import Refinement
from ._verdict import FLIPPED, MEMBER, OTHER_ROWS, RESCALED, UNDECIDED, UNRELATED, ClientVerdict


STYLES = {  # colour and marker; colours that the colour-blind tell apart
    MEMBER: ("#0072b2", "o"),
    RESCALED: ("#e69f00", "s"),
    UNDECIDED: ("#888888", "D"),
    OTHER_ROWS: ("#cc79a7", "P"),
    UNRELATED: ("#d55e00", "X"),
    FLIPPED: ("#a50026", "<"),
}
LEAST, MOST = 1 / 30, 30  # sizes that are drawn where they are


def heat_map(refinement: Refinement, path: Path) -> None:
    """A row a client: its agreement beside what is usual, its size beside the usual one, and the verdict."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator
    except ImportError as error:
        raise ImportError("the picture needs matplotlib: pip install 'clairjax[experiments]'") from error
    verdicts = list(refinement.verdicts.values())
    shown = [(row, each) for row, each in enumerate(verdicts) if each.agreement is not None]
    figure = Figure(figsize=(9, min(1.8 + 0.27 * len(verdicts), 40)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    if shown:
        usual, spread = _usual(shown[0][1])
        left.axvspan(usual - spread, usual + spread, color=STYLES[MEMBER][0], alpha=0.12, linewidth=0)
        left.axvline(0, color="black", linewidth=0.6)
        right.axvspan(1 / 2, 2, color=STYLES[MEMBER][0], alpha=0.12, linewidth=0)
        for row, each in shown:
            _point(left, row, each, usual, each.agreement)
            _point(right, row, each, 1.0, float(np.clip(each.size or 1.0, LEAST, MOST)))
    left.set(xlabel="agreement with the others (band: usual ± spread)", ylim=(len(verdicts) - 0.5, -0.5))
    right.set(xlabel="size, over the usual one", xscale="log", xlim=(LEAST / 1.3, MOST * 1.3))
    right.xaxis.set_minor_locator(NullLocator())
    right.set_xticks([LEAST, 0.5, 1, 2, 10, MOST], ["≤1/30", "½", "1", "2", "10", "≥30"])
    left.set_yticks(range(len(verdicts)), [each.client for each in verdicts], parse_math=False)  # may hold a $
    words = right.secondary_yaxis("right")
    words.set_yticks(range(len(verdicts)), [each.verdict for each in verdicts])
    words.tick_params(length=0)
    for axis in (left, right):
        axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        axis.tick_params(axis="y", length=0)
        axis.spines[["top", "right"]].set_visible(False)
    labels = zip(left.get_yticklabels(), words.get_yticklabels(), verdicts, strict=True)
    for name, word, each in labels:
        colour = STYLES.get(each.verdict, ("black", ""))[0]
        word.set_color(colour)
        name.set_color("black" if each.client in refinement.members else colour)
    figure.savefig(path, dpi=120)


def _usual(any_one: ClientVerdict) -> tuple[float, float]:
    return any_one.usual or 0.0, any_one.spread or 0.0


def _point(axis, row: int, each: ClientVerdict, usual: float, value: float | None) -> None:  # type: ignore[no-untyped-def]
    """With a line to what is usual: who is far has a long one."""
    colour, marker = STYLES[each.verdict]
    axis.plot([usual, value], [row, row], color=colour, linewidth=1.2, alpha=0.6)
    axis.plot([value], [row], marker, color=colour, markersize=6)
