"""Runs of what is audited, in chunks of one compiled program, and the search for the canary that shows most."""

from collections.abc import Callable, Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .. import _validate
from .._typing import Key
from ._canary import GaussianCanary, Program
from ._patterns import Canary, fixed_canaries, log_ratio, quietest, silence


LEARN, SEARCH = 2**32 - 2, 2**32 - 1  # folded into the key: numbers that no run has
NUMBERS = 2**22  # of noise to learn from; at least 64 runs, at most 2048
ENOUGH = 5000  # runs to see which canary shows most


def scores_alone(release: Callable, runs: int, chunk: int, key: Key) -> Float[np.ndarray, "worlds runs"]:
    """Of a function of (key, world) to a score."""
    parts = [scores for _, scores in _outputs(_Alone(release), np.zeros(2 * runs, int), chunk, key)]
    return _numbers(np.concatenate(parts)).reshape(runs, 2).T


def scores_of_strongest(
    release: GaussianCanary, runs: int, chunk: int, key: Key, bound: Callable[[np.ndarray], float]
) -> tuple[Float[np.ndarray, "worlds runs"], str]:
    """Of the canary with the largest bound on other runs, as many, which all canaries share; and its name."""
    named = _canaries(release, chunk, jax.random.fold_in(key, LEARN))
    canaries, names, each = list(named.values()), list(named), min(max(runs // len(named), 20), ENOUGH)
    shared = np.arange(2 * each * len(names)) // 2 % len(names)
    tried = _scores(release, canaries, shared, chunk, jax.random.fold_in(key, SEARCH))
    best = int(np.argmax([bound(scores) for scores in tried.reshape(each, len(names), 2).transpose(1, 2, 0)]))
    return _scores(release, canaries, np.full(2 * runs, best), chunk, key).reshape(runs, 2).T, names[best]


def _canaries(release: GaussianCanary, chunk: int, key: Key) -> dict[str, Canary]:
    """All of them; two are learned from runs in which nobody sends anything."""
    rounds, size, absent = release.rounds, release.size, release.absent
    found = fixed_canaries(rounds, size, release.clients, absent, float(jnp.finfo(jnp.result_type(float)).max))
    quiet, shape = "least noise", "shape of the noise"
    silent = [silence(rounds, size)] * (len(found) + 2)  # as many as there will be: one program runs all
    runs = np.zeros(min(max(NUMBERS // (rounds * size), 64), 2048), int)
    noise = [part for _, part in _outputs(Program.of(release, silent), runs, chunk, key)]
    learned = np.concatenate(noise).astype(np.float64)
    curve = log_ratio(learned[:, :, 0], absent)
    return found | {quiet: quietest(learned, absent), shape: found["one entry"]._replace(curve=curve)}


def _scores(
    release: GaussianCanary, canaries: Sequence[Canary], which: np.ndarray, chunk: int, key: Key
) -> Float[np.ndarray, " runs"]:
    scores = np.empty(len(which))
    for part, released in _outputs(Program.of(release, canaries), which, chunk, key):
        for one in np.unique(which[part]):
            mine = which[part] == one
            scores[part][mine] = canaries[one].score(released[mine])
    return _numbers(scores)


def _numbers(scores: np.ndarray) -> Float[np.ndarray, " runs"]:
    if np.isnan(scores).any():
        raise _validate.fail("release", "a function whose scores are numbers", f"NaN in {np.isnan(scores).sum()} runs")
    return scores.astype(np.float64)


class _Alone(eqx.Module):
    """A release without canaries to choose from, as a `Program`."""

    release: Callable

    def __call__(self, which: Array, key: Key, world: Array) -> Float[Array, ""]:
        return self.release(key, world)


def _outputs(
    program: Program | _Alone, which: np.ndarray, chunk: int, key: Key
) -> Iterator[tuple[slice, Float[np.ndarray, "runs ..."]]]:
    """By chunks. Run i is with canary `which[i]`, in world i % 2, and depends on `fold_in(key, i)` alone."""
    for start in range(0, len(which), chunk):
        part = slice(start, min(start + chunk, len(which)))
        number = np.arange(start, start + chunk)  # a whole chunk: a shorter one would be compiled, too
        yield part, np.asarray(_chunk(program, np.resize(which[part], chunk), number, key))[: part.stop - start]


@eqx.filter_jit
def _chunk(program: Program | _Alone, which: ArrayLike, number: ArrayLike, key: Key) -> Float[Array, "runs ..."]:
    return jax.vmap(lambda w, i: program(w, jax.random.fold_in(key, i), i % 2 == 1))(which, number)
