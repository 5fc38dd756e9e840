"""How fast does the leading direction of noisy samples approach the true one?"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from clairjax.experiments import Experiment, Preset, Tabulated, grid
from clairjax.subspaces import subspace_distance


class Cell(NamedTuple):
    samples: int
    noise: float = 0.3


def replicate(key, cell):
    length_key, noise_key = jax.random.split(key)
    truth = jnp.array([[0.6], [0.8]])
    lengths = jax.random.normal(length_key, (cell.samples, 1))
    points = lengths @ truth.T + cell.noise * jax.random.normal(noise_key, (cell.samples, 2))
    leading = jnp.linalg.eigh(points.T @ points)[1][:, -1:]
    return {"distance": subspace_distance(leading, truth)}


EXPERIMENT = Experiment(
    name="line",
    summary="Distance of an estimated line to the true one",
    presets={"smoke": Preset(grid(Cell, samples=(10, 40)), replicates=50)},
    replicate=replicate,
    tables=[Tabulated("Distance to the true line", ["samples", "distance"])],
)
