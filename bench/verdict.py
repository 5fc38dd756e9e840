"""Claims: `pool` names the contaminated adapter of eleven and no honest one, also where clients' tasks differ.

`python -m bench verdict` draws fleets. `python -m bench.verdict DIR` takes fleets that were trained: DIR has a folder
of PEFT folders for each, with `labels.json`, {"clients": {name: {"kind": …, "class": "honest", "honest-different" or
"contaminated"}}}. The kind "backdoor" is left out, since no verdict from factors can see it.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

import clairjax as cj

from ._report import Check, Report, show


LAYERS, SIDE, RANK, NOISE = 8, 32, 4, 0.6
ARC = 100  # degrees between the tasks of clients that have one each
TARGETS = {"1 of 11": 45 / 46, "4 of 12": 0.97, "4 of 11 flips": 1.0, "1 of 5": 0.92, "a task each, 1 of 10": 1.0}

Client = list[tuple[np.ndarray, np.ndarray]]  # B and A of each module


class Draw(NamedTuple):
    """A fleet whose first `bad` clients are to be named."""

    what: str
    clients: list[Client]
    bad: int = 0


def measure(quick: bool) -> Report:
    return _report("a verdict by direction, fleets drawn", drawn(np.random.default_rng(0), 2 if quick else 100))


def trained(folder: Path, draws: int = 30) -> Report:
    rng = np.random.default_rng(0)
    fleets = sorted(path.parent for path in folder.glob("*/labels.json"))
    return _report(
        "a verdict by direction, fleets trained", (each for fleet in fleets for each in of(fleet, rng, draws))
    )


def _report(claim: str, draws: Iterable[Draw]) -> Report:
    counts: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(5, int))
    seconds: dict[str, list[float]] = defaultdict(list)
    for draw in draws:
        began = time.process_time()
        words = np.array(cj.alignment.pool(_evidence(layer) for layer in zip(*draw.clients, strict=True)).words)
        seconds[draw.what].append(time.process_time() - began)
        bad, honest = words[: draw.bad], words[draw.bad :]
        named = (~np.isin(bad, ("member", "undecided"))).sum()
        out = (~np.isin(honest, ("member", "undecided", "rescaled"))).sum()
        counts[draw.what] += [len(bad), named, len(honest), out, (honest == "undecided").sum()]
    columns = "contaminated", "named", "honest", "honest named", "honest undecided"
    rows = [
        {"fleet": what, **dict(zip(columns, each.tolist(), strict=True)), "CPU s": float(np.mean(seconds[what]))}
        for what, each in counts.items()
    ]
    checks = [
        Check(f"share named, {what}", counts[what][1] / counts[what][0], target, at_least=True)
        for what, target in TARGETS.items()
        if what in counts
    ]
    whole = sum(counts.values())
    return Report(claim, rows, [*checks, Check("share of honest clients named", whole[3] / whole[2], 0.003)])


def _evidence(layer: tuple[tuple[np.ndarray, np.ndarray], ...]) -> cj.alignment.Evidence:
    rank = max(len(down) for _, down in layer)
    ups = np.stack([np.pad(up, ((0, 0), (0, rank - up.shape[1]))) for up, _ in layer])
    return cj.alignment.evidence((ups, np.stack([np.pad(down, ((0, rank - len(down)), (0, 0))) for _, down in layer])))


def drawn(rng: np.random.Generator, draws: int) -> Iterator[Draw]:
    kinds = {"stranger": _stranger, "flip": _flip, "ten times": lambda rng, client: [(10 * up, a) for up, a in client]}
    for number in range(draws):
        own = bool(number % 2)
        for kind in kinds.values():
            for count in (11, 5):
                first, *others = _fleet(rng, np.zeros(count), own)
                yield Draw(f"1 of {count}", [kind(rng, first), *others], 1)
        fleet = _fleet(rng, np.zeros(11), own)
        yield Draw("4 of 11 flips", [_flip(rng, each) for each in fleet[:4]] + fleet[4:], 4)
        yield Draw("honest", _fleet(rng, np.zeros(rng.integers(3, 20)), own))
        first, *others = _fleet(rng, np.deg2rad(rng.uniform(0, ARC, 10)), own=False)
        yield Draw("a task each, 1 of 10", [_stranger(rng, first), *others], 1)
        yield Draw("a task each, honest", others)


def _fleet(rng: np.random.Generator, angles: np.ndarray, own: bool) -> list[Client]:
    """Their tasks lie on an arc between two; all start from one A, or each from its own."""
    tasks, starts = rng.normal(size=(LAYERS, 2, SIDE, SIDE)), rng.normal(size=(LAYERS, RANK, SIDE))
    clients: list[Client] = []
    for angle in angles:
        mine = np.cos(angle) * tasks[:, 0] + np.sin(angle) * tasks[:, 1] + NOISE * rng.normal(size=tasks[:, 0].shape)
        downs = rng.normal(size=starts.shape) if own else starts + 0.1 * rng.normal(size=starts.shape)
        clients.append([(task @ np.linalg.pinv(down), down) for task, down in zip(mine, downs, strict=True)])
    return clients


def _stranger(rng: np.random.Generator, client: Client) -> Client:
    return [(up.std() * rng.normal(size=up.shape), down) for up, down in client]


def _flip(_: np.random.Generator, client: Client) -> Client:
    return [(-up, down) for up, down in client]


def of(fleet: Path, rng: np.random.Generator, draws: int) -> Iterator[Draw]:
    """What is asked of a verdict, of one fleet's clients."""
    labels = json.loads((fleet / "labels.json").read_text())["clients"]
    read = cj.adapters.load([fleet / name for name in labels])
    clients = {name: [_factors(read.clients[name], module) for module in read.modules] for name in labels}
    groups: dict[str, list[str]] = defaultdict(list)
    for name, label in labels.items():
        groups[label["class"] if label["kind"] != "backdoor" else "backdoor"].append(name)
    honest, different, bad = groups["honest"], groups["honest-different"], groups["contaminated"]

    def draw(what: str, of_bad: list[str], count: int) -> Draw:
        others = rng.permutation(honest)[:count].tolist()
        return Draw(what, [clients[name] for name in [*of_bad, *others]], len(of_bad))

    yield Draw("honest and different", [clients[name] for name in [*different, *honest]])
    for name in bad:
        yield draw("1 of 11", [name], 10)
        yield from (draw("1 of 5", [name], 4) for _ in range(max(1, draws // len(bad))))
    for _ in range(draws):
        yield draw("4 of 12", rng.permutation(bad)[:4].tolist(), 8)
        yield draw("honest", [], int(rng.integers(4, len(honest) + 1)))
        flips, others = np.split(rng.permutation(honest)[:11], [4])
        yield Draw("4 of 11 flips", [_flip(rng, clients[n]) for n in flips] + [clients[n] for n in others], 4)


def _factors(client: Any, module: str) -> tuple[np.ndarray, np.ndarray]:
    up, down, scale = client.factors(module)
    return scale * up.astype(np.float64), down.astype(np.float64)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python -m bench.verdict DIR: a folder of fleets that were trained.")
    show(Console(), "verdict", trained(Path(sys.argv[1])))
