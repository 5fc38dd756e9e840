"""What colluding clients can do to the others: the worst error of the honest ones, attack by attack."""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._typing import Key
from ..alignment import clair, label_oracle
from ..data import MultiResponse
from ..sweep import Results
from ._clair_simulations import RANK
from ._experiment import Experiment, Preset
from ._figure import means, panels
from ._table import Row, Tabulated, rows_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes

# How far the colluders go, in distances of two honest clients; the share of the widest step that shows no gap; and the
# jitter of near copies, in honest distances.
DISTANCES = (0.1, 0.25, 0.4, 0.55, 0.7, 1.0, 1.5, 2.5)
STEPS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
JITTERS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6)
QUIET = 0.15  # share of their own noise that quiet colluders keep
CLAIM = 100  # times the samples that they have


@dataclasses.dataclass(frozen=True)
class Cell:
    """K = `clients`, the last `colluders` of them knowing all reports; p = q = `dimension`, n = `samples` each."""

    clients: int
    colluders: int
    dimension: int = 20
    samples: int = 150

    @property
    def model(self) -> MultiResponse:
        size = self.dimension
        return MultiResponse(self.clients, size, size, self.samples, RANK, contaminated_share=0.0)


class Known(NamedTuple):
    """What the colluders know, and draw: `reports` of everyone, honest so far."""

    reports: Float[Array, "clients out in"]
    outside: Float[Array, " in in"]  # projector onto what is outside the row space
    honest: Float[Array, "out in"]  # the honest clients' mean
    colluders: Float[Array, "clients 1 1"]  # 1 for who is one
    shift: Float[Array, "out in"]  # outside the row space, of length 1 and a flat spectrum
    line: Float[Array, "out in"]  # as `shift`, of rank 1
    own: Float[Array, "clients out in"]  # a shift for each

    def moved(self, reports: Array, distance: Array, direction: Array) -> Array:
        """The colluders' reports, moved by so many honest distances; the others as they are."""
        step = distance * self.honest_distance * direction
        return jnp.where(self.colluders > 0, reports + step, self.reports)

    def quieter(self, share: float) -> Array:
        """Reports with this share of their own noise, about the honest mean."""
        apart = (self.reports - self.honest[None]) @ self.outside
        return self.reports - (1 - share) * apart

    @property
    def honest_distance(self) -> Array:
        """Of two honest clients outside the row space, root mean square."""
        apart = (self.reports - self.honest[None]) @ self.outside
        honest = 1 - self.colluders
        return jnp.sqrt(2 * jnp.sum(honest * apart**2) / (honest.sum() - 1))


def _ladder(known: Known, step: Array) -> Array:
    """Each colluder a step further out than the last, so that no gap is wider than the spread below it."""
    out, in_ = known.shift.shape
    narrow = 3 / jnp.sqrt(jnp.asarray(out * (in_ - RANK), step.dtype))
    low = top = jnp.zeros((), step.dtype)  # logs of reaches, in honest distances
    places = []
    for colluder in range(len(known.reports)):
        top = top + known.colluders[colluder, 0, 0] * step * jnp.maximum(narrow, top - low)
        places.append(jnp.sqrt(jnp.expm1(2 * top)))
    return known.moved(known.reports, jnp.stack(places)[:, None, None], known.shift[None])


def _near_copies(known: Known, jitter: Array) -> Array:
    """Of one honest client: to deny a majority, or to count more than once."""
    step = jitter * known.honest_distance
    return jnp.where(known.colluders > 0, known.reports[:1] + step * known.own, known.reports)


