"""The problems and the solvers that share the tests of every solver: `CASES` pairs them.

All problems have one shape, with out ≠ in, and everything else about them is an array, so that each solver compiles
once for all of them. A solver or a problem added here is tested everywhere.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import reference

from clairjax import Factored, Penalty, ProximalGradient, decompose


CLIENTS, OUT, IN = 5, 3, 4
RTOL = 1e-11  # of the objective; a row space is then found to about the square root


class Problem(NamedTuple):
    weights: np.ndarray
    penalty: tuple[float, float]  # (λ_L, λ_S)
    pair_weights: float | np.ndarray = 1 / CLIENTS

    @property
    def stack(self) -> np.ndarray:
        return reference.contrasts(self.weights)

    @property
    def omega(self) -> np.ndarray:
        return reference.pair_vector(self.pair_weights, CLIENTS)


def shared_row_space(seed: int, rank: int, contaminated: int, noise: float = 0.05) -> np.ndarray:
    """A backbone, benign clients that differ by a low-rank part, and contaminated ones that differ at will."""
    rng = np.random.default_rng(seed)
    change = rng.normal(size=(CLIENTS, OUT, rank)) @ rng.normal(size=(rank, IN))
    change[CLIENTS - contaminated :] = rng.normal(size=(contaminated, OUT, IN))
    return rng.normal(size=(OUT, IN)) + change + noise * rng.normal(size=change.shape)


def table(seed: int) -> np.ndarray:
    """A weight for each pair, within a factor of ten of each other."""
    weights = np.exp(np.random.default_rng(seed).uniform(0, np.log(10), (CLIENTS, CLIENTS)))
    return np.triu(weights, 1) + np.triu(weights, 1).T


def with_twins(weights: np.ndarray) -> np.ndarray:
    return weights[[0, 0, 2, 3, 4]]


PROBLEMS = {
    "rank one, two contaminated": Problem(shared_row_space(5, 1, 2), (0.36, 0.15)),
    "rank two, one contaminated": Problem(shared_row_space(6, 2, 1), (0.19, 0.1)),
    "nobody contaminated": Problem(shared_row_space(7, 1, 0), (0.25, 0.1)),
    "without noise": Problem(shared_row_space(8, 1, 1, noise=0.0), (0.2, 0.1)),
    "twins": Problem(with_twins(shared_row_space(9, 1, 1)), (0.3, 0.15)),
    "a weight for each pair": Problem(shared_row_space(10, 1, 1), (5.0, 2.25), table(10)),
    "hardly any penalty on the low-rank part": Problem(shared_row_space(11, 2, 1), (0.05, 0.3)),
    "no sparse part": Problem(shared_row_space(12, 2, 1), (0.5, 50.0)),
    "no low-rank part": Problem(shared_row_space(13, 1, 2), (20.0, 0.3)),
    "neither": Problem(shared_row_space(14, 1, 2), (20.0, 50.0)),
    "in other units": Problem(1e3 * shared_row_space(5, 1, 2), (3.6e2, 1.5e2)),
}

SOLVERS = {
    "Factored": Factored(max_rank=IN, max_steps=2000, rtol=RTOL),
    "Factored, a column to spare": Factored(max_rank=IN - 1, max_steps=2000, rtol=RTOL),
    "ProximalGradient": ProximalGradient(max_steps=50_000, rtol=RTOL),
    "ProximalGradient, backtracking": ProximalGradient(backtracking=True, max_steps=50_000, rtol=RTOL),
    "ProximalGradient, accelerated": ProximalGradient(accelerate=True, max_steps=50_000, rtol=RTOL),
}

# A bound of three columns is one to spare, except where the solution has full rank.
FULL_RANK = "hardly any penalty on the low-rank part"
CASES = [
    (problem, solver)
    for problem in PROBLEMS
    for solver in SOLVERS
    if (problem, solver) != (FULL_RANK, "Factored, a column to spare")
]


def solve(problem: Problem, solver):
    """`decompose` with arguments of one type for all problems."""
    weights, pair_weights = jnp.asarray(problem.weights), jnp.asarray(problem.pair_weights)
    return decompose(weights, Penalty(*problem.penalty), solver=solver, pair_weights=pair_weights)


@functools.cache
def optimum(name: str) -> reference.Solution:
    """By plain NumPy, to ten times fewer than a solver's tolerance."""
    problem = PROBLEMS[name]
    return reference.algorithm1(problem.weights, problem.penalty, problem.pair_weights, rtol=RTOL / 10)
