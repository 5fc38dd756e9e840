"""FLUTE, Figure 2: heads of three clients with two of three classes each, optimised locally and together."""

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._typing import Key
from ..federated import collapse_metrics, neural_collapse
from ..sweep import Estimate, Results
from ._experiment import Experiment, Preset, grid
from ._figure import new_figure
from ._table import Column, Row, Tabulated, rows_of


if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELD = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]], bool)  # clients, classes
DIMENSION = 2  # in which three classes have a simplex, and a picture
SHAPE = (*HELD.shape, DIMENSION)
OUT = -1e30  # a logit that counts for nothing
FEATURES, WEIGHTS = 0.005, 0.0025  # λ1 and λ2, as in the authors' code
RATE = 0.5
WORDS = {
    "local": "a client's own features",
    "shared": "shared features",
    "own": "softmax over its own classes",
    "all": "softmax over all classes",
}


class Cell(NamedTuple):
    """`features`: each client's own, or one for each class; `softmax`: over all classes, or those a client has."""

    features: str
    softmax: str
    collapse: float = 0.0  # λ3
    steps: int = 20_000


class Point(NamedTuple):
    features: Float[Array, "clients classes dimension"]  # free, in place of a body; of client 0 where they are shared
    heads: Float[Array, "clients classes dimension"]


def loss(point: Point, cell: Cell) -> Float[Array, ""]:
    """(54) with free features: every sample of a class is one point."""
    features = jnp.broadcast_to(point.features[:1], SHAPE) if cell.features == "shared" else point.features
    logits = jnp.einsum("icd,ied->ice", features, point.heads)
    logits = jnp.where(HELD[:, None] | (cell.softmax == "all"), logits, OUT)
    entropy = jax.nn.logsumexp(logits, 2) - jnp.diagonal(logits, axis1=1, axis2=2)
    size = FEATURES * jnp.sum(features**2, 2)
    data = jnp.sum(jnp.where(HELD, entropy + size, 0)) / int(HELD.sum())
    apart = jnp.mean(jax.vmap(neural_collapse)(point.heads, jnp.asarray(HELD)))
    return data + WEIGHTS * jnp.sum(point.heads**2) / len(HELD) + cell.collapse * apart


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """The optimum from a random start: the heads, the cosine between a client's two, and both measures."""
    keys = jax.random.split(key)
    start = Point(*(0.1 * jax.random.normal(each, SHAPE) for each in keys))
    slope = jax.grad(partial(loss, cell=cell))
    down = lambda _, point: jax.tree.map(lambda leaf, tilt: leaf - RATE * tilt, point, slope(point))
    heads = jax.lax.fori_loop(0, cell.steps, down, start).heads
    at_large, alone = collapse_metrics(heads, jnp.asarray(HELD))
    return {"heads": heads, "cosine": jnp.mean(cosines(heads)), "global_nc2": at_large, "local_nc2": alone}


def cosines(heads: Float[Array, "clients classes dimension"]) -> Float[Array, " clients"]:
    """Between the weights of the two classes that a client has."""
    unit = heads / jnp.sqrt(jnp.sum(heads**2, 2, keepdims=True))
    pairs = jnp.asarray([np.flatnonzero(own) for own in HELD])
    first, second = (jnp.take_along_axis(unit, pairs[:, i, None, None], 1)[:, 0] for i in (0, 1))
    return jnp.sum(first * second, 1)


def unit(heads: np.ndarray, shared: bool) -> np.ndarray:
    """Normed weights, turned and mirrored as the problem leaves free: the first of a client, or of all, points up."""
    heads = heads / np.linalg.norm(heads, axis=2, keepdims=True)

    def moved(all_: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        turn = np.array([[first[1], first[0]], [-first[0], first[1]]])
        side = np.sign((second @ turn)[0]) or 1.0
        return all_ @ turn * np.array([side, 1.0])

    if shared:
        return moved(heads, *heads[0, HELD[0]])
    return np.stack([moved(one, *one[own]) for one, own in zip(heads, HELD, strict=True)])


def angle(row: Row[Cell]) -> Estimate:
    return Estimate.of(np.degrees(np.arccos(np.clip(row["cosine"], -1, 1))))


def printed(row: Row[Cell]) -> float | None:
    """Observations B.2 and B.3, which are without the penalty: opposite, or two corners of a simplex of three."""
    if row.cell.collapse:
        return None
    return 180.0 if row.cell.features == "local" else 120.0


def plot(results: Results[Cell]) -> "Figure":
    """Each client's two normed weights: side by side, or about one point where features are shared."""
    rows = rows_of(results)
    figure, axes = new_figure(len(rows), 2.4, 2.7, across=4)
    for axis, row in zip(axes, rows, strict=True):
        shared = row.cell.features == "shared"
        heads = unit(row["heads"][0], shared)
        for client, held in enumerate(HELD):
            # Of different lengths about one point, or the arrows of several would cover each other.
            start, length = ((0.0, 0.0), 1 - 0.2 * client) if shared else ((0.9 * (client - 1) - 0.3, 0.0), 1.0)
            for number in np.flatnonzero(held):
                way, colour = heads[client, number], f"C{client}"
                x, y = start + (length - 0.1) * way + 0.14 * np.array([way[1], -way[0]])
                arrow = {"arrowstyle": "->", "color": colour, "shrinkA": 0, "shrinkB": 0}
                axis.annotate("", start + length * way, start, arrowprops=arrow)
                axis.text(x, y, f"{number + 1}", color=colour, fontsize=9, ha="center", va="center")
        penalty = f"λ3 = {row.cell.collapse:g}" if row.cell.collapse else "no penalty"
        features, softmax = WORDS[row.cell.features], WORDS[row.cell.softmax]
        axis.set(xlim=(-1.6, 1.6), ylim=(-1.1, 1.1), aspect="equal", xticks=[], yticks=[])
        axis.set_title(f"{features}\n{softmax}\n{penalty}", fontsize=9)
        axis.spines[:].set_visible(False)
    figure.supxlabel("weights of the last layer: a colour a client, a number a class", fontsize=9)
    return figure


CELLS = grid(Cell, softmax=("own", "all"), features=("local", "shared"), collapse=(0.0, 0.25))
EXPERIMENT = Experiment[Cell](
    name="flute-fig2",
    summary="FLUTE, Figure 2: heads of three clients with two of three classes, optimised locally and together",
    presets={"smoke": Preset((CELLS[0], *CELLS[2:4]), 1), "laptop": Preset(CELLS, 10), "paper": Preset(CELLS, 10)},
    replicate=replicate,
    tables=(
        Tabulated[Cell](
            "FLUTE, Figure 2: degrees between the weights of a client's two classes, at the optimum of (54)",
            (
                Column("softmax over classes", "softmax"),
                Column("features"),
                Column("λ3", "collapse", 2),
                Column("angle", angle, 2),
                Column("paper", printed, 0),
                Column("Global NC2", "global_nc2"),
                Column("Local NC2", "local_nc2"),
            ),
            (
                "No data: features are free, a point for each class of a client (local), or for each class (shared).",
                "The paper's local picture is that of a softmax over the classes a client has. Its global one does "
                "not follow from shared features alone: the penalty λ3, 0.25 in the authors' code, makes it.",
            ),
        ),
    ),
    plot=plot,
)
