"""ε of Gaussian releases, and the noise for a given ε."""

import math
from collections.abc import Callable

from .. import _validate
from .._typing import ScalarLike
from ._compose import SENSITIVITY, Accountant, Adjacency, check_question, compose, library
from ._events import GaussianRounds


def epsilon(
    noise_multiplier: ScalarLike,
    rounds: int,
    *,
    delta: float,
    sampling_rate: float = 1.0,
    adjacency: Adjacency = "replace-one",
    accountant: Accountant = "pld",
) -> float:
    """ε of `rounds` Gaussian releases for one user, at δ, under a named adjacency.

    A round releases Σ_k clip(v_k; ζ) + N(0, (σζ)² I) over the users it sampled, each with probability q
    (`kernels.gaussian_mechanism`); later rounds may depend on earlier releases. The unit is the user: all of a
    user's data, in all rounds. The smallest ε is returned for which every pair of neighbouring federations D, D′
    has P(D) ≤ e^ε P(D′) + δ on every event.

    **Not covered:** The number of users n, which is public. A `key` that can be guessed or is used twice
    (`privacy.secret_key`). Floating point: this ε is of noise in real numbers. The low-order bits of float noise can
    tell D from D′ all the same, unless the release was made by `kernels.grid_gaussian_mechanism`.

    **Args:**

    - `noise_multiplier`: σ ≥ 0, standard deviation of the noise over the clip norm, under either adjacency.
    - `rounds`: T ≥ 1. `delta`: in (0, 1), well below 1 / number of users.
    - `sampling_rate`: q in (0, 1], Poisson: an independent coin for each user and round. Sets of a fixed size
      have another ε: `FixedSize`.
    - `adjacency`: what a neighbour is. `"replace-one"`: one user's data are exchanged for any other (the clipped
      sum moves by 2ζ). `"add-or-remove-one"`: one user more or fewer (ζ), by zero-out: the user's updates are there
      or are zero, and n is the same. An ε means nothing without it: without sampling, one is the other at half the σ.
    - `accountant`: `"pld"`, privacy loss distributions: exact without sampling; with it, above by at most about
      5e-4 of ε (of 1, where ε is larger). `"rdp"`, Rényi divergences, as the paper does: an upper bound, 5–10 %
      above in the usual range.

    **Returns:** ε ≥ 0. Infinity, with a warning, for σ = 0 and where ε is more than a float holds. For σ < 0.01
    `"pld"` does not credit sampling: the ε without it, an upper bound in the thousands, is returned.

    **Raises:** `ValueError` for values outside these ranges, for a traced σ, and for Poisson sampling under
    replace-one with `"rdp"` (no bound is implemented: take `"pld"`). `ImportError` without the extra
    `clairjax[privacy]`.

    **Source:** CENTAUR, section 2, remark 4.1 and A.4; composition and conversion by dp-accounting, without
    sampling in closed form (Balle and Wang 2018: the T rounds are one round at σ/√T). Departs from print:
    Definition 2.1 and A.4 are replace-one (Rényi cost 2αT/σ²), remark 4.1 and the reported ε add-or-remove-one
    (αT/(2σ²)). Theorem 5.2's ε = 2√(T log(1/δ))/σ is too small: where it says 1, at δ = 1e-5, this function says
    1.11 under replace-one.

    **Cost:** below a millisecond without sampling; with it 0.02 to 2 s, most for a rate below 1e-2, and 1/σ²
    milliseconds for small σ: 10 s at σ = 0.01.
    Float64 on the host, whatever the data.

    >>> from clairjax import privacy
    >>> round(privacy.epsilon(20.0, 200, delta=1e-5, adjacency="add-or-remove-one"), 3)
    2.943
    >>> round(privacy.epsilon(20.0, 200, delta=1e-5, adjacency="replace-one"), 3)
    6.573
    """
    event = GaussianRounds(noise_multiplier, rounds, sampling_rate)
    return compose((event,), delta, adjacency, accountant)


def noise_multiplier(
    epsilon: float,
    rounds: int,
    *,
    delta: float,
    sampling_rate: float = 1.0,
    adjacency: Adjacency = "replace-one",
    accountant: Accountant = "pld",
) -> float:
    """The least noise multiplier σ whose `epsilon` does not exceed the one asked for.

    `privacy.epsilon(σ, …)` with the same arguments is at most `epsilon`, and within 1e-3 of it. It covers no more than
    that ε does: real numbers, not floats, and a secret `key`; see `privacy.epsilon` under "Not covered".

    **Args:** `epsilon` > 0, finite; the others as in `epsilon`.

    **Returns:** σ > 0.

    **Raises:** `ValueError` as `epsilon` does, and for δ ≥ 1 − (1 − q)^T, a user's chance to be sampled at all: no
    noise is needed for such a δ, and it protects nobody.

    **Source:** as `epsilon`.

    **Cost:** ten to twenty calls of `epsilon`.

    >>> from clairjax import privacy
    >>> round(privacy.noise_multiplier(1.0, 200, delta=1e-5, adjacency="add-or-remove-one"), 1)
    52.8
    >>> round(privacy.noise_multiplier(1.0, 200, delta=1e-5, adjacency="replace-one"), 1)
    105.5
    """
    _validate.positive(epsilon, "epsilon")
    check_question((GaussianRounds(1.0, rounds, sampling_rate),), delta, adjacency, accountant)
    chance = 1.0 if sampling_rate == 1 else -math.expm1(rounds * math.log1p(-sampling_rate))
    if delta >= chance:
        raise _validate.fail("delta", f"below a user's chance to be sampled at all, {chance:.4g}", delta)
    aim = epsilon - 1e-4 * min(1.0, epsilon)  # a root that is off by little is still below epsilon

    def excess(log: float) -> float:
        events = (GaussianRounds(math.exp(log), rounds, sampling_rate),)
        return compose(events, delta, adjacency, accountant) - aim

    unsampled = library().get_sigma_gaussian(epsilon, delta) * SENSITIVITY[adjacency] * math.sqrt(rounds)
    root = _root(excess, *_bracket(excess, math.log(unsampled)))
    while excess(root) > epsilon - aim:  # the grid of a privacy loss distribution may leave a step there
        root += 1e-6
    return math.exp(root)


def _bracket(excess: Callable[[float], float], guess: float) -> tuple[float, float]:
    """Two places, excess at the first and none at the second."""
    high = guess
    while excess(high) > 0:
        high += 0.2
    low = high - 0.4
    while excess(low) < 0:
        low, high = low - 0.4, low
    return low, high


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    return brentq(function, low, high, xtol=1e-6)
