"""Claim: replicates of FLUTE and of CENTAUR, compiled together, beat the plain NumPy loop of the same algorithm.

Both sides are handed the Gram matrices' worth of data once and run all rounds; NumPy's loop runs a replicate at a time
on Gram matrices it already has, with batched products over the clients. The last rows are the time of one round.
CENTAUR's noise is drawn in floats, as NumPy's is, except in the row of the default mechanism, which works in whole
numbers.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from clairjax.data import LinearTasks, SharedSubspace
from clairjax.kernels import gaussian_mechanism, grid_gaussian_mechanism
from clairjax.representation import centaur, flute

from . import _measure
from ._report import Check, Report


class Size(NamedTuple):
    flute_replicates: int
    flute_rounds: int
    centaur_replicates: int
    centaur_rounds: int
    clients: int  # of CENTAUR
    growth: tuple[tuple[int, int, int], ...]  # clients, samples, features


FULL = Size(
    100,
    1000,
    20,
    40,
    1000,
    ((100, 100, 25), (400, 100, 25), (1600, 100, 25), (400, 400, 25), (400, 100, 50), (400, 25, 50)),
)
QUICK = Size(3, 20, 2, 5, 50, ((20, 10, 5),))
M, N, D, K = 30, 20, 10, 6  # FLUTE's, as in C.1
SAMPLES, FEATURES, RANK = 80, 50, 2  # CENTAUR's
STEP, NOISE, CLIP = 0.03, 12.6, 0.1


def measure(quick: bool) -> Report:
    size = QUICK if quick else FULL
    rows, checks = [], []
    for name, pair, target in (("FLUTE", _flute, 5.0), ("CENTAUR", _centaur, 1.0)):
        new = pair(size)
        numpy = next(row for row in new if row["how"] == "NumPy")["run s"]
        for row in new:
            row["× faster"] = numpy / row["run s"]
        best = max(row["× faster"] for row in new)
        rows += new
        checks.append(Check(f"{name}: × faster than NumPy", best, target, at_least=True))
        checks.append(Check(f"{name}: compile, s", max(row.get("compile s", 0) for row in new), 5))
        checks.append(Check(f"{name}: relative difference", max(row.pop("differs") for row in new), 1e-8))
    mechanisms, ratio = _mechanisms(size)
    checks.append(Check("CENTAUR: × the time of a round, in whole numbers", ratio, 3))
    return Report("FLUTE and CENTAUR against NumPy, float64", rows + _growth(size) + mechanisms, checks)


def _flute(size: Size) -> list[dict[str, Any]]:
    keys = jax.random.split(jax.random.key(1), size.flute_replicates)
    draw = jax.jit(jax.vmap(lambda key: LinearTasks(M, D, N).generate(key=key)))
    problems = draw(keys)
    data = problems.inputs, problems.targets

    def one(inputs, targets, key):  # type: ignore[no-untyped-def]
        return flute(inputs, targets, K, key=key, rounds=size.flute_rounds, step_size=STEP).coefficients

    lanes = lambda *each: jax.lax.map(lambda args: one(*args), each, batch_size=10)  # as a sweep does
    timings = {"vmap": _measure.jitted(jax.vmap(one), *data, keys, repeats=3)}
    timings["10 lanes"] = _measure.jitted(lanes, *data, keys, repeats=3)
    inputs, targets = (np.asarray(array) for array in data)
    grams = np.einsum("rmnd,rmne->rmde", inputs, inputs) / N
    moments = np.einsum("rmnd,rmn->rmd", inputs, targets) / N
    starts = jax.jit(jax.vmap(lambda x, y, key: flute(x, y, K, key=key, rounds=1, step_size=1e-300)))(*data, keys)
    starts = np.asarray(starts.basis), np.asarray(starts.heads)

    def loop() -> np.ndarray:
        runs = zip(grams, moments, *starts, strict=True)
        return np.stack([_flute_loop(*run, size.flute_rounds) for run in runs])

    reference, expected = _measure.plain(loop, repeats=1)
    where = {"what": f"FLUTE, {size.flute_replicates} × {size.flute_rounds} rounds", "M": M, "N": N, "d": D, "k": K}
    rows = [where | {"how": "NumPy", "run s": reference.run, "cpu s": reference.cpu, "differs": 0.0}]
    for how, (timing, found) in timings.items():
        seconds = {"compile s": timing.compile, "run s": timing.run, "cpu s": timing.cpu}
        rows.append(where | {"how": how} | seconds | {"differs": float(abs(np.asarray(found) / expected - 1).max())})
    return rows


def _flute_loop(gram: np.ndarray, moment: np.ndarray, basis: np.ndarray, heads: np.ndarray, rounds: int) -> np.ndarray:
    for _ in range(rounds):
        residual = np.matmul(gram, (heads @ basis.T)[:, :, None])[:, :, 0] - moment
        inner, outer = basis.T @ basis, heads.T @ heads
        change = residual.T @ heads - 0.5 * basis @ outer + 0.5 * basis @ inner
        heads = heads - STEP * (residual @ basis - 0.5 * heads @ inner + 0.5 * heads @ outer)
        basis = basis - STEP * change
    return heads @ basis.T


def _centaur(size: Size) -> list[dict[str, Any]]:
    problem = SharedSubspace(size.clients, SAMPLES, FEATURES, RANK).generate(key=jax.random.key(2))
    keys = jax.random.split(jax.random.key(3), size.centaur_replicates)

    def one(key, inputs, targets):  # type: ignore[no-untyped-def]
        options = {"rounds": size.centaur_rounds, "noise_multiplier": NOISE, "clip_norm": CLIP}
        return centaur(inputs, targets, RANK, key=key, mechanism=gaussian_mechanism, **options).basis

    rows = []
    for how, batched in (
        ("vmap", lambda keys, x, y: jax.vmap(one, (0, None, None))(keys, x, y)),
        ("lax.map", lambda keys, x, y: jax.lax.map(lambda key: one(key, x, y), keys)),
    ):
        timing, _ = _measure.jitted(batched, keys, problem.inputs, problem.targets, repeats=3)
        rows.append({"how": how, "compile s": timing.compile, "run s": timing.run, "cpu s": timing.cpu})
    inputs, targets = np.asarray(problem.inputs), np.asarray(problem.targets)
    gram = np.einsum("nmd,nme->nde", inputs, inputs, optimize=True) / SAMPLES
    moment = np.einsum("nmd,nm->nd", inputs, targets) / SAMPLES
    rng = np.random.default_rng(4)
    starts = [np.linalg.qr(rng.standard_normal((FEATURES, RANK)))[0] for _ in keys]
    loop = lambda: [_centaur_loop(gram, moment, start, NOISE, size.centaur_rounds, rng) for start in starts]
    reference, _ = _measure.plain(loop, repeats=1)
    rows.append({"how": "NumPy", "run s": reference.run, "cpu s": reference.cpu})
    silent = _centaur_loop(gram, moment, starts[0], 0.0, size.centaur_rounds, rng)
    ours = centaur(
        *(problem.inputs, problem.targets, RANK),
        key=keys[0],
        rounds=size.centaur_rounds,
        noise_multiplier=0.0,
        clip_norm=CLIP,
        init=starts[0],
        mechanism=gaussian_mechanism,
    ).basis
    differs = float(jnp.abs(ours @ ours.T - silent @ silent.T).max())
    what = f"CENTAUR, {size.centaur_replicates} × {size.centaur_rounds} rounds"
    where = {"what": what, "M": size.clients, "N": SAMPLES, "d": FEATURES, "k": RANK}
    return [where | row | {"differs": differs} for row in rows]


def _centaur_loop(
    gram: np.ndarray, moment: np.ndarray, basis: np.ndarray, noise: float, rounds: int, rng: np.random.Generator
) -> np.ndarray:
    decay = (1 - np.arange(rounds) / rounds) ** 3
    for step in 16 * RANK * decay / decay.sum() / CLIP:
        half = gram @ basis
        heads = np.linalg.solve(basis.T @ half, (moment @ basis)[:, :, None])[:, :, 0]
        residual = np.matmul(half, heads[:, :, None])[:, :, 0] - moment
        norms = np.linalg.norm(residual, axis=1) * np.linalg.norm(heads, axis=1)
        total = (residual * np.minimum(1, CLIP / norms)[:, None]).T @ heads
        total += noise * CLIP * rng.standard_normal(total.shape)
        basis, _ = np.linalg.qr(basis - step * total / len(moment))
    return basis


def _growth(size: Size) -> list[dict[str, Any]]:
    rows = []
    for clients, samples, features in size.growth:
        problem = SharedSubspace(clients, samples, features, RANK).generate(key=jax.random.key(5))
        for what, run in (
            ("FLUTE", _flute_rounds),
            ("CENTAUR", functools.partial(_centaur_rounds, gaussian_mechanism)),
        ):
            where = {"M": clients, "N": samples, "d": features, "k": RANK}
            rows.append({"what": f"{what}, one round", "how": "", **where, "run s": _a_round(run, problem)})
    return rows


def _mechanisms(size: Size) -> tuple[list[dict[str, Any]], float]:
    """A round of few samples, where the release is most of the work, in floats and in whole numbers; their ratio."""
    problem = SharedSubspace(size.clients, 20, FEATURES, RANK).generate(key=jax.random.key(5))
    where = {"what": "CENTAUR, one round", "M": size.clients, "N": 20, "d": FEATURES, "k": RANK}
    seconds = {
        how: _a_round(functools.partial(_centaur_rounds, mechanism), problem)
        for how, mechanism in (("floats", gaussian_mechanism), ("whole numbers", grid_gaussian_mechanism))
    }
    rows = [where | {"how": how, "run s": each} for how, each in seconds.items()]
    return rows, seconds["whole numbers"] / max(seconds["floats"], 1e-9)


def _a_round(run: Callable[..., jax.Array], problem: Any) -> float:
    """Seconds, from the difference of two numbers of rounds."""
    few, many = (
        _measure.jitted(functools.partial(run, rounds), problem.inputs, problem.targets, repeats=3)[0].run
        for rounds in (10, 60)
    )
    return max(many - few, 0.0) / 50


def _flute_rounds(rounds: int, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    return flute(inputs, targets, RANK, key=jax.random.key(6), rounds=rounds, step_size=1e-4).basis


def _centaur_rounds(
    mechanism: Callable[..., jax.Array], rounds: int, inputs: jax.Array, targets: jax.Array
) -> jax.Array:
    options = {"rounds": rounds, "noise_multiplier": NOISE, "mechanism": mechanism}
    return centaur(inputs, targets, RANK, key=jax.random.key(6), **options).basis
