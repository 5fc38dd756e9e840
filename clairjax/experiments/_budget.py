"""One privacy budget, spent by CENTAUR or by perturbed least squares on one problem."""

import math
from typing import Literal, NamedTuple

from jaxtyping import Array

from .. import privacy
from .._typing import Key
from ..data import SubspaceProblem
from ..kernels import gaussian_mechanism
from ..representation import PrivateRepresentation, centaur, perturbed_least_squares
from ._subspace_problems import RANK


DELTA = 1e-5
# What the paper's experiments report; the tables show replace-one beside it.
ADJACENCY: Literal["add-or-remove-one"] = "add-or-remove-one"


class Setting(NamedTuple):
    """How a budget is spent. `path` is the sum of step sizes times the clip norm; None is the default decay."""

    rounds: int
    clip_norm: Array | float
    path: Array | float | None
    from_start: bool  # from a basis at distance 0.2, given free of charge


def never_reached_moments(samples: int, features: int) -> tuple[float, float]:
    """Clip norms of both moments of `perturbed_least_squares` that exceed every client's: heads have ‖w‖² = k."""
    gram = math.sqrt(features * (1 + features / samples))
    return 1.3 * RANK * gram, 2 * RANK * math.sqrt(1 + features / samples)


def bounding_moments(features: int) -> tuple[float, float]:
    """Clip norms that grow as bounds on a single sample's moments do, ∝ ‖x‖²‖w‖² and ‖x‖ |y| ‖w‖."""
    return 0.3 * RANK * features, 0.6 * RANK * math.sqrt(features)


def noise_for(epsilon: float, rounds: int) -> float:
    return privacy.noise_multiplier(epsilon, rounds, delta=DELTA, adjacency=ADJACENCY)


def spend(
    problem: SubspaceProblem, start: Array, setting: Setting, noise_multiplier: Array | float, key: Key
) -> PrivateRepresentation:
    clip_norm = setting.clip_norm
    return centaur(
        problem.inputs,
        problem.targets,
        RANK,
        key=key,
        rounds=setting.rounds,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        step_size=None if setting.path is None else setting.path / setting.rounds / clip_norm,
        init=start if setting.from_start else None,
        mechanism=gaussian_mechanism,
    )


def spend_at_server(
    problem: SubspaceProblem,
    start: Array,
    rounds: int,
    clip_norms: tuple[Array | float, Array | float],
    noise_multiplier: Array | float,
    key: Key,
) -> PrivateRepresentation:
    return perturbed_least_squares(
        problem.inputs,
        problem.targets,
        RANK,
        key=key,
        rounds=rounds,
        noise_multiplier=noise_multiplier,
        clip_norms=clip_norms,
        init=start,
    )
