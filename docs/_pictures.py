"""The pictures of the concepts page, drawn at build time. Data are NumPy's; nothing is compiled."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle


BLUE, ORANGE, GREY = "#3b6ea8", "#d1602b", "0.55"
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "clairjax"}


def row_space() -> Figure:
    """Rows of five clients' matrices: four share a line, one does not."""
    figure = Figure((4.6, 3.2), layout="constrained")
    axis = figure.subplots()
    rng = np.random.default_rng(1)
    line, other = np.array([0.9, 0.44]), np.array([-0.35, 0.94])
    for client in range(4):
        rows = rng.normal(size=(4, 1)) * line + 0.05 * rng.normal(size=(4, 2))
        label = "rows of four clients' changes" if client == 0 else None
        axis.plot(*rows.T, "o^sD"[client], color=BLUE, markersize=5, label=label)
    rows = rng.normal(size=(4, 1)) * other + 0.05 * rng.normal(size=(4, 2))
    axis.plot(*rows.T, "X", color=ORANGE, markersize=7, label="rows of a stranger's change")
    axis.axline((0, 0), line, color=BLUE, linewidth=1, linestyle="--", zorder=0)
    axis.text(1.45, 0.2, "the shared\nrow space", color=BLUE)
    axis.set(xlim=(-2.1, 2.5), ylim=(-1.5, 1.7), xticks=(0,), yticks=(0,), xlabel="input 1", ylabel="input 2")
    axis.legend(frameon=False, loc="upper left")
    return figure


def contrasts() -> Figure:
    """A difference of two clients has no backbone left, and few directions."""
    figure = Figure((6.4, 2.1), layout="constrained")
    rng = np.random.default_rng(2)
    backbone = rng.normal(size=(12, 18))
    shared = np.repeat(rng.normal(size=6), 3)[None]
    first, second = (backbone + rng.normal(size=(12, 1)) @ shared for _ in range(2))
    titles = ("$W_j$: backbone and change", "$W_k$: backbone and change", "contrast $W_j - W_k$")
    axes = figure.subplots(1, 3, gridspec_kw={"wspace": 0.12})
    for axis, image, title in zip(axes, (first, second, first - second), titles, strict=True):
        axis.imshow(image, cmap="RdBu_r", vmin=-4, vmax=4)
        axis.set_title(title, fontsize=9)
        axis.set(xticks=(), yticks=())
    for axis, sign in zip(axes, "−=", strict=False):
        axis.text(1.075, 0.5, sign, fontsize=15, ha="center", va="center", transform=axis.transAxes)
    return figure


def _example() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The README's clients: contrasts [10, 10, 40, 30], the true row space's complement, and who is out."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(2, 30))
    truth = rng.normal(size=(10, 40, 2)) @ shared
    out = np.array([3, 7])
    truth[out] += 0.3 * rng.normal(size=(2, 40, 30))
    reported = truth + 0.2 * rng.normal(size=truth.shape)
    basis = np.linalg.qr(shared.T)[0]
    return reported[:, None] - reported[None, :], np.eye(30) - basis @ basis.T, out


