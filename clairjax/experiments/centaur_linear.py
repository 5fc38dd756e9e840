"""CENTAUR, section 5: the linear rate without noise, the noise floor's slopes, and the choice among private starts."""

import functools
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from jaxtyping import Float

from ..sweep import Estimate, Results
from ._centaur_runs import NOISE, Cell, Floor, Rate, Start, replicate, sizes
from ._experiment import Experiment, Preset
from ._figure import corner, curve, new_figure, sizes_below
from ._slopes import fit
from ._subspace_problems import RANK, START, STEP
from ._table import Row, Tabulated, rows_of_kind


if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE, AT_FIXED = NOISE.index(1.0), len(NOISE)  # of the settings of a floor
Line: TypeAlias = tuple[Sequence[Row[Floor]], Sequence[float]]  # rows and where they are
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


def settings(row: Row[Floor]) -> list[Row[Floor]]:
    return row.along(setting=row.cell.settings)


def by_setting(results: Results[Cell]) -> list[Row[Floor]]:
    return [part for row in rows_of_kind(results, Floor) for part in settings(row)]


def predicted(row: Row[Floor]) -> float:
    noise, clip_norm = row.get("setting")
    return predicted_floor(noise, clip_norm, row.cell.clients, row.cell.features)


def along(results: Results[Cell], field: str, setting: int = BASE) -> Line:
    """The rows of a setting in which the other field has its most frequent value, by this one."""
    rows = rows_of_kind(results, Floor)
    (other,) = {"clients", "features"} - {field}
    values = [row.get(other) for row in rows]
    kept = [row for row in rows if row.get(other) == max(values, key=values.count)]
    kept.sort(key=lambda row: row.get(field))
    return [settings(row)[setting] for row in kept], [row.get(field) for row in kept]


def by_noise(results: Results[Cell]) -> Line:
    """The settings of the row that is along both fields."""
    clients, features = ([row.cell for row in along(results, field)[0]] for field in ("clients", "features"))
    middle = next(cell for cell in features if cell in clients)
    return [row for row in by_setting(results) if row.cell == middle][: len(NOISE)], NOISE


def slope(rows: Sequence[Row[Floor]], sizes: Sequence[float]) -> Estimate:
    return fit(sizes, [row.mean("floor") for row in rows]).slope


def slopes(results: Results[Cell]) -> list[Row[Cell]]:
    """Against what, and the measured and the theory's log-log slope of the floor."""
    found = {
        "noise multiplier": (by_noise(results), 1.0),
        "clients n, ζ ∝ √(d k log n)": (along(results, "clients"), -1.0),
        "features d, ζ ∝ √(d k log n)": (along(results, "features"), 1.0),
        "features d, ζ held": (along(results, "features", AT_FIXED), 0.5),
    }
    return [
        Row(results.cells[0], {}, {"against": against, "measured": slope(*line), "theory": theory})
        for against, (line, theory) in found.items()
    ]


def within(row: Row[Start], name: str) -> str:
    return f"{100 * (row[name] <= START).mean():.1f} %"


TABLES = (
    Tabulated[Cell](
        "CENTAUR without noise: factor of the distance in a round",
        (
            ("κ", "condition"),
            ("subsets", lambda row: "all samples" if (size := row.cell.batch_size) is None else f"2 × {size} drawn"),
            *(("η", "step_size"), ("measured", lambda row: rate(row["errors"])[0], 4)),
            ("1 − η s_k²", lambda row: 1 - row.cell.step_size, 4),  # s_k = 1
            ("smallest R²", lambda row: float(rate(row["errors"])[1]), 4),
            ("largest last distance", lambda row: f"{row['errors'][:, -1].max():.1e}"),
        ),
        (f"From distance {START}; fitted to the rounds above {GROUND:g}.",),
        partial(rows_of_kind, kind=Rate),
    ),
    Tabulated[Cell](
        f"CENTAUR's noise floor, k = {RANK}, η = {STEP}: mean distance over the second half of the rounds",
        (
            *(("n", "clients"), ("d", "features"), ("σ", lambda row: row.get("setting")[0])),
            *(("ζ", lambda row: f"{row.get('setting')[1]:.3g}"), ("distance", "floor", 5)),
            *(("predicted", predicted, 5), ("ratio", lambda row: row.mean("floor").value / predicted(row), 3)),
            ("not clipped", lambda row: f"{100 * (1 - row['clipped'].mean()):.2f} %"),
        ),
        ("Predicted: η/√(1 − (1 − η)²) · σ ζ E‖G‖/n, with G a (d − k) × k standard normal matrix.",),
        by_setting,
    ),
    Tabulated[Cell]("Log-log slope of the noise floor", ("against", "measured", "theory"), rows=slopes),
    Tabulated[Cell](
        f"Private power method: share of runs that end within distance {START}",
        (
            *("trials", ("runs", lambda row: row["one"].size), ("one trial", partial(within, name="one"))),
            ("Algorithm 3's choice", partial(within, name="chosen")),
        ),
        ("The choice among trials costs no privacy; the trials do: their number multiplies the rounds.",),
        partial(rows_of_kind, kind=Start),
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
    lines = {
        "noise multiplier σ": by_noise(results),
        "clients n": along(results, "clients"),
        "features d": along(results, "features"),
    }
    for axis, (name, (rows, x)) in zip(axes[1:], lines.items(), strict=True):
        curve(axis, rows, x, "floor", "measured", fmt="o")
        axis.plot(x, list(map(predicted, rows)), "k--", linewidth=0.8, label="predicted")
        axis.set(yscale="log", xlabel=name, title="noise floor")
        sizes_below(axis, x)
        found = slope(rows, x)
        corner(axis, f"slope {found.text(2)}", (0.05 if found.value > 0 else 0.95, 0.95))
    axes[1].set_ylabel("distance")
    axes[1].legend(frameon=False)
    return figure


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
