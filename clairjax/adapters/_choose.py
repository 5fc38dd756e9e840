"""One t for the fleet, from what the clients' own validation says."""

import math
from collections.abc import Mapping

import numpy as np

from .. import _validate
from .._blend import CANDIDATES as CANDIDATES
from .._blend import one_t


Losses = Mapping[str, Mapping[float, float]]


def choose(losses: Losses) -> float:
    """The t at which t · own + (1 − t) · shared serves the clients best, one for all of them.

    It has the largest median, over clients, of what a client gains against its own adapter, t = 1. A gain within 2.5
    standard errors of nothing counts as nothing. Then the largest of the others' counts that is beyond three, and
    without any t is 1. Up to half of the clients can say what they like
    without moving the median out of the others' range.

    **Args:** `losses[client][t]`, of at least three clients, finite, for the same values of t, 1 among them:
    those of `candidates`. A loss is a mean over validation data that the client did not train on, best from many
    places: eight short texts tell more than two long ones.

    **Returns:** one of these values of t.

    **Raises:** `ValueError` naming the client, for anything else.

    **Cost:** none to speak of.

    >>> import clairjax as cj
    >>> cj.adapters.choose({client: {0.0: 2.1, 0.5: 2.2, 1.0: 2.4} for client in "abc"})
    0.0
    """
    _validate.enough_clients(len(losses), "losses")
    values = sorted(next(iter(losses.values())))
    if 1 not in values:
        raise _validate.fail("losses", "known at t = 1, a client's own adapter", values)
    for client, mine in losses.items():
        if sorted(mine) != values:
            raise _validate.fail(f"losses of client {client}", f"for t of {values}", sorted(mine))
        for t, loss in mine.items():
            check_loss(loss, client, t)
    order = [t for t in values if t != 1] + [1.0]
    return float(order[int(one_t(np.array([[mine[t] for t in order] for mine in losses.values()], float)))])


def check_loss(loss: float, client: str, t: float) -> float:
    if not isinstance(loss, int | float | np.number) or not math.isfinite(loss):
        raise _validate.fail(f"the loss of client {client} at t = {t:g}", "a finite number", repr(loss))
    return float(loss)
