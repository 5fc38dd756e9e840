"""Lower bounds on ε by experiment: an attacker who tries to tell two neighbouring federations apart."""

from collections.abc import Callable
from typing import NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _validate
from .._typing import Key
from ._canary import GaussianCanary
from ._compose import Adjacency, gaussian_epsilon
from ._runs import scores_alone, scores_of_strongest


Rates = tuple[np.ndarray, np.ndarray]

STRICTER = 0.02  # tails in the choice, lest it fall on a few lucky scores: bounds in the unlucky 5 % of audits double


class Attack(NamedTuple):
    """Says "second world" where `sign · score ≥ sign · threshold`; upper bounds on how often it is wrong."""

    threshold: float
    sign: int
    false_positive_rate: float
    false_negative_rate: float


class Audit(eqx.Module):
    """What the attacks proved, each at `confidence` on its own: a claimed ε below `epsilon` is refuted.

    - `epsilon`: lower bound at δ, whatever the mechanism; `attack` is the test that gave it.
    - `gaussian_epsilon`: sharper lower bound, where the worst case is one Gaussian against a shifted Gaussian:
      Gaussian releases with every user in every round. It refutes the claimed shift μ, and with it the claimed ε at
      every δ. It says nothing about a sampled mechanism, whose curve is not of this form. `gaussian_mu` is the shift
      it found, `gaussian_attack` the test.
    - `canary`: of those that a `GaussianCanary` has, the one that found it; empty for a release of your own.
    - `scores` [world, run], for a histogram.
    """

    epsilon: float
    gaussian_epsilon: float
    gaussian_mu: float
    attack: Attack
    gaussian_attack: Attack
    scores: Float[np.ndarray, "worlds runs"]
    delta: float
    confidence: float
    adjacency: str = eqx.field(static=True)
    canary: str = eqx.field(static=True, default="")

    def report(self) -> str:
        """The bounds in words, with what an ε is never printed without."""
        level = f"with {100 * self.confidence:g} % confidence"
        words = (
            f"For one user under {self.adjacency}, at delta = {self.delta:g}, {level}: epsilon is at least "
            f"{self.epsilon:.4g}; at least {self.gaussian_epsilon:.4g} (mu {self.gaussian_mu:.4g}) if its curve is "
            f"that of a Gaussian mechanism. {self.scores.shape[1]} runs in each world, half to choose the attack."
        )
        return f'{words} Of all canaries the one called "{self.canary}" showed most.' if self.canary else words


def audit(
    release: Callable[[Key, Bool[Array, ""]], Float[Array, ""]],
    *,
    runs: int,
    delta: float,
    key: Key,
    adjacency: Adjacency = "replace-one",
    confidence: float = 0.95,
    chunk: int = 256,
) -> Audit:
    """Lower bound on a mechanism's ε, from runs with a canary user in one state or another.

    The mechanism runs `runs` times in each of two neighbouring worlds. An attacker says "second world" where the
    score of a run is above a threshold, or below it. The first half of the runs chooses the threshold, the second half
    judges it. With both error rates at most their Clopper–Pearson bounds α and β, at tail (1 − confidence)/2 each,
    (ε, δ)-privacy needs ε ≥ log((1 − δ − β)/α) and ε ≥ log((1 − δ − α)/β). And a mechanism of which every attack is
    one on N(0, 1) against N(μ, 1) needs μ ≥ Φ⁻¹(1 − α) − Φ⁻¹(β).

    A canary sees some mistakes and is blind to others: if it sends one entry alone, it cannot tell noise that all
    entries share from noise. A `GaussianCanary` therefore has up to nine. As many runs again, shared by all nine,
    find the canary of the largest bound. Then new runs of that canary alone choose and judge the attack, so that the
    confidence is the stated one. A release of your own has the one canary that you gave it.

    **Args:**

    - `release`: a `GaussianCanary`, or `release(key, world)`. That is one run of the whole mechanism, from a key and a
      traced bool, to a score that tends to differ between the worlds. It is traced once and run under `vmap`. Under
      `"replace-one"` the canary holds x in one world, and in the other what is as far away as possible, such as −x.
      Under `"add-or-remove-one"` it takes part in the second world alone. Whether the worlds really are such
      neighbours is the caller's word, unless the release has an attribute `adjacency`, as `GaussianCanary` does: that
      must be the same.
    - `runs`: ≥ 100 in each world. A few thousand are enough for `gaussian_epsilon`; `epsilon` needs rare events,
      10⁵ for half of an accounted ε = 1.
    - `delta`: in [0, 1). `confidence`: in (0, 1). `chunk`: runs at a time.

    **Returns:** an `Audit`. Its bounds are 0 where nothing was found, which proves nothing. At 95 %, up to one audit
    in twenty of a correct mechanism may claim too much. Of the library's mechanism, which attains the Gaussian bound,
    0.4 % do, and none by `epsilon`.

    **Raises:** `ValueError` for arguments outside these ranges, a release that is not one float, or scores that are
    NaN.

    **Source:** Membership attacks with exact binomial bounds (Jagielski et al. 2020), and their Gaussian form (Nasr
    et al. 2023, after Dong et al.'s Gaussian differential privacy). Auditing in one run (Steinke et al. 2023) saves
    runs at the price of a looser bound; here runs are cheap.

    **Cost:** 2 · `runs` runs of the release, `chunk` at a time, compiled once for each `release` function. A
    `GaussianCanary` takes twice as many (less for `runs` above 45,000), and 2048 to learn from.

    >>> import jax
    >>> from clairjax import privacy
    >>> noise = privacy.noise_multiplier(4.0, 5, delta=1e-5)
    >>> canary = privacy.GaussianCanary(noise, 5)
    >>> found = privacy.audit(canary, runs=2000, delta=1e-5, key=jax.random.key(0))
    >>> 0 < found.epsilon <= found.gaussian_epsilon <= 4.0
    True
    """
    _validate.at_least(runs, "runs", 100)
    _validate.at_least(chunk, "chunk", 1)
    _validate.between(confidence, "confidence", 0, 1)
    if not 0 <= delta < 1:
        raise _validate.fail("delta", "at least 0 and below 1", delta)
    _validate.choice(adjacency, "adjacency", get_args(Adjacency))
    worlds = getattr(release, "adjacency", adjacency)
    if worlds != adjacency:
        raise _validate.fail("adjacency", f"that of the release's two worlds, {worlds!r}", repr(adjacency))
    release = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, release)
    tail, chunk, canary = (1 - confidence) / 2, min(chunk, 2 * runs), ""
    if type(release) is GaussianCanary:
        bound = lambda scores: _mu(_judge(_choose(scores, _shift_bound, tail), scores, tail))
        scores, canary = scores_of_strongest(release, runs, chunk, key, bound)
    else:
        _check_release(release, key)
        scores = scores_alone(release, runs, chunk, key)

    half = runs // 2
    attack_by = lambda bound: _judge(_choose(scores[:, :half], bound, STRICTER * tail), scores[:, half:], tail)
    any_attack = attack_by(lambda rates: _ratio_bound(rates, delta))
    shift_attack = attack_by(_shift_bound)
    epsilon = float(_ratio_bound(_rates(any_attack), delta)[0])
    shift = _mu(shift_attack)
    sharper = gaussian_epsilon(shift, delta)
    return Audit(epsilon, sharper, shift, any_attack, shift_attack, scores, delta, confidence, adjacency, canary)


