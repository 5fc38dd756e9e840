"""CLAIR, section 8: the copying Transformers, Table 3 and Figures 2 and 3."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._typing import Key
from ..alignment._reach import FAR
from ..sweep import Results
from ._copying_aggregation import aggregate
from ._copying_backbone import backbone
from ._copying_clients import Cell, draw_tasks, draw_tests, judge, train_fleet
from ._experiment import Experiment
from ._presets import COPYING, CopyingSize
from ._replicates import kept
from ._table import Estimate, Table, legend_below, mean, new_figure, save


if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Row(NamedTuple):
    """A row as printed, in per cent."""

    local: float
    fedavg: float
    oracle_fedavg: float
    published: float


PAPER = {
    "homogeneous": Row(78.27, 62.94, 79.17, 78.48),
    "heterogeneous": Row(77.77, 75.96, 76.96, 77.90),
}
LABELS = {
    "local": "local",
    "fedavg": "FedAvg",
    "oracle_fedavg": "oracle FedAvg",
    "published": "CLAIR as published",
    "auto": "clair",
    "auto_shrink": "clair, shrink",
    "dual": "clair, dual",
    "dual_shrink": "clair, dual, shrink",
}


def cells(preset: CopyingSize) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            regime,  # type: ignore[arg-type]  # data
            kind,  # type: ignore[arg-type]
            sequences=preset.sequences,
            test_sequences=preset.test_sequences,
            pretraining_steps=preset.pretraining_steps,
        )
        for regime in preset.regimes
        for kind in preset.kinds
    )


def prepare(cells: Sequence[Any], out: str | os.PathLike[str] | None, progress: bool | None) -> None:
    """Pretrain what the cells need, or read it."""
    for settings in dict.fromkeys(cell.pretraining for cell in cells):
        backbone(settings, out, progress=progress)


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """Each method's accuracy for each benign client, and what CLAIR says of the clients, per layer and together."""
    task_key, train_key, test_key = jax.random.split(key, 3)
    model = jax.tree.map(jnp.asarray, backbone(cell.pretraining))
    tasks = draw_tasks(cell, task_key)
    fleet = train_fleet(cell, model, tasks, key=train_key)
    frozen = jnp.stack([layer.weight for layer in model.projections])
    methods, verdicts, reaches = aggregate(cell, fleet, frozen)
    accuracies = judge(model, fleet, jnp.stack(list(methods.values())), draw_tests(cell, tasks, key=test_key))
    outputs = {**dict(zip(methods, accuracies, strict=True)), "reaches": reaches}
    for name, verdict in verdicts.items():
        outputs |= {
            f"{name}_members": verdict.members,
            f"{name}_layers": verdict.layers,
            f"{name}_ranks": verdict.ranks,
            f"{name}_status": verdict.status,
        }
    return outputs


def per_cent(values: np.ndarray) -> Estimate:
    """Of one accuracy a replicate."""
    estimate = mean(values)
    return Estimate(100 * estimate.value, 100 * estimate.error)


def average(results: Results, cell: Cell, name: str) -> np.ndarray:
    """Mean over the benign clients, one number a replicate."""
    return kept(results, cell)[name].mean(1)


def exact(results: Results, cell: Cell, name: str) -> np.ndarray:
    """Whether the clients' verdict is right, one boolean a replicate."""
    benign = np.arange(cell.clients) < cell.benign
    return (kept(results, cell)[f"{name}_members"] == benign).all(1)


def exact_layers(results: Results, cell: Cell, name: str) -> Estimate:
    """Layers, of eight, whose own verdict is right."""
    benign = np.arange(cell.clients) < cell.benign
    return mean((kept(results, cell)[f"{name}_layers"] == benign).all(2).sum(1))


CLAIRS = ("published", "auto", "dual")


def report(results: Results) -> list[Table]:
    ordered = cast(tuple[Cell, ...], results.cells)
    replicates = len(next(iter(results.failed.values())))
    benign = ordered[0].benign
    where = ("regime", "contamination")
    return [
        Table(
            f"Masked next-token accuracy (%), mean over {benign} benign clients and {replicates} replicates "
            "±standard error",
            (*where, *(title for name, label in LABELS.items() for title in _titles(name, label))),
            tuple((*_where(cell), *_accuracies(results, cell)) for cell in ordered),
            (
                "The output layer is each client's own with every method. The paper does not say what its "
                "contaminated client is trained on.",
                "clair takes the adapters' factors and is given nothing else. They start from one A, so the shared "
                "row space is that of the start and clair keeps nearly all; its dual aligns columns, which were "
                "learned.",
                *_failures(results),
            ),
        ),
        Table(
            "Against local LoRA: points, paired over replicates",
            (*where, *(label for name, label in LABELS.items() if name != "local"), "share of oracle's gain"),
            tuple((*_where(cell), *_gains(results, cell)) for cell in ordered),
            ("Share: the largest of clair's gains, dual and shrinkage included, over that of oracle FedAvg.",),
        ),
        Table(
            "Who belongs: replicates in which all clients are judged right; layers of eight that alone are right",
            (
                *where,
                *(title for name in CLAIRS for title in (LABELS[name], "layers", "ranks")),
                "reach: honest, up to",
                "contaminated, from",
            ),
            tuple(
                (
                    *_where(cell),
                    *(text for name in CLAIRS for text in _judged(results, cell, name)),
                    *_reaches(results, cell),
                )
                for cell in ordered
            ),
            (
                "As published: a client belongs if its votes, averaged over the layers, are at least 1/2. clair and "
                "its dual: one verdict. A client is out if most layers' votes on the row space say so, or if its "
                "reach, its distance to the middle one of the others over all layers, whole and outside the row "
                f"spaces, is over {FAR} times the middle client's; the extremes of it are over all replicates.",
            ),
        ),
    ]


