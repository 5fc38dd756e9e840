"""CENTAUR, section 5: the linear rate without noise, the noise floor's slopes, and the choice among private starts."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ..sweep import Estimate, Results
from ._centaur import NOISE, RANK, START, STEP, Floor, Rate, Start, cells, replicate
from ._old import experiment, fit, kept, mean, new_figure
from ._presets import CENTAUR_LINEAR
from ._table import Table


if TYPE_CHECKING:
    from matplotlib.axes import Axes


GROUND = 1e-10  # distances below are rounding


def predicted_floor(noise: float, clip_norm: float, clients: int, features: int) -> float:
    """η/√(1 − (1 − η)²) · σ ζ · E‖G‖/n, G standard normal (d − k) × k: an autoregression driven by the noise
    outside the subspace. The expectation is over 400 draws."""
    draws = np.random.default_rng(0).standard_normal((400, features - RANK, RANK))
    norm = np.linalg.norm(draws, 2, axis=(1, 2)).mean()
    return STEP / math.sqrt(1 - (1 - STEP) ** 2) * noise * clip_norm * float(norm) / clients


def rate(errors: Float[np.ndarray, "replicates rounds"]) -> tuple[Estimate, float]:
    """Factor by which the distance falls in a round, and the smallest R² of a replicate's log-linear fit."""
    factors, fits = [], []
    for series in errors:
        above = series > GROUND
        x, y = np.flatnonzero(above), np.log(series[above])
        slope, intercept = np.polyfit(x, y, 1)
        factors.append(math.exp(slope))
        fits.append(1 - np.var(y - slope * x - intercept) / np.var(y))
    return mean(np.array(factors)), min(fits)


def _of(results: Results, kind: type[Any]) -> list[Any]:
    return [cell for cell in results.cells if isinstance(cell, kind)]


def floors(results: Results, cells: Sequence[Floor], setting: int) -> list[Estimate]:
    return [mean(kept(results, cell)["floor"][:, setting]) for cell in cells]


def by_size(results: Results) -> tuple[Floor, list[Floor], list[Floor]]:
    """The cell in the middle, those along d and those along n."""
    cells: list[Floor] = _of(results, Floor)
    clients, features = (
        max(values, key=values.count) for values in ([c.clients for c in cells], [c.features for c in cells])
    )
    along_features = sorted((c for c in cells if c.clients == clients), key=lambda c: c.features)
    along_clients = sorted((c for c in cells if c.features == features), key=lambda c: c.clients)
    return next(c for c in along_clients if c.clients == clients), along_features, along_clients


BASE = NOISE.index(1.0)
AT_FIXED = len(NOISE)


def slopes(results: Results) -> list[tuple[str, Estimate, float]]:
    """Name, measured and theory's log-log slope of the floor."""
    middle, features, clients = by_size(results)
    d, n = [c.features for c in features], [c.clients for c in clients]
    noise = [mean(kept(results, middle)["floor"][:, i]) for i in range(len(NOISE))]
    return [
        ("noise multiplier", fit(NOISE, noise).slope, 1.0),
        ("clients n, ζ ∝ √(d k log n)", fit(n, floors(results, clients, BASE)).slope, -1.0),
        ("features d, ζ ∝ √(d k log n)", fit(d, floors(results, features, BASE)).slope, 1.0),
        ("features d, ζ held", fit(d, floors(results, features, AT_FIXED)).slope, 0.5),
    ]


def report(results: Results) -> list[Table]:
    return [_rate_table(results), _floor_table(results), _slope_table(results), _start_table(results)]


def _rate_table(results: Results) -> Table:
    rows = []
    for cell in _of(results, Rate):
        errors = kept(results, cell)["errors"]
        factor, straight = rate(errors)
        subsets = "all samples" if cell.batch_size is None else f"2 × {cell.batch_size} drawn"
        theory = f"{1 - cell.step_size:.4f}"  # s_k = 1
        last = f"{errors[:, -1].max():.1e}"
        rows.append(
            (f"{cell.condition:g}", subsets, f"{cell.step_size:.4g}", factor.text(4), theory, f"{straight:.4f}", last)
        )
    return Table(
        "CENTAUR without noise: factor of the distance in a round",
        ("κ", "subsets", "η", "measured", "1 − η s_k²", "smallest R²", "largest last distance"),
        tuple(rows),
        (f"From distance {START}; fitted to the rounds above {GROUND:g}.",),
    )