ATTACKS = {
    "ladder": _ladder,
    "one shift": lambda known, distance: known.moved(known.reports, distance, known.shift[None]),
    "one shift, quiet": lambda known, distance: known.moved(known.quieter(QUIET), distance, known.shift[None]),
    "one shift of rank 1": lambda known, distance: known.moved(known.reports, distance, known.line[None]),
    "a shift each": lambda known, distance: known.moved(known.reports, distance, known.own),
    "near copies of a client": _near_copies,
    "false claim": lambda known, distance: known.moved(known.quieter(CLAIM**-0.5), distance, known.shift[None]),
}
STRENGTHS = dict.fromkeys(ATTACKS, DISTANCES) | {"ladder": STEPS, "near copies of a client": JITTERS}


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    """For each attack and distance: the honest clients' error over their own, the label oracle's, who was let in."""
    data_key, *keys = jax.random.split(key, 4)
    problem = cell.model.generate(key=data_key)
    reports, dtype = problem.estimates, problem.estimates.dtype
    honest = jnp.arange(cell.clients) < cell.clients - cell.colluders
    outside = jnp.eye(cell.dimension, dtype=dtype) - problem.basis @ problem.basis.T
    unit = lambda matrices: matrices / jnp.linalg.norm(matrices, axis=(-2, -1), keepdims=True)
    shape = cell.dimension, cell.dimension
    turn = jnp.linalg.qr(jax.random.normal(keys[0], shape, dtype))[0]
    line = jax.random.normal(keys[1], shape, dtype)
    own = jax.random.normal(keys[2], reports.shape, dtype) @ outside
    known = Known(
        reports,
        outside,
        jnp.where(honest[:, None, None], reports, 0).sum(0) / (cell.clients - cell.colluders),
        jnp.where(honest, 0, 1).astype(dtype)[:, None, None],
        unit(turn @ outside),
        unit(line[:, :1] @ line[:1] @ outside),
        unit(own),
    )
    attacked = jnp.stack(
        [jax.vmap(partial(ATTACKS[name], known))(jnp.asarray(each, dtype)) for name, each in STRENGTHS.items()]
    )
    claims = jnp.where(jnp.asarray([name == "false claim" for name in ATTACKS])[:, None], CLAIM * ~honest, 0)
    samples = jnp.where(claims > 0, claims, 1).astype(dtype)

    def error(matrices: Array) -> Array:
        return jnp.where(honest, jnp.sum((matrices - problem.weights) ** 2, (1, 2)), 0).sum()

    def outcome(given: tuple[Array, Array]) -> tuple[Array, ...]:
        matrices, samples = given
        found = clair(matrices, samples=samples)
        oracle = label_oracle(matrices, honest, problem.basis)
        taken = jnp.where(honest, False, found.members).sum() / cell.colluders
        return error(found.refined), error(oracle), taken.astype(dtype), ~found.members.any()

    repeated = jnp.broadcast_to(samples[:, None], (*attacked.shape[:2], cell.clients))
    flat = attacked.reshape(-1, *reports.shape), repeated.reshape(-1, cell.clients)
    found, oracle, taken, nobody = (each.reshape(attacked.shape[:2]) for each in jax.lax.map(outcome, flat))
    return {"local": error(reports), "clair": found, "oracle": oracle, "taken": taken, "nobody": nobody}


def worst(results: Results[Cell]) -> list[Row[Cell]]:
    """A row for each cell and attack, at the distance that costs the honest clients most."""
    attacks = (each for row in rows_of(results) for each in row.along(attack=ATTACKS))
    places = (each.along(distance=STRENGTHS[each.get("attack")]) for each in attacks)
    return [max(rows, key=lambda row: row.mean("clair").value) for rows in places]


TABLE = Tabulated[Cell](
    "Squared error of the honest clients at the worst distance, {replicates} replicates ±standard error",
    (
        *(("K", "clients"), "colluders", "attack", ("worst at", lambda row: f"{row.get('distance'):g}")),
        *(("error / local", "clair / local", 3), ("label oracle / local", "oracle / local", 3)),
        *(("error / oracle", "clair / oracle", 3), ("let in", lambda row: row.mean("taken").value, 2)),
        ("nobody", lambda row: row.mean("nobody").value, 2),
    ),
    (
        "Worst at: distances of two honest clients; of the ladder, the share of the widest step that shows no gap.",
        f"Quiet colluders keep {QUIET:g} of their noise. A false claim: {CLAIM} times the samples, the noise of so "
        "many, and one shift.",
        "Label oracle: refinement with the true set and the true row space.",
    ),
    worst,
    group="colluders",
)


@panels("error / label oracle", columns=2)
def plot(axis: "Axes", row: Row[Cell]) -> None:
    for attack in row.along(attack=ATTACKS):
        rows = attack.along(distance=DISTANCES)
        means(axis, rows, "distance", "clair / oracle", attack.get("attack"), "o-", markersize=4, linewidth=1)
    axis.set(title=f"{row.cell.colluders} of {row.cell.clients}", xlabel="honest distances (ladder: see table)")
    axis.axhline(1, color="0.4", linewidth=0.8)


EXPERIMENT = Experiment[Cell](
    name="clair-attacks",
    summary="What colluding clients can do to the others: the honest clients' error at the worst distance",
    presets={
        "smoke": Preset((Cell(10, 3),), 3),
        "laptop": Preset(tuple(Cell(*pair) for pair in ((10, 1), (10, 3), (10, 4), (20, 6), (20, 9))), 20),
        "paper": Preset(tuple(Cell(*pair) for pair in ((10, 1), (10, 3), (10, 4), (20, 6), (20, 9))), 200),
    },
    replicate=replicate,
    tables=(TABLE,),
    plot=plot,
)