def _check_release(release: Callable, key: Key) -> None:
    score = eqx.filter_eval_shape(release, key, jnp.asarray(True))
    array = isinstance(score, jax.ShapeDtypeStruct)
    if not array or score.shape != () or not jnp.issubdtype(score.dtype, jnp.floating):
        got = f"one to shape {score.shape} of {score.dtype}" if array else f"one to {type(score).__name__}"
        raise _validate.fail("release", "a function of (key, world) to one float", got)


def _choose(scores: np.ndarray, bound: Callable[[Rates], np.ndarray], tail: float) -> tuple[float, int]:
    """The threshold and sign of the largest bound, over thresholds that are dense at both ends."""
    ordered = np.sort(scores, axis=None)
    steps = np.unique(np.geomspace(1, ordered.size, 300).astype(int)) - 1
    thresholds = np.unique(np.concatenate([ordered[steps], ordered[::-1][steps]]))
    best = {}
    for sign in (1, -1):
        bounds = bound(_error_rates(scores, thresholds, sign, tail))
        place = int(np.argmax(bounds))
        best[sign] = bounds[place], float(thresholds[place])
    sign = 1 if best[1][0] >= best[-1][0] else -1
    return best[sign][1], sign


def _judge(attack: tuple[float, int], scores: np.ndarray, tail: float) -> Attack:
    threshold, sign = attack
    false_positives, false_negatives = _error_rates(scores, np.asarray([threshold]), sign, tail)
    return Attack(threshold, sign, float(false_positives[0]), float(false_negatives[0]))


def _mu(attack: Attack) -> float:
    return float(_shift_bound(_rates(attack))[0])


def _rates(attack: Attack) -> Rates:
    return np.asarray([attack.false_positive_rate]), np.asarray([attack.false_negative_rate])


def _error_rates(scores: np.ndarray, thresholds: np.ndarray, sign: int, tail: float) -> Rates:
    """Upper bounds on both error rates of each threshold."""
    first, second = np.sort(sign * scores, axis=1)
    runs = first.size
    false_positives = runs - np.searchsorted(first, sign * thresholds, side="left")
    false_negatives = np.searchsorted(second, sign * thresholds, side="left")
    return _clopper_pearson(false_positives, runs, tail), _clopper_pearson(false_negatives, runs, tail)


def _clopper_pearson(count: np.ndarray, runs: int, tail: float) -> np.ndarray:
    """The largest rate at which so few in `runs` have probability `tail`."""
    from scipy.stats import beta

    inside = np.minimum(count, runs - 1)
    return np.where(count == runs, 1.0, beta.ppf(1 - tail, inside + 1, runs - inside))


def _ratio_bound(rates: Rates, delta: float) -> np.ndarray:
    wrong, missed = rates
    ratio = np.maximum((1 - delta - missed) / wrong, (1 - delta - wrong) / missed)
    return np.log(np.maximum(ratio, 1.0))


def _shift_bound(rates: Rates) -> np.ndarray:
    from scipy.special import ndtri

    wrong, missed = rates
    possible = (wrong < 1) & (missed < 1)
    shift = -ndtri(np.where(possible, wrong, 0.5)) - ndtri(np.where(possible, missed, 0.5))
    return np.maximum(np.where(possible, shift, 0.0), 0.0)