def _floor_table(results: Results) -> Table:
    rows = []
    _, features, clients = by_size(results)
    for cell in (*features, *(c for c in clients if c not in features)):
        outputs = kept(results, cell)
        for i, (noise, clip_norm) in enumerate(cell.settings):
            found = mean(outputs["floor"][:, i])
            theory = predicted_floor(noise, clip_norm, cell.clients, cell.features)
            share = f"{100 * (1 - outputs['clipped'][:, i].mean()):.2f} %"
            size = str(cell.clients), str(cell.features)
            over = f"{found.value / theory:.3f}"
            rows.append((*size, f"{noise:g}", f"{clip_norm:.3g}", found.text(5), f"{theory:.5f}", over, share))
    return Table(
        f"CENTAUR's noise floor, k = {RANK}, η = {STEP}: mean distance over the second half of the rounds",
        ("n", "d", "σ", "ζ", "distance", "predicted", "ratio", "not clipped"),
        tuple(rows),
        ("Predicted: η/√(1 − (1 − η)²) · σ ζ E‖G‖/n, with G a (d − k) × k standard normal matrix.",),
    )


def _slope_table(results: Results) -> Table:
    rows = ((name, str(slope), f"{theory:g}") for name, slope, theory in slopes(results))
    return Table("Log-log slope of the noise floor", ("against", "measured", "theory"), tuple(rows))


def _start_table(results: Results) -> Table:
    rows = []
    for cell in _of(results, Start):
        outputs = kept(results, cell)
        shares = (f"{100 * (outputs[name] <= START).mean():.1f} %" for name in ("one", "chosen"))
        rows.append((str(cell.trials), str(outputs["one"].size), *shares))
    return Table(
        f"Private power method: share of runs that end within distance {START}",
        ("trials", "runs", "one trial", "Algorithm 3's choice"),
        tuple(rows),
        ("The choice among trials costs no privacy; the trials do: their number multiplies the rounds.",),
    )


def plot(results: Results) -> Any:
    figure, axes = new_figure(4, shared=False)
    for cell in _of(results, Rate):
        if cell.batch_size is None:
            errors = np.median(kept(results, cell)["errors"], axis=0)
            (line,) = axes[0].semilogy(errors, label=f"κ = {cell.condition:g}")
            theory = START * (1 - cell.step_size) ** np.arange(len(errors))
            axes[0].semilogy(np.maximum(theory, 1e-16), "--", linewidth=0.8, color=line.get_color())
    axes[0].set(xlabel="round", ylabel="distance to the true subspace", title="no noise")
    axes[0].legend(frameon=False, title="dashed: 1 − η s_k²")
    middle, features, clients = by_size(results)
    d, n = [c.features for c in features], [c.clients for c in clients]
    noise = [mean(kept(results, middle)["floor"][:, i]) for i in range(len(NOISE))]
    clip = middle.clip_norm
    _floor_panel(axes[1], NOISE, noise, [predicted_floor(s, clip, middle.clients, middle.features) for s in NOISE])
    _floor_panel(
        axes[2],
        n,
        floors(results, clients, BASE),
        [predicted_floor(1, c.clip_norm, c.clients, c.features) for c in clients],
    )
    _floor_panel(
        axes[3],
        d,
        floors(results, features, BASE),
        [predicted_floor(1, c.clip_norm, c.clients, c.features) for c in features],
    )
    for axis, name in zip(axes[1:], ("noise multiplier σ", "clients n", "features d"), strict=True):
        axis.set(xlabel=name, title="noise floor")
    axes[1].set_ylabel("distance")
    axes[1].legend(frameon=False)
    return figure


def _floor_panel(axis: "Axes", sizes: Sequence[float], points: Sequence[Estimate], theory: Sequence[float]) -> None:
    values, errors = zip(*points, strict=True)
    axis.errorbar(sizes, values, errors, fmt="o", markersize=4, capsize=2, label="measured")
    axis.plot(sizes, theory, "k--", linewidth=0.8, label="predicted")
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axis.minorticks_off()
    slope = fit(sizes, points).slope
    place, side = (0.05, "left") if slope.value > 0 else (0.95, "right")
    axis.text(place, 0.95, f"slope {slope.text(2)}", transform=axis.transAxes, va="top", ha=side, fontsize=9)


EXPERIMENT = experiment(
    name="centaur-linear",
    summary="CENTAUR, section 5: linear rate, slopes of the noise floor, and the choice among private starts",
    presets=CENTAUR_LINEAR,
    cells=cells,
    replicate=replicate,
    report=report,
    plot=plot,
)
