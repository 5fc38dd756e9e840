"""CENTAUR, section 5: the linear rate without noise, the noise floor's slopes, and the choice among private starts."""

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..sweep import Estimate, Results
from ._centaur_runs import NOISE, Cell, Floor, Rate, Start, replicate, sizes
from ._experiment import Experiment, Preset
from ._figure import new_figure, points, sizes_below
from ._slopes import fit
from ._subspace_problems import RANK, START, STEP
from ._table import Column, Row, Tabulated, rows_of_kind


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASE, AT_FIXED = NOISE.index(1.0), len(NOISE)  # of the settings of a floor
GROUND = 1e-10  # distances below are rounding


@functools.cache
def largest_stretch(features: int) -> float:
    """E‖G‖, G standard normal (d − k) × k, over 400 draws."""
    draws = np.random.default_rng(0).standard_normal((400, features - RANK, RANK))
    return float(np.linalg.norm(draws, 2, axis=(1, 2)).mean())


def predicted_floor(noise: float, clip_norm: float, clients: int, features: int) -> float:
    """η/√(1 − (1 − η)²) · σ ζ · E‖G‖/n: an autoregression driven by the noise outside the subspace."""
    return STEP / math.sqrt(1 - (1 - STEP) ** 2) * noise * clip_norm * largest_stretch(features) / clients


def rate(errors: Float[np.ndarray, "replicates rounds"]) -> tuple[Estimate, float]:
    """Factor by which the distance falls in a round, and the smallest R² of a replicate's log-linear fit."""
    factors, fits = [], []
    for series in errors:
        above = series > GROUND
        x, y = np.flatnonzero(above), np.log(series[above])
        slope, intercept = np.polyfit(x, y, 1)
        factors.append(math.exp(slope))
        fits.append(1 - np.var(y - slope * x - intercept) / np.var(y))
    return Estimate.of(np.array(factors)), min(fits)


def subsets(row: Row[Rate]) -> str:
    return "all samples" if row.cell.batch_size is None else f"2 × {row.cell.batch_size} drawn"


def by_setting(results: Results[Cell]) -> list[Row[Floor]]:
    return [part for row in rows_of_kind(results, Floor) for part in row.split(row.cell.settings)]


def predicted(row: Row[Floor], setting: int | None = None) -> float:
    cell = row.cell
    noise, clip_norm = row.part if setting is None else cell.settings[setting]
    return predicted_floor(noise, clip_norm, cell.clients, cell.features)


def share_within(row: Row[Start], name: str) -> str:
    return f"{100 * (row[name] <= START).mean():.1f} %"


def floors(rows: Sequence[Row[Floor]], setting: int) -> list[Estimate]:
    return [Estimate.of(row["floor"][:, setting]) for row in rows]


def along(results: Results[Cell], field: str) -> tuple[list[int], list[Row[Floor]]]:
    """The sizes of a field and the rows in which the other has its most frequent value."""
    rows = rows_of_kind(results, Floor)
    (other,) = {"clients", "features"} - {field}
    values = [getattr(row.cell, other) for row in rows]
    kept = [row for row in rows if getattr(row.cell, other) == max(values, key=values.count)]
    kept.sort(key=lambda row: getattr(row.cell, field))
    return [getattr(row.cell, field) for row in kept], kept


def middle(results: Results[Cell]) -> Row[Floor]:
    """The row that is along both."""
    (clients, features) = (along(results, field)[1] for field in ("clients", "features"))
    return next(row for row in features if row.cell in [other.cell for other in clients])


def slopes(results: Results[Cell]) -> list[Row[Floor]]:
    """Against what, and the measured and the theory's log-log slope of the floor."""
    n, by_clients = along(results, "clients")
    d, by_features = along(results, "features")
    base = middle(results)
    noise = [Estimate.of(column) for column in base["floor"].T[: len(NOISE)]]
    found = (
        ("noise multiplier", fit(NOISE, noise).slope, 1.0),
        ("clients n, ζ ∝ √(d k log n)", fit(n, floors(by_clients, BASE)).slope, -1.0),
        ("features d, ζ ∝ √(d k log n)", fit(d, floors(by_features, BASE)).slope, 1.0),
        ("features d, ζ held", fit(d, floors(by_features, AT_FIXED)).slope, 0.5),
    )
    return [Row(base.cell, {}, each) for each in found]


