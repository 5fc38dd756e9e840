"""What CENTAUR's linear experiment runs: rounds without noise, rounds with noise, and private starts."""

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._typing import Key
from ..data import SharedSubspace
from ..kernels import gaussian_mechanism
from ..representation import centaur, private_power_method
from ..subspaces import subspace_distance
from ._subspace_problems import RANK, SAMPLES, STEP, draw, never_reached


FIXED = 2.63  # a clip norm that does not grow with d
NOISE = (0.25, 1.0, 4.0, 16.0)


@dataclasses.dataclass(frozen=True)
class Rate:
    """Rounds without noise or clipping, η = 1/(4 s_1²)."""

    clients: int
    features: int
    condition: float
    rounds: int
    batch_size: int | None = None

    @property
    def step_size(self) -> float:
        return STEP / self.condition**2


@dataclasses.dataclass(frozen=True)
class Floor:
    """Rounds with noise, at a clip norm that is never reached."""

    clients: int
    features: int
    rounds: int

    @property
    def clip_norm(self) -> float:
        return never_reached(self.clients, self.features)

    @property
    def settings(self) -> tuple[tuple[float, float], ...]:
        """Noise multipliers and clip norms."""
        return (*((noise, self.clip_norm) for noise in NOISE), (1.0, FIXED))


@dataclasses.dataclass(frozen=True)
class Start:
    """The private power method, many runs a replicate: one trial, and the choice among `trials`."""

    clients: int = 1000
    samples: int = 40
    features: int = 12
    steps: int = 7
    noise_multiplier: float = 10.0
    clip_norm: float = 5.0
    trials: int = 9
    runs: int = 30


Cell: TypeAlias = Rate | Floor | Start


def sizes(
    clients: Sequence[int], features: Sequence[int], rates: Sequence[tuple[float, int]], rounds: int, runs: int
) -> tuple[Cell, ...]:
    """The middle of the clients and of the features stands where the other varies; rounds for each condition."""
    n, d = (values[(len(values) - 1) // 2] for values in (clients, features))
    every = [Rate(n, d, condition, number) for condition, number in rates]
    every.append(Rate(n, d, 1.0, rates[0][1], batch_size=SAMPLES // 2))
    floors = [Floor(n, number, rounds) for number in features]
    floors += [Floor(number, d, rounds) for number in clients if number != n]
    return (*every, *floors, Start(runs=runs))


def replicate(key: Key, cell: Cell) -> dict[str, Array]:
    if isinstance(cell, Start):
        return _starts(key, cell)
    return _rate(key, cell) if isinstance(cell, Rate) else _floor(key, cell)


def _rate(key: Key, cell: Rate) -> dict[str, Array]:
    problem, start, run_key = draw(key, SharedSubspace(cell.clients, SAMPLES, cell.features, RANK, cell.condition))
    run = centaur(
        problem.inputs,
        problem.targets,
        RANK,
        key=run_key,
        rounds=cell.rounds,
        noise_multiplier=0.0,
        clip_norm=1e6,
        step_size=cell.step_size,
        batch_size=cell.batch_size,
        init=start,
        true_basis=problem.basis,
        mechanism=gaussian_mechanism,
    )
    assert run.distances is not None
    return {"errors": run.distances}


def _floor(key: Key, cell: Floor) -> dict[str, Array]:
    """Mean distance over the second half of the rounds, for each setting."""
    problem, start, run_key = draw(key, SharedSubspace(cell.clients, SAMPLES, cell.features, RANK))

    def run(setting: tuple[Array, Array, Key]) -> tuple[Array, Array]:
        noise, clip_norm, key = setting
        found = centaur(
            problem.inputs,
            problem.targets,
            RANK,
            key=key,
            rounds=cell.rounds,
            noise_multiplier=noise,
            clip_norm=clip_norm,
            step_size=STEP,
            init=start,
            true_basis=problem.basis,
            mechanism=gaussian_mechanism,
        )
        assert found.distances is not None
        return found.distances[cell.rounds // 2 :].mean(), found.clipped.mean()

    noise, clip_norm = (jnp.array(values, start.dtype) for values in zip(*cell.settings, strict=True))
    floor, clipped = jax.lax.map(run, (noise, clip_norm, jax.random.split(run_key, len(cell.settings))))
    return {"floor": floor, "clipped": clipped}


def _starts(key: Key, cell: Start) -> dict[str, Array]:
    def run(key: Key) -> tuple[Array, Array]:
        data_key, run_key, one_key = jax.random.split(key, 3)
        model = SharedSubspace(cell.clients, cell.samples, cell.features, RANK)
        problem = model.generate(key=data_key)

        def distance(key: Key, trials: int) -> Array:
            found = private_power_method(
                problem.inputs,
                problem.targets,
                RANK,
                key=key,
                steps=cell.steps,
                noise_multiplier=cell.noise_multiplier,
                clip_norm=cell.clip_norm,
                trials=trials,
                mechanism=gaussian_mechanism,
            )
            return subspace_distance(found.basis, problem.basis)

        return distance(one_key, 1), distance(run_key, cell.trials)

    one, chosen = jax.lax.map(run, jax.random.split(key, cell.runs))
    return {"one": one, "chosen": chosen}
