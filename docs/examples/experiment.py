"""An experiment of one's own: how fast does the best line through the origin approach the true one?

`python experiment.py FOLDER` runs it; the same command again goes on where it stopped.
"""

import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from clairjax.experiments import Experiment, Table
from clairjax.subspaces import subspace_distance


class Preset(NamedTuple):
    samples: tuple[int, ...]
    replicates: int


class Cell(NamedTuple):
    samples: int


def replicate(key, cell):
    """The distance between the leading direction of noisy samples and the true direction."""
    length_key, noise_key = jax.random.split(key)
    truth = jnp.array([[0.6], [0.8]], "float32")
    lengths = jax.random.normal(length_key, (cell.samples, 1), "float32")
    points = lengths @ truth.T + 0.3 * jax.random.normal(noise_key, (cell.samples, 2), "float32")
    leading = jnp.linalg.eigh(points.T @ points)[1][:, -1:]
    return {"distance": subspace_distance(leading, truth)}


def report(results):
    means, errors = results.mean("distance"), results.standard_error("distance")
    rows = tuple((str(cell.samples), f"{means[cell]:.3f} ±{errors[cell]:.3f}") for cell in results.cells)
    return [Table("Distance to the true line", ("samples", "distance"), rows)]


def plot(results, path):
    figure = Figure((4, 3), layout="constrained")
    sizes = [cell.samples for cell in results.cells]
    figure.subplots().loglog(sizes, list(results.mean("distance").values()), "o-")
    figure.savefig(path, format="png")


EXPERIMENT = Experiment(
    name="line",
    summary="Distance of an estimated line to the true one",
    presets={"smoke": Preset((10, 40), 50), "laptop": Preset((10, 40, 160), 400)},
    cells=lambda preset: tuple(map(Cell, preset.samples)),
    replicate=replicate,
    report=report,
    plot=plot,
)

if __name__ == "__main__":
    folder = sys.argv[1]
    for table in EXPERIMENT.write(EXPERIMENT.run(preset="smoke", out=folder), folder):
        print(table.to_markdown().strip())
