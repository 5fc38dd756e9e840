"""CLAIR, Table 1: mean squared Frobenius error of each method, averaged over clients."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Array

from .._typing import Key
from ..alignment import clair, elect, fedavg, label_oracle, local, oracle_fedavg, refine
from ..sweep import Results
from ._clair_simulations import (
    SIZES,
    SOLVER,
    Cell,
    by_dimension,
    clients_below,
    in_paper,
    law_note,
    mean_square_error,
    printed,
    published_constants,
    sizes,
)
from ._experiment import Experiment, Preset
from ._figure import curve, panels
from ._status_number import status_number
from ._table import Row, Tabulated, rows_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Printed(NamedTuple):
    """A row as printed."""

    local: float
    published: float
    oracle_fedavg: float
    fedavg: float


PAPER = {  # by p, n, K
    (10, 100, 5): Printed(1.121, 1.109, 6.102, 15.262),
    (10, 100, 10): Printed(1.117, 0.722, 7.457, 17.094),
    (10, 100, 20): Printed(1.126, 0.648, 8.156, 18.144),
    (20, 150, 5): Printed(3.085, 2.055, 24.715, 35.575),
    (20, 150, 10): Printed(3.093, 1.735, 29.977, 38.623),
    (20, 150, 20): Printed(3.097, 1.581, 32.617, 41.660),
    (50, 300, 5): Printed(10.052, 6.070, 148.871, 179.855),
    (50, 300, 10): Printed(10.054, 5.146, 183.551, 201.606),
    (50, 300, 20): Printed(10.041, 4.678, 200.977, 212.679),
}
PRINTED = {"local": "local", "published": "CLAIR as published", "oracle_fedavg": "oracle FedAvg", "fedavg": "FedAvg"}
CURVES = {"published": ("CLAIR as published", "v"), "auto": ("clair", "o"), "shrink": ("clair, shrink", "D")}


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """The error of every method on one problem, the ranks found and the solvers' statuses (0: converged)."""
    penalty = published_constants(cell).penalty(cell.clients)
    problem = cell.generate(key)
    estimates, members = problem.estimates, problem.members
    auto = elect(estimates)
    published = clair(estimates, penalty=penalty, refit=False, solver=SOLVER)
    matrices = {
        "local": local(estimates),
        "published": published.refined,
        "auto": refine(estimates, auto.members, basis=auto.basis),
        "shrink": refine(estimates, auto.members, basis=auto.basis, shrink=True),
        "oracle_fedavg": oracle_fedavg(estimates, members),
        "fedavg": fedavg(estimates),
        "label_oracle": label_oracle(estimates, members, problem.basis),
    }
    errors = {name: mean_square_error(refined, problem) for name, refined in matrices.items()}
    return errors | {
        "auto_rank": auto.rank,
        "auto_status": status_number(auto.status),
        "published_rank": published.rank,
        "published_status": status_number(published.status),
    }


def status_note(results: Results[Cell]) -> str:
    counts = {
        results.labels[row.cell]: [int((row[f"{name}_status"] != 0).sum()) for name in ("auto", "published")]
        for row in rows_of(results)
    }
    texts = (f"{label}: {ours} of clair, {theirs} as published" for label, (ours, theirs) in counts.items())
    return f"Statuses other than converged: {'; '.join(texts)}." if any(map(any, counts.values())) else ""


TABLES = (
    Tabulated[Cell](
        "CLAIR, Table 1: squared Frobenius error, mean over clients and {replicates} replicates ±standard error",
        (*SIZES, *(column for name, label in PRINTED.items() for column in ((label, name), printed(PAPER, name)))),
        (law_note, "As published: fixed penalties, the program's own row space, largest gap, α = 1/2."),
        group="dimension",
    ),
    Tabulated[Cell](
        "The same replicates with clairjax: tuned from the data alone",
        (
            *(*SIZES, printed(PAPER, "published", "paper's CLAIR"), ("as published", "published")),
            *(("clair", "auto"), "shrink", ("label oracle", "label_oracle")),
            *(("clair / oracle", "auto / label_oracle"), ("shrink / oracle", "shrink / label_oracle")),
        ),
        ("Label oracle: refinement with the true set and the true row space. Shrink may fall below it.", status_note),
        group="dimension",
    ),
)


@panels("error / label oracle", by_dimension)
def plot(axis: "Axes", rows: list[Row[Cell]]) -> None:
    """Errors over the label oracle's. Local (1.5 to 2.2) and FedAvg (8 to 50) are in the table only."""
    paper = lambda row: (in_paper(PAPER, "published", row) or np.nan) / row.mean("label_oracle").value
    places = clients_below(axis, rows, paper, "CLAIR, paper")
    for beside, (name, (label, marker)) in zip((-0.08, 0, 0.08), CURVES.items(), strict=True):  # all visible if equal
        curve(axis, rows, places + beside, f"{name} / label_oracle", label, fmt=f"{marker}-", linewidth=1)
    axis.axhline(1, color="0.4", linewidth=0.8)


EXPERIMENT = Experiment[Cell](
    name="clair-table1",
    summary="CLAIR, Table 1: squared error of local, FedAvg, CLAIR as published and clair, beside the paper's",
    presets={
        "smoke": Preset(sizes((10,), (5, 10)), 4),
        "laptop": Preset(sizes((10, 20, 50), (5, 10, 20)), 100),
        "paper": Preset(sizes((10, 20, 50), (5, 10, 20)), 100),
    },
    replicate=replicate,
    tables=TABLES,
    plot=plot,
)