def vote() -> Figure:
    """Distances outside the row space, pair by pair, and the votes that they give."""
    differences, outside, out = _example()
    distances = np.linalg.norm(differences @ outside, axis=(2, 3))
    figure = Figure((6.4, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    image = left.imshow(distances, cmap="Blues")
    figure.colorbar(image, ax=left, label="off-subspace distance", shrink=0.85)
    left.set(xlabel="client", ylabel="client", xticks=range(0, 10, 3), yticks=range(0, 10, 3))
    votes = (np.sum(distances < 12, axis=1) - 1) / 9
    right.bar(range(10), votes, color=BLUE)
    right.axhline(0.5, color="0.2", linewidth=1, linestyle="--")
    right.text(3, 0.52, "α", ha="center")
    for k in out:
        right.text(k, 0.01, "0", color=ORANGE, ha="center")
    right.set(xlabel="client", ylabel="share of the others\nwithin the threshold", xticks=range(0, 10, 3), ylim=(0, 1))
    return figure


def off_subspace() -> Figure:
    """A contrast, its part inside the row space and its part outside."""
    figure = Figure((4.4, 2.6), layout="constrained")
    axis = figure.subplots()
    along, off = np.array([2.4, 0.0]), np.array([0.0, 1.3])
    axis.axhline(0, color=BLUE, linewidth=1, linestyle="--")
    axis.text(3.55, -0.08, "row space", color=BLUE, ha="right", va="top")
    arrow = {"arrowstyle": "-|>", "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
    for start, end, colour in (((0, 0), along + off, "0.2"), ((0, 0), along, BLUE), (along, along + off, ORANGE)):
        axis.annotate("", end, start, arrowprops=arrow | {"color": colour})
    axis.text(1.05, 0.78, "contrast $D_{jk}$", color="0.2", ha="right")
    axis.text(1.1, -0.08, "$D_{jk}P$: allowed to differ", color=BLUE, ha="center", va="top")
    axis.text(2.47, 0.6, "$D_{jk}P_\\perp$: its length is the\noff-subspace distance", color=ORANGE, va="center")
    axis.set(xlim=(-0.2, 4.3), ylim=(-0.45, 1.5))
    axis.axis("off")
    return figure


def rows_or_columns() -> Figure:
    """Shared rows: one A, a B for each. Shared columns: one B, an A for each."""
    figure = Figure((6.4, 2.4), layout="constrained")
    for axis, title, up, down in (
        (figure.add_subplot(1, 2, 1), "shared rows: $W_k = B_k A$", GREY, BLUE),
        (figure.add_subplot(1, 2, 2), "shared columns: $W_k = B A_k$", BLUE, GREY),
    ):
        for place, shade in enumerate((0.35, 0.7)):
            left = 4.6 * place
            for corner, size, colour in (((left, 0), (0.6, 2.4), up), ((left + 0.8, 1.8), (3, 0.6), down)):
                axis.add_patch(Rectangle(corner, *size, facecolor=colour, alpha=shade if colour == GREY else 1))
            axis.text(left + 0.8, 1.2, f"client {place + 1}", va="center")
        axis.set_title(title, fontsize=10)
        axis.set(xlim=(-0.2, 8.7), ylim=(-0.2, 2.6), aspect="equal")
        axis.axis("off")
    return figure


def adjacency() -> Figure:
    """One release for two neighbours: exchanging a user moves it twice as far as adding one."""
    figure = Figure((6.4, 2.5), layout="constrained")
    grid = np.linspace(-4, 6, 400)
    density = lambda centre: np.exp(-((grid - centre) ** 2) / 2)
    titles = ("add-or-remove-one: moves by ζ", "replace-one: moves by up to 2ζ")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, title, move in zip(axes, titles, (0.9, 1.8), strict=True):
        for centre, colour, label in ((0, BLUE, "with $D$"), (move, ORANGE, "with its neighbour $D'$")):
            axis.plot(grid, density(centre), color=colour, label=label)
            axis.fill_between(grid, density(centre), color=colour, alpha=0.15)
        axis.annotate("", (move, 1.1), (0, 1.1), arrowprops={"arrowstyle": "<->", "shrinkA": 0, "shrinkB": 0})
        axis.text(move / 2, 1.16, "ζ" if move < 1 else "2ζ", ha="center")
        axis.set_title(title, fontsize=9)
        axis.set(xlabel="noisy sum that is released", yticks=(), xticks=(), ylim=(0, 1.4), xlim=(-3.4, 5.4))
    axes[0].legend(frameon=False, loc="upper right", fontsize=8)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "row_space": row_space,
    "contrasts": contrasts,
    "vote": vote,
    "off_subspace": off_subspace,
    "rows_or_columns": rows_or_columns,
    "adjacency": adjacency,
}


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, draw in PICTURES.items():
            draw().savefig(folder / f"{name}.svg", metadata={"Date": None}, facecolor="white")
