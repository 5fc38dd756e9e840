"""What CENTAUR's experiments share: problems with a start at the distance of the theorem, its step and clip norm."""

import math

import jax
from jaxtyping import Array, Float

from .._typing import Key
from ..data import SharedSubspace, SubspaceProblem
from ..kernels import orthonormalize


RANK = 2
SAMPLES = 80
START = 0.2  # the distance ε_0 that the theorem starts from
STEP = 0.25  # η_g = 1/(4 s_1²) at s_1 = 1
CLIP = 0.05  # c_ζ: at this none of the updates was clipped in any cell


def never_reached(clients: int, features: int) -> float:
    """The theorem's clip norm c_ζ μ² k s_k² √(d k log n), with μ = s_k = 1."""
    return CLIP * RANK * math.sqrt(features * RANK * math.log(clients))


def away(basis: Float[Array, "features rank"], distance: float, *, key: Key) -> Float[Array, "features rank"]:
    """A basis at this distance, all principal angles equal, in a random direction."""
    direction = jax.random.normal(key, basis.shape, basis.dtype)
    outside = orthonormalize(direction - basis @ (basis.T @ direction))
    return math.sqrt(1 - distance**2) * basis + distance * outside


def draw(key: Key, model: SharedSubspace) -> tuple[SubspaceProblem, Float[Array, "features rank"], Key]:
    """A problem, a basis at the distance the theorem starts from, and a key for the run."""
    data_key, start_key, run_key = jax.random.split(key, 3)
    problem = model.generate(key=data_key)
    return problem, away(problem.basis, START, key=start_key), run_key
