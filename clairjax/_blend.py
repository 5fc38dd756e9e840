"""How much of what clients share each of them gets: the rule, for NumPy's arrays and JAX's."""

from typing import Any


CANDIDATES = (0.0, 0.25, 0.5, 0.75, 1.0)  # t of t · own + (1 − t) · shared
ERRORS = 2.5  # standard errors that a gain must have, to be taken for more than chance
OF_A_MEDIAN = 1.2533 * 1.4826  # standard error of a median of normal values, over their median deviation and √number


def one_t(losses: Any) -> Any:
    """Of `losses` [clients, t] the place of the t with the largest median gain over the last one, the clients' own.

    A gain within chance is none, and the last place is returned. A client whose losses are NaN does not count.
    """
    xp: Any = losses.__array_namespace__()
    gains = losses[:, -1:] - losses
    middle = xp.nanmedian(gains, axis=0)
    last = len(middle) - 1
    best = last - xp.argmax(middle[::-1])  # of equals the one nearer to the own adapter
    number = xp.maximum(xp.sum(~xp.isnan(gains[:, 0])), 1).astype(gains.dtype)
    apart = xp.nanmedian(abs(gains[:, best] - middle[best]))
    return xp.where(middle[best] > ERRORS * OF_A_MEDIAN * apart / xp.sqrt(number), best, last)
