"""Events into ε: dp-accounting does the arithmetic, with the sensitivity and the events it is handed here.

One user moves a clipped sum by ζ when added or removed and by 2ζ when replaced; dp-accounting's Rényi accountant takes
ζ for both.
"""

import contextlib
import importlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from .. import _validate
from ._events import GaussianRounds


Adjacency = Literal["replace-one", "add-or-remove-one"]
Accountant = Literal["pld", "rdp"]

SENSITIVITY = {"replace-one": 2.0, "add-or-remove-one": 1.0}  # of the clipped sum, in clip norms
FINEST_GRID = 1e-5
LEAST_SAMPLED = 1e-2  # noise below which grids take minutes; the loss of a round is in the thousands
LARGEST_SHIFT = 1e150  # μ whose ε, about μ²/2, is still a float


def compose(events: Sequence[GaussianRounds], delta: float, adjacency: Adjacency, accountant: Accountant) -> float:
    """ε of all events together, for one user."""
    check_question(events, delta, adjacency, accountant)
    if any(host_number(event.noise_multiplier) == 0 for event in events):
        return _no_privacy("is 0")
    mu = gaussian_strength(events, adjacency)
    if mu > LARGEST_SHIFT:
        return _no_privacy("is as good as 0")
    if mu <= delta:  # no event is more likely by more than μ/√(2π): no ε is needed
        return 0.0
    # Knowing who was sampled can only help an attacker: divergences are jointly convex over who it was. So the ε
    # without sampling is a bound, too; a bound on sampled releases may be above it.
    bounds = [_without_sampling(events, delta, adjacency, accountant)]
    sampled = [host_number(event.noise_multiplier) for event in events if not event.everyone]
    if sampled and (accountant == "rdp" or min(sampled) >= LEAST_SAMPLED):
        bounds.append(_with_sampling(events, delta, adjacency, accountant))
    return float(min(bounds))


def _no_privacy(reason: str) -> float:
    message = f"noise_multiplier {reason}: what is released is not private at all, and epsilon is infinite."
    warnings.warn(message, UserWarning, stacklevel=4)
    return math.inf


def check_question(events: Sequence[GaussianRounds], delta: float, adjacency: str, accountant: str) -> None:
    if not 0 < delta < 1:
        raise _validate.fail("delta", "above 0 and below 1", delta)
    _validate.choice(adjacency, "adjacency", get_args(Adjacency))
    _validate.choice(accountant, "accountant", get_args(Accountant))
    kinds = {event.sampling for event in events if not event.everyone}
    if "without replacement" in kinds and adjacency != "replace-one":
        must_be = '"replace-one" for sampling without replacement (its sample size says how many users there are)'
        raise _validate.fail("adjacency", must_be, repr(adjacency))
    if "without replacement" in kinds and accountant != "rdp":
        raise _validate.fail("accountant", '"rdp" for sampling without replacement', repr(accountant))
    if "poisson" in kinds and adjacency == "replace-one" and accountant == "rdp":
        must_be = '"pld" for Poisson sampling under "replace-one" (dp-accounting has no Rényi bound for it)'
        raise _validate.fail("accountant", must_be, repr(accountant))


