"""CLAIR, section 8: what Table 3, Figures 2 and 3 and the kinds of contamination share: replicate, tables, plot."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._blend import CANDIDATES
from .._typing import Key
from ..alignment import VERDICTS as WORDS
from ..models import CopyingTransformer
from ..sweep import Estimate, Results
from ._copying_aggregation import aggregate, blends, chosen
from ._copying_backbone import backbones
from ._copying_clients import Cell, draw_tasks, draw_tests, draw_validation, judge, losses, train_fleet
from ._copying_training import Pretraining
from ._experiment import Experiment
from ._figure import legend_below, new_figure, points
from ._table import Column, Row, Tabulated, rows_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

small = partial(Cell, sequences=100, test_sequences=50, validation_sequences=50, pretraining_steps=20)
printed = partial(Cell, test_sequences=2000)
REGIMES = ("homogeneous", "heterogeneous")

PAPER = {  # per cent
    "homogeneous": {"local": 78.27, "fedavg": 62.94, "oracle_fedavg": 79.17, "published": 78.48},
    "heterogeneous": {"local": 77.77, "fedavg": 75.96, "oracle_fedavg": 76.96, "published": 77.90},
}
METHODS = {  # label and marker
    "local": ("local", "_"),
    "fedavg": ("FedAvg", "x"),
    "oracle_fedavg": ("oracle FedAvg", "s"),
    "published": ("CLAIR as published", "v"),
    "auto": ("clair", "o"),
    "auto_shrink": ("clair, shrink", "^"),
    "dual": ("clair, dual", "D"),
    "dual_shrink": ("clair, dual, shrink", "P"),
    "median": ("members' median", "*"),
    "one_t": ("one t by validation", "h"),
}
CLAIRS = ("published", "auto", "dual")  # those that give a verdict


def replicate(key: Key, cell: Cell, models: Mapping[Pretraining, CopyingTransformer]) -> dict[str, Array]:
    """Each method's accuracy for each benign client, and what CLAIR says of the clients, per layer and together."""
    task_key, train_key, test_key, validation_key = jax.random.split(key, 4)
    model = jax.tree.map(jnp.asarray, models[cell.pretraining])
    tasks = draw_tasks(cell, task_key)
    fleet = train_fleet(cell, model, tasks, key=train_key)
    frozen = jnp.stack([layer.weight for layer in model.projections])
    methods, verdicts, pooled = aggregate(cell, fleet, frozen)
    updates = (cell.scale * fleet.up @ fleet.down).astype(fleet.attention.dtype)
    members = jnp.asarray(pooled.members)
    blended = blends(fleet.attention, updates, members)
    place = chosen(losses(model, fleet, blended, draw_validation(cell, tasks, key=validation_key)), members)
    methods |= {"median": blended[0], "one_t": blended[place]}
    accuracies = judge(model, fleet, jnp.stack(list(methods.values())), draw_tests(cell, tasks, key=test_key))
    outputs = {**dict(zip(methods, accuracies, strict=True)), "kinds": pooled.kind, "relative": pooled.relative}
    outputs["t"] = jnp.asarray(CANDIDATES)[place]
    for name, verdict in verdicts.items():
        outputs |= {
            f"{name}_members": verdict.members,
            f"{name}_layers": verdict.layers,
            f"{name}_ranks": verdict.ranks,
            f"{name}_status": verdict.status,
        }
    return outputs


def accuracy(row: Row[Cell], name: str) -> np.ndarray:
    """In per cent, mean over the benign clients, one number a replicate."""
    return 100 * row[name].mean(1)


def mean_accuracy(row: Row[Cell], name: str) -> Estimate:
    return Estimate.of(accuracy(row, name))


def paper(row: Row[Cell], name: str) -> float:
    return PAPER[row.cell.regime][name]


def gain(row: Row[Cell], name: str) -> Estimate:
    """Over local LoRA, in points."""
    return Estimate.of(accuracy(row, name) - accuracy(row, "local"))


def share(row: Row[Cell]) -> str | None:
    """The largest of clair's gains over oracle FedAvg's."""
    oracle = gain(row, "oracle_fedavg").value
    best = max(gain(row, name).value for name in METHODS if name.startswith(("auto", "dual")))
    return f"{100 * best / oracle:.0f} %" if oracle > 0 else None


def counted_t(row: Row[Cell]) -> str:
    """Each t that was chosen, and how often."""
    values, numbers = np.unique(row["t"], return_counts=True)
    return ", ".join(f"{value:g} × {number}" for value, number in zip(values, numbers, strict=True))


def right(row: Row[Cell], name: str) -> np.ndarray:
    """Whether a verdict is right, one boolean a replicate and, of `…_layers`, layer."""
    return (row[name] == (np.arange(row.cell.clients) < row.cell.benign)).all(-1)


def exact(row: Row[Cell], name: str) -> str:
    verdicts = right(row, f"{name}_members")
    return f"{verdicts.sum()} of {len(verdicts)}"


