"""A replicate function with the parts of the real ones, and a sweep of it for a process to run.

    python sweep_cases.py OUT REPLICATES LANE_WIDTH SEED

prints one JSON object: the SHA-256 of each output of each cell.
"""

import hashlib
import json
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from clairjax import sweep


class Cell(NamedTuple):
    clients: int
    dimension: int
    noise: float = 0.1


CELLS = (Cell(4, 24), Cell(200, 33, 0.2))  # lanes at once, and in turn


def replicate(key, cell):
    """Matrices with a shared row space, its estimate by a loop with a stopping rule, least squares."""
    draws = jax.random.normal(key, (cell.clients, cell.dimension + 5, cell.dimension + 2))
    basis = jnp.linalg.qr(draws[0, : cell.dimension, -2:])[0]
    weights = draws[:, :, -2:] @ basis.T + cell.noise * draws[:, :, :-2]
    gram = jnp.einsum("kqp,kqr->pr", weights, weights)

    def unfinished(state):
        _, moved, steps = state
        return (moved > 1e-7) & (steps < 200)

    def step(state):
        estimate, _, steps = state
        new = jnp.linalg.qr(gram @ estimate)[0]
        return new, jnp.linalg.norm(new - estimate @ (estimate.T @ new)), steps + 1

    start = (jnp.eye(cell.dimension, 2), jnp.inf, 0)
    estimate, _, steps = jax.lax.while_loop(unfinished, step, start)
    heads = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(gram + jnp.eye(cell.dimension)), weights[0].T)
    return {
        "error": jnp.linalg.norm(estimate - basis @ (basis.T @ estimate)),
        "spectrum": jnp.linalg.eigh(gram)[0],
        "heads": heads[:3],
        "steps": steps,
    }


def digest(results):
    return {
        f"{cell} {name}": hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
        for cell in results.cells
        for name, values in results[cell].items()
    }


if __name__ == "__main__":
    out, (replicates, lane_width, seed) = sys.argv[1], map(int, sys.argv[2:])
    key = jax.random.key(seed)
    results = sweep.run(replicate, CELLS, key=key, replicates=replicates, lane_width=lane_width, out=out)
    print(json.dumps(digest(results)))