def host_number(value: Any) -> float:
    """A noise multiplier as a float: of a run, or of replicates that all had the same."""
    if not _validate.concrete(value):
        must_be = "known when epsilon is asked for (outside jit, vmap and grad)"
        raise _validate.fail("noise_multiplier", must_be, "a traced value")
    distinct = np.unique(np.asarray(value, np.float64))
    if distinct.size != 1:
        raise _validate.fail("noise_multiplier", "one number (take one replicate of the result)", distinct)
    _validate.not_negative(distinct[0], "noise_multiplier")
    return float(distinct[0])


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of telling N(0, 1) from N(μ, 1): the exact curve of Gaussian differential privacy."""
    return float(library().get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0


def gaussian_strength(events: Sequence[GaussianRounds], adjacency: Adjacency) -> float:
    """The μ of one N(0, 1) against N(μ, 1) that all events together amount to when everyone is in every round."""
    shifts = (math.sqrt(event.rounds) / host_number(event.noise_multiplier) for event in events)
    return SENSITIVITY[adjacency] * math.hypot(*shifts)  # squares would overflow for noise that is tiny or huge


def _without_sampling(
    events: Sequence[GaussianRounds], delta: float, adjacency: Adjacency, accountant: Accountant
) -> float:
    mu = gaussian_strength(events, adjacency)
    if accountant == "pld" or mu == 0:
        return gaussian_epsilon(mu, delta)
    return _ask(_rdp(adjacency), library().GaussianDpEvent(1 / mu), delta)


def _with_sampling(
    events: Sequence[GaussianRounds], delta: float, adjacency: Adjacency, accountant: Accountant
) -> float:
    # The PLD accountant knows that a replaced user moves the sum by 2ζ; the Rényi accountant has to be told.
    told = SENSITIVITY[adjacency] if accountant == "rdp" else 1.0
    composed = library().ComposedDpEvent([_repeated(event, told) for event in events])
    if accountant == "rdp":
        return _ask(_rdp(adjacency), composed, delta)
    rounds = sum(1 if event.everyone else event.rounds for event in events)
    return _on_a_fine_grid(lambda grid: _ask(_pld(adjacency, grid), composed, delta), rounds, delta)


def _on_a_fine_grid(on_grid: Callable[[float], float], rounds: int, delta: float) -> float:
    """ε from a grid of losses fine enough for 5e-4 of it (of 1, where it is above 1).

    A grid of step h can only add to ε. It adds at most h²/4 to the variance of a round's loss, so about sTh²/8 to ε.
    Here s, the slope of log(1/δ) in ε, is near 2 log(1/δ)/ε. One grid for all would be a hundred times slower at a
    large ε, or 5 % off over many rounds that each lose little.
    """
    grid = 0.02
    while True:
        epsilon = on_grid(grid)
        enough = 2 * math.sqrt(5e-4 * min(1, epsilon) * epsilon / (rounds * math.log(1 / delta)))
        if epsilon == 0 or grid <= max(enough, FINEST_GRID):
            return epsilon
        grid = max(enough / 2, FINEST_GRID)  # ε will be a little smaller, and want a finer grid than this one says


def _repeated(event: GaussianRounds, told: float) -> Any:
    dp = library()
    once = dp.GaussianDpEvent(host_number(event.noise_multiplier) / told)
    if not event.everyone and event.sampling == "poisson":
        once = dp.PoissonSampledDpEvent(event.sampling_rate, once)
    elif not event.everyone:
        once = dp.SampledWithoutReplacementDpEvent(event.clients, event.sample_size, once)
    return dp.SelfComposedDpEvent(once, event.rounds)


def _ask(accountant: Any, event: Any, delta: float) -> float:
    with _quiet():
        return accountant.compose(event).get_epsilon(delta)


def _relation(adjacency: Adjacency) -> Any:
    relations = library().NeighboringRelation
    return relations.REPLACE_ONE if adjacency == "replace-one" else relations.ADD_OR_REMOVE_ONE


def _rdp(adjacency: Adjacency) -> Any:
    return library().rdp.RdpAccountant(neighboring_relation=_relation(adjacency))


def _pld(adjacency: Adjacency, grid: float) -> Any:
    return library().pld.PLDAccountant(_relation(adjacency), value_discretization_interval=grid)


def library() -> Any:
    try:
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        message = 'Privacy accounting needs dp-accounting: install it with pip install "clairjax[privacy]".'
        raise ImportError(message) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the Rényi accountant's line for every order it leaves out, which only makes ε larger."""
    logger, drop = logging.getLogger("absl"), lambda record: record.levelno > logging.WARNING
    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