def _where(cell: Cell) -> tuple[str, str]:
    return cell.regime, cell.contamination


def _titles(name: str, label: str) -> tuple[str, ...]:
    return (label, "paper") if name in Row._fields else (label,)


def _accuracies(results: Results, cell: Cell) -> list[str]:
    texts = []
    for name in LABELS:
        texts.append(per_cent(average(results, cell, name)).text(2))
        if name in Row._fields:
            texts.append(f"{getattr(PAPER[cell.regime], name):.2f}")
    return texts


def gain(results: Results, cell: Cell, name: str) -> Estimate:
    """Over local LoRA, in points."""
    return per_cent(average(results, cell, name) - average(results, cell, "local"))


def _gains(results: Results, cell: Cell) -> list[str]:
    gains = {name: gain(results, cell, name) for name in LABELS if name != "local"}
    oracle = gains["oracle_fedavg"].value
    best = max(gains[name].value for name in ("auto", "auto_shrink", "dual", "dual_shrink"))
    share = f"{100 * best / oracle:.0f} %" if oracle > 0 else "–"
    return [*(estimate.text(2) for estimate in gains.values()), share]


def _judged(results: Results, cell: Cell, name: str) -> tuple[str, str, str]:
    right = exact(results, cell, name)
    ranks = kept(results, cell)[f"{name}_ranks"]
    span = f"{ranks.min()}–{ranks.max()}" if ranks.size else "–"
    return f"{right.sum()} of {len(right)}", exact_layers(results, cell, name).text(2), span


def _reaches(results: Results, cell: Cell) -> tuple[str, str]:
    far = kept(results, cell)["reaches"]
    if not far.size:
        return "–", "–"
    return f"{far[:, : cell.benign].max():.2f}", f"{far[:, cell.benign :].min():.2f}"


def _failures(results: Results) -> tuple[str, ...]:
    return tuple(
        f"{cell.regime}, {cell.contamination}: replicates {', '.join(map(str, failed))} failed, left out."  # type: ignore[attr-defined]
        for cell, failed in results.failures.items()
    )


MARKERS = {
    "local": "_",
    "fedavg": "x",
    "oracle_fedavg": "s",
    "published": "v",
    "auto": "o",
    "auto_shrink": "^",
    "dual": "D",
    "dual_shrink": "P",
}


def plot(results: Results, path: str | os.PathLike[str]) -> None:
    """Figures 2 and 3: each benign client's accuracy, and its change against local; the change alone of many cells."""
    ordered = cast(tuple[Cell, ...], results.cells)
    both = len(ordered) <= 2
    figure, axes = new_figure((1 + both) * len(ordered), shared=False)
    for number, cell in enumerate(ordered):
        panels = axes[(1 + both) * number : (1 + both) * (number + 1)]
        outputs = kept(results, cell)
        if both:
            _clients(panels[0], {name: outputs[name] for name in LABELS}, cell)
            panels[0].set_ylabel("accuracy (%)")
        _clients(panels[-1], {name: outputs[name] - outputs["local"] for name in LABELS}, cell)
        panels[-1].set_ylabel("change against local (points)")
        if abs(average(results, cell, "fedavg") - average(results, cell, "local")).mean() > 0.03:
            panels[-1].set_yscale("symlog", linthresh=1)  # FedAvg's loss would hide the others' changes
            panels[-1].yaxis.set_major_formatter("{x:g}")
    legend_below(figure, axes[0], columns=4)
    save(figure, path)


def _clients(axis: "Axes", values: dict[str, np.ndarray], cell: Cell) -> None:
    places = np.arange(1, cell.benign + 1)
    for number, (name, marker) in enumerate(MARKERS.items()):
        points = [per_cent(column) for column in values[name].T]
        centres, errors = zip(*points, strict=True)
        beside = places + 0.1 * (number - len(MARKERS) // 2)
        errors = np.nan_to_num(errors)
        axis.errorbar(beside, centres, errors, fmt=marker, markersize=3.5, linewidth=0.8, label=LABELS[name])
    axis.set(title=f"{cell.regime}, {cell.contamination}", xlabel="benign client", xticks=places)


def _experiment(name: str, summary: str) -> Experiment:
    return Experiment(
        name=name,
        summary=summary,
        presets=COPYING[name],
        cells=cells,
        replicate=replicate,
        report=report,
        plot=plot,
        prepare=prepare,
    )


TABLE_3 = _experiment(
    "clair-table3", "CLAIR, Table 3: accuracy of fine-tuned copying Transformers, aggregated five ways"
)
FIGURE_2 = _experiment("clair-fig2", "CLAIR, Figure 2: each client's accuracy where all benign clients share a task")
FIGURE_3 = _experiment("clair-fig3", "CLAIR, Figure 3: each client's accuracy where benign clients differ")
KINDS = _experiment(
    "clair-contaminations", "What the contaminated client of CLAIR's section 8 may have been trained on"
)
