"""What a canary user sends and how an attacker reads the releases: fixed patterns, and two learned from noise."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


LONG = 3.0  # clip norms, so that the clip is audited, too
PLACES = 256  # of a block of rounds and entries in which noise may be correlated: its covariance is inverted
KNOTS = 4096


class Canary(NamedTuple):
    """What a run is with it, and its score: Σ_t ⟨release_t, weights_t⟩, or a `Curve` of each term. In clip norms."""

    sent: Float[np.ndarray, "worlds rounds features"]  # by the canary, in each world
    others: Float[np.ndarray, "rounds features"]  # by each other user
    weights: Float[np.ndarray, "rounds features"]
    clip_norm: float = 1.0
    curve: "Curve | None" = None

    def score(self, releases: Float[np.ndarray, "runs rounds features"]) -> Float[np.ndarray, " runs"]:
        seen = np.einsum("ntd,td->nt", releases, self.weights)
        with np.errstate(over="ignore"):  # of entries as large as a float that nobody clipped
            return (seen if self.curve is None else self.curve(seen)).sum(1)


class Curve(NamedTuple):
    """A function of one number, constant between `knots`, and beyond them."""

    knots: Float[np.ndarray, " knots"]
    values: Float[np.ndarray, " knots"]

    def __call__(self, number: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        return self.values[np.searchsorted(self.knots[1:], number)]


def one_entry(rounds: int, features: int, absent: float) -> Canary:
    """The same entry in every round. If the noise is as it should be, no canary shows more."""
    return _along(_rows(rounds, features, {0: 1.0}), absent)


def fixed_canaries(rounds: int, features: int, clients: int, absent: float, largest: float) -> dict[str, Canary]:
    """One for each mistake that can be foreseen. `absent`: how much of what it sends the canary's neighbour sends."""
    entry = one_entry(rounds, features, absent)
    found = {"one entry": entry}
    # A clip by entry or by leaf lets each have a whole clip norm; noise that is not in proportion shows where ζ ≠ 1.
    every = np.full((rounds, features), features**-0.5)
    found["all entries"] = _along(every, absent, LONG * features**0.5)._replace(clip_norm=4.0)
    if features > 1:
        contrast = _rows(rounds, features, {0: 0.5**0.5, 1: -(0.5**0.5)})
        found["two entries, opposite"] = _along(contrast, absent)._replace(clip_norm=0.25)
    if rounds > 1:
        found["alternating rounds"] = _along(entry.weights * (-1.0) ** np.arange(rounds)[:, None], absent)
    found["there or not"] = _along(entry.weights, 0.0)  # noise that depends on what is sent
    if clients > 1:  # a divisor or a scale for all that depends on the canary would move the others' share
        found["against the others"] = _along(entry.weights, 0.0, 10 * LONG)._replace(others=-entry.weights)
    return found | {"as large as a float": _along(entry.weights, absent, largest / 4)}


def _rows(rounds: int, features: int, entries: dict[int, float]) -> Float[np.ndarray, "rounds features"]:
    row = np.zeros(features)
    row[list(entries)] = list(entries.values())
    return np.broadcast_to(row, (rounds, features))


def _along(direction: np.ndarray, absent: float, length: float = LONG) -> Canary:
    return Canary(np.stack([absent * length * direction, length * direction]), np.zeros_like(direction), direction)


def quietest(noise: Float[np.ndarray, "runs rounds features"], absent: float) -> Canary:
    """Along the direction that the noise hides least: unit x_t in each round, of the largest xᵀ Σ⁻¹ x.

    Σ is the covariance within blocks of rounds. The maximum is climbed by x_t ← (Σ⁻¹x)_t normalised, which never
    descends; the attacker's weights are Σ⁻¹x, the best for that x.
    """
    _, rounds, features = noise.shape
    entries = np.unique(np.linspace(0, features - 1, min(features, PLACES // 4)).astype(int))
    block = min(rounds, PLACES // len(entries))
    blocks = noise[:, : rounds // block * block, entries].reshape(-1, block * len(entries))
    blocks = blocks - blocks.mean(0)
    covariance = blocks.T @ blocks / len(blocks)
    scale = np.trace(covariance) / len(covariance) or 1.0
    inverse = np.linalg.inv(covariance / scale + 1e-9 * np.eye(len(covariance)))
    weights = np.random.default_rng(0).standard_normal((block, len(entries)))
    for _ in range(30):
        direction = weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-30)
        weights = (inverse @ direction.reshape(-1)).reshape(direction.shape)
    weights *= block / (weights * direction).sum()  # scores in clip norms, as those of the other canaries

    def everywhere(part: np.ndarray) -> np.ndarray:
        whole = np.zeros((rounds, features))
        whole[:, entries] = part[np.arange(rounds) % block]
        return whole

    return _along(everywhere(direction), absent)._replace(weights=everywhere(weights))


def log_ratio(noise: Float[np.ndarray, "..."], absent: float) -> Curve:
    """log p(s − 1)/p(s − absent) for noise of density p, by counts: the best score whatever the shape of the noise."""
    ordered = np.sort(noise, axis=None)
    knots, step = np.linspace(ordered[0] - 1.5, ordered[-1] + 1.5, KNOTS, retstep=True)
    half = max(0.25 * (1 - absent), step / 2)
    count = lambda at: np.searchsorted(ordered, at + half) - np.searchsorted(ordered, at - half)
    middle = knots + step / 2
    return Curve(knots, np.log((count(middle - 1) + 1) / (count(middle - absent) + 1)))


def silence(rounds: int, features: int) -> Canary:
    """Nobody sends anything: all that is released is noise."""
    nothing = np.zeros((rounds, features))
    return Canary(np.stack([nothing, nothing]), nothing, nothing)