TABLES = (
    Tabulated[Cell](
        "CENTAUR without noise: factor of the distance in a round",
        (
            *(Column("κ", "condition"), Column("subsets", subsets), Column("η", "step_size")),
            Column("measured", lambda row: rate(row["errors"])[0], 4),
            Column("1 − η s_k²", lambda row: 1 - row.cell.step_size, 4),  # s_k = 1
            Column("smallest R²", lambda row: float(rate(row["errors"])[1]), 4),
            Column("largest last distance", lambda row: f"{row['errors'][:, -1].max():.1e}"),
        ),
        (f"From distance {START}; fitted to the rounds above {GROUND:g}.",),
        lambda results: rows_of_kind(results, Rate),
    ),
    Tabulated[Cell](
        f"CENTAUR's noise floor, k = {RANK}, η = {STEP}: mean distance over the second half of the rounds",
        (
            *(Column("n", "clients"), Column("d", "features")),
            *(Column("σ", lambda row: row.part[0]), Column("ζ", lambda row: f"{row.part[1]:.3g}")),
            Column("distance", "floor", 5),
            Column("predicted", predicted, 5),
            Column("ratio", lambda row: row.mean("floor").value / predicted(row), 3),
            Column("not clipped", lambda row: f"{100 * (1 - row['clipped'].mean()):.2f} %"),
        ),
        ("Predicted: η/√(1 − (1 − η)²) · σ ζ E‖G‖/n, with G a (d − k) × k standard normal matrix.",),
        by_setting,
    ),
    Tabulated[Cell](
        "Log-log slope of the noise floor",
        (
            *(Column("against", lambda row: row.part[0]), Column("measured", lambda row: row.part[1])),
            Column("theory", lambda row: row.part[2]),
        ),
        rows=slopes,
    ),
    Tabulated[Cell](
        f"Private power method: share of runs that end within distance {START}",
        (
            *(Column("trials"), Column("runs", lambda row: row["one"].size)),
            Column("one trial", functools.partial(share_within, name="one")),
            Column("Algorithm 3's choice", functools.partial(share_within, name="chosen")),
        ),
        ("The choice among trials costs no privacy; the trials do: their number multiplies the rounds.",),
        lambda results: rows_of_kind(results, Start),
    ),
)


def plot(results: Results[Cell]) -> "Figure":
    figure, axes = new_figure(4, shared=False)
    for row in rows_of_kind(results, Rate):
        if row.cell.batch_size is None:
            errors = np.median(row["errors"], axis=0)
            (line,) = axes[0].semilogy(errors, label=f"κ = {row.cell.condition:g}")
            theory = START * (1 - row.cell.step_size) ** np.arange(len(errors))
            axes[0].semilogy(np.maximum(theory, 1e-16), "--", linewidth=0.8, color=line.get_color())
    axes[0].set(xlabel="round", ylabel="distance to the true subspace", title="no noise")
    axes[0].legend(frameon=False, title="dashed: 1 − η s_k²")
    base = middle(results)
    settings = range(len(NOISE))
    noise = [floors([base], i)[0] for i in settings]
    _floor_panel(axes[1], "noise multiplier σ", NOISE, noise, [predicted(base, i) for i in settings])
    for axis, field, name in zip(axes[2:], ("clients", "features"), ("clients n", "features d"), strict=True):
        numbers, rows = along(results, field)
        _floor_panel(axis, name, numbers, floors(rows, BASE), [predicted(row, BASE) for row in rows])
    axes[1].set_ylabel("distance")
    axes[1].legend(frameon=False)
    return figure


def _floor_panel(
    axis: "Axes", name: str, sizes: Sequence[float], estimates: Sequence[Estimate], theory: Sequence[float]
) -> None:
    points(axis, sizes, estimates, "measured", fmt="o")
    axis.plot(sizes, theory, "k--", linewidth=0.8, label="predicted")
    axis.set(yscale="log", xlabel=name, title="noise floor")
    sizes_below(axis, sizes)
    slope = fit(sizes, estimates).slope
    place, side = (0.05, "left") if slope.value > 0 else (0.95, "right")
    axis.text(place, 0.95, f"slope {slope.text(2)}", transform=axis.transAxes, va="top", ha=side, fontsize=9)


RATES = ((1.0, 85), (2.0, 380))
EXPERIMENT = Experiment[Cell](
    name="centaur-linear",
    summary="CENTAUR, section 5: linear rate, slopes of the noise floor, and the choice among private starts",
    presets={
        "smoke": Preset(sizes((200, 400), (12, 16), ((1.0, 60),), 30, 2), 3),
        "laptop": Preset(sizes((500, 1000, 2000, 4000), (12, 25, 50, 100), RATES, 60, 30), 10),
        "paper": Preset(sizes((500, 1000, 2000, 4000), (12, 25, 50, 100, 200), RATES, 60, 30), 40),
    },
    replicate=replicate,
    tables=TABLES,
    plot=plot,
)
