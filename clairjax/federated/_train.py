"""The driver: rounds between evaluations, a checkpoint after each, and the history at the end."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from .. import _validate
from .._progress import Progress
from .._status import Status
from .._typing import Key
from ..data import Federation
from ..privacy import FixedSize, Poisson
from ._check import check_devices, check_model, check_sampler, check_trees
from ._checkpoint import Checkpoint, restored
from ._history import History
from ._private import prepared, spent
from ._rounds import Place, Sampler, Scores, advance, program
from ._strategy import Cohort, Strategy


Measure = Callable[[PyTree, PyTree], Mapping[str, Any]]


def train(
    model: Any,
    strategy: Strategy,
    clients: Federation,
    *,
    rounds: int,
    key: Key,
    sampler: Sampler | int | None = None,
    evaluate_every: int | None = None,
    out: str | os.PathLike[str] | None = None,
    devices: Sequence[jax.Device] | None = None,
    measure: Measure | None = None,
    progress: bool | None = None,
) -> History:
    """Train a model on clients by a strategy.

    **Args:**

    - `model`: where all start; a `models.Classifier`, or any module that gives logits for a batch of images.
    - `strategy`: `FedAvg()`, `Flute()`, `Centaur(…)`, …, or one of your own: see the how-to.
    - `clients`: of `data.partition`.
    - `rounds`: how many. `sampler`: who is in a round: everybody (None), a number of clients drawn anew each round, or
      a `privacy.Poisson` or `privacy.FixedSize`.
    - `key`: of everything random. Round t depends on `fold_in(key, t)` alone. A private release needs a secret key
      (`privacy.secret_key`).
    - `evaluate_every`: rounds between evaluations; `rounds`, if not given. There is one before the first round, too.
    - `out`: a folder for the checkpoint. A run that was killed goes on from there, bit for bit as if it had not been;
      with more `rounds` it goes on to these.
    - `devices`: to split the clients of a round over; all of this process, if not given.
    - `measure`: `measure(server, states)` gives a dict of numbers or arrays, taken at each evaluation beside the
      accuracies, of what the server and all clients hold; they become `History.measures`.
    - `progress`: None for a bar on a terminal, True for lines elsewhere too, False for neither.

    **Returns:** a `History`: accuracies, losses, states, status, privacy; `.personal(k)` is client k's model.

    **Raises:** `ValueError` for arguments out of range, a model or strategy that does not fit, and a folder that holds
    another run.

    **Source:** FLUTE, Algorithm 2; CENTAUR, Algorithm 1.

    **Cost:** that of the strategy's local training, times clients in a round, times rounds. One compilation, of
    seconds. Several seeds are one program: a second run of the same shapes compiles nothing, whatever the clients, the
    model and the key. It needs a strategy of the same functions: a lambda that is written twice is two. The clients'
    states are kept once, a client's model only where the strategy needs it. On a CPU clients are trained one after
    another on each device: two host devices (`XLA_FLAGS=--xla_force_host_platform_device_count=2`, set before JAX
    starts) use two cores.

    >>> import jax, numpy as np
    >>> import clairjax as cj
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(80) % 2
    >>> images = (rng.standard_normal((80, 4, 4)) + labels[:, None, None]).astype(np.float32)
    >>> clients = cj.data.partition(images, labels, scheme=cj.data.Shards(2), clients=4, key=jax.random.key(0))
    >>> model = cj.models.Network.create((4, 4, 1), 2, dense=(4,), key=jax.random.key(1))
    >>> run = cj.federated.train(model, cj.federated.FedAvg(), clients, rounds=4, key=jax.random.key(2))
    >>> run.rounds.tolist(), run.losses.shape, run.client_accuracies.shape
    ([0, 4], (4,), (2, 4))
    """
    _validate.at_least(rounds, "rounds", 1)
    every = rounds if evaluate_every is None else evaluate_every
    _validate.at_least(every, "evaluate_every", 1)
    _validate.one_key(key, "key")
    for value, name, kind in ((strategy, "strategy", Strategy), (clients, "clients", Federation)):
        if not isinstance(value, kind):
            raise _validate.fail(name, f"a {kind.__name__}", type(value).__name__)
    clients = clients.check()
    check_model(model, clients)
    who = _sampler(sampler)
    check_sampler(who, len(clients))
    strategy = prepared(strategy, who, rounds)
    devices = check_devices(jax.local_devices() if devices is None else devices)
    start_key, run_key = jax.random.split(key)
    place = _start(strategy, model, clients, start_key, who)
    arguments = {"clients": clients, "model": model, "strategy": strategy, "sampler": who, "key": key}
    arguments |= {"evaluate_every": every, "devices": len(devices), "measure": measure}
    checkpoint = Checkpoint(out, arguments)
    record = _Record(place, clients, measure)
    done = record.take_up(checkpoint.read(), rounds)
    with Progress(rounds, progress) as bar:
        bar.show(type(strategy).__name__)
        bar.advance(max(done, 0))
        while done < rounds:
            first = max(done, 0)
            count = 0 if done < 0 else min(every - first % every, rounds - first)
            numbers = jnp.asarray(first, jnp.int32), jnp.asarray(count, jnp.int32)
            onwards = record.place, *numbers, every, devices, run_key
            state, losses, scores = program(advance)(strategy, who, clients, *onwards)
            done = first + count
            record.add(done, state, np.asarray(losses)[:count], scores)
            checkpoint.write(done, record.tree())
            bar.advance(count)
    return record.history(strategy, clients, who, jax.random.fold_in(run_key, rounds))


def _sampler(sampler: Sampler | int | None) -> Sampler:
    if sampler is None:
        return Poisson(1.0)
    if _validate.is_integer(sampler):
        return FixedSize(int(sampler))  # type: ignore[arg-type]
    if not isinstance(sampler, Poisson | FixedSize):
        must_be = "None, a number of clients, a privacy.Poisson or a privacy.FixedSize"
        raise _validate.fail("sampler", must_be, type(sampler).__name__)
    return sampler


def _start(strategy: Strategy, model: Any, clients: Federation, key: jax.Array, sampler: Sampler) -> Place:
    """The server's and everybody's state, checked to come back from a round as they went in."""
    count = len(clients)
    server, state = strategy.start(model, count, key=key)
    as_arrays = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)
    server = as_arrays(server)
    many = lambda leaf: jnp.broadcast_to(leaf[None], (count, *leaf.shape)) if eqx.is_array(leaf) else leaf
    place = Place(server, jax.tree.map(many, as_arrays(state)))
    slots = sampler.size if isinstance(sampler, FixedSize) else count
    cohort = Cohort(jnp.zeros(slots, jnp.int32), jnp.ones(slots, bool), float(slots))
    check_trees(strategy, clients, place, cohort, key)
    return place


class _Record:
    """What has been computed so far; all of it is in the checkpoint."""

    def __init__(self, place: Place, clients: Federation, measure: Measure | None):
        self.place = place
        self._measure = measure
        self._measures: dict[str, list[np.ndarray]] = {}  # of `measure`, an entry an evaluation
        self._tests, self._validations = (np.asarray(split.counts) for split in (clients.test, clients.validation))
        self._rounds: list[int] = []
        self._losses: list[np.ndarray] = []
        self._right: list[np.ndarray] = []  # [2, clients] an evaluation

    def take_up(self, found: tuple[int, list[np.ndarray]] | None, rounds: int) -> int:
        """Rounds done; −1 where not even the first evaluation is."""
        if found is None:
            return -1
        done, (numbers, losses, right, names, *leaves) = found
        if done > rounds:
            raise _validate.fail("rounds", f"at least {done}, the rounds that out has done", rounds)
        self._rounds, self._losses, self._right = numbers.tolist(), [losses], list(right)
        self._measures = {name: list(leaves.pop(0)) for name in names.tolist()}
        arrays, static = eqx.partition(self.place, eqx.is_array)
        self.place = eqx.combine(restored(arrays, leaves), static)
        return done

    def add(self, done: int, place: Place, losses: np.ndarray, scores: Scores) -> None:
        self.place = place
        self._rounds.append(done)
        self._losses.append(losses)
        self._right.append(np.stack([np.asarray(each) for each in scores]))
        for name, value in (self._measure(*place) if self._measure else {}).items():
            self._measures.setdefault(name, []).append(np.asarray(value))

    def tree(self) -> PyTree:
        arrays = eqx.filter(self.place, eqx.is_array)
        names = np.array(list(self._measures), str)
        curves = self._rounds, np.concatenate(self._losses), np.stack(self._right)
        return *map(np.array, curves), names, *self._stacked().values(), arrays

    def _stacked(self) -> dict[str, np.ndarray]:
        return {name: np.stack(values) for name, values in self._measures.items()}

    def history(self, strategy: Strategy, clients: Federation, sampler: Sampler, key: Any) -> History:
        right = np.stack(self._right)
        losses = np.concatenate(self._losses)
        finite = bool(_finite(eqx.filter(self.place, eqx.is_inexact_array))) and not np.isinf(losses).any()
        rounds = self._rounds[-1]
        with np.errstate(invalid="ignore"):
            each = right[:, 0] / np.where(self._tests > 0, self._tests, np.nan)
        return History(
            np.array(self._rounds),
            _share(right[:, 0], self._tests),
            each,
            _share(right[:, 1], self._validations),
            losses,
            self.place.server,
            self.place.states,
            Status.converged if finite else Status.diverged,
            spent(strategy, sampler, rounds, len(clients)),
            strategy,
            clients,
            key,
            self._stacked(),
        )


@jax.jit
def _finite(tree: PyTree) -> Bool[Array, ""]:
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


def _share(right: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return right.sum(1) / counts.sum() if counts.sum() else np.full(len(right), np.nan)