def exact_layers(row: Row[Cell], name: str) -> Estimate:
    return Estimate.of(right(row, f"{name}_layers").sum(1))


def span(row: Row[Cell], name: str) -> str | None:
    ranks = row[f"{name}_ranks"]
    return f"{ranks.min()}–{ranks.max()}" if ranks.size else None


def extreme(row: Row[Cell], of: Callable[[np.ndarray], float], clients: slice) -> float | None:
    relative = row["relative"][:, clients]
    return float(of(relative)) if relative.size else None


def named(row: Row[Cell], clients: slice) -> str | None:
    """The verdicts on these clients, and how often each was given."""
    given = np.bincount(row["kinds"][:, clients].ravel(), minlength=len(WORDS))
    return ", ".join(f"{word} {number}" for word, number in zip(WORDS, given, strict=True) if number) or None


WHERE = (Column("regime"), Column("contamination"))
ACCURACIES = (
    column
    for name, (label, _) in METHODS.items()
    for column in (
        Column(label, partial(mean_accuracy, name=name), 2),
        *((Column("paper", partial(paper, name=name), 2),) if name in PAPER["homogeneous"] else ()),
    )
)
GAINS = (Column(label, partial(gain, name=name), 2) for name, (label, _) in METHODS.items() if name != "local")
VERDICTS = (
    column
    for name in CLAIRS
    for column in (
        Column(METHODS[name][0], partial(exact, name=name)),
        Column("layers", partial(exact_layers, name=name), 2),
        Column("ranks", partial(span, name=name)),
    )
)
NAMED = (
    Column("benign", lambda row: named(row, slice(row.cell.benign))),
    Column("agreement, from", lambda row: extreme(row, np.min, slice(row.cell.benign)), 2),
    Column("contaminated", lambda row: named(row, slice(row.cell.benign, None))),
    Column("agreement, up to", lambda row: extreme(row, np.max, slice(row.cell.benign, None)), 2),
)
TABLES = (
    Tabulated[Cell](
        lambda results: (
            f"Masked next-token accuracy (%), mean over {results.cells[0].benign} benign clients and "
            f"{results.replicates} replicates ±standard error"
        ),
        (*WHERE, *ACCURACIES),
        (
            "The output layer is each client's own with every method. The paper does not say what its "
            "contaminated client is trained on.",
            "clair takes the adapters' factors and is given nothing else. They start from one A, so the shared "
            "row space is that of the start and clair keeps nearly all; its dual aligns columns, which were "
            "learned.",
        ),
    ),
    Tabulated[Cell](
        "Against local LoRA: points, paired over replicates",
        (*WHERE, *GAINS, Column("t", counted_t), Column("share of oracle's gain", share)),
        (
            "Members' median: their geometric median in place of each member's own adapter, as `OUT/global`. One t: "
            "t · own + (1 − t) · median, with the t that the members' own validation losses choose for all of them.",
            "Share: the largest of clair's gains, dual and shrinkage included, over that of oracle FedAvg.",
        ),
    ),
    Tabulated[Cell](
        "Who belongs: replicates in which all clients are judged right; layers of eight that alone are right",
        (*WHERE, *VERDICTS, *NAMED),
        (
            "As published: a client belongs if its votes, averaged over the layers, are at least 1/2. clair and "
            "its dual: one verdict, of pool, by all layers together. Agreement is over the fleet's usual one, the "
            "least and the most over all replicates.",
        ),
    ),
)


def plot(results: Results[Cell]) -> "Figure":
    """Each benign client's accuracy, and its change against local; the change alone of many cells."""
    rows = rows_of(results)
    both = len(rows) <= 2
    figure, axes = new_figure((1 + both) * len(rows), shared=False)
    panels = iter(axes)
    for row in rows:
        if both:
            _clients(next(panels), row, "accuracy (%)", 0)
        _clients(panel := next(panels), row, "change against local (points)", row["local"])
        if abs(accuracy(row, "fedavg") - accuracy(row, "local")).mean() > 3:
            panel.set_yscale("symlog", linthresh=1)  # FedAvg's loss would hide the others' changes
            panel.yaxis.set_major_formatter("{x:g}")
    return legend_below(figure, axes[0], columns=4)


def _clients(axis: "Axes", row: Row[Cell], title: str, origin: np.ndarray | float) -> None:
    places = np.arange(1, row.cell.benign + 1)
    for number, (name, (label, marker)) in enumerate(METHODS.items()):
        estimates = map(Estimate.of, 100 * (row[name] - origin).T)
        beside = places + 0.1 * (number - len(METHODS) // 2)
        points(axis, beside, estimates, label, fmt=marker, markersize=3.5, linewidth=0.8, capsize=0)
    cell = row.cell
    axis.set(title=f"{cell.regime}, {cell.contamination}", xlabel="benign client", xticks=places, ylabel=title)


copying = partial(Experiment[Cell], replicate=replicate, tables=TABLES, plot=plot, prepare=backbones)
