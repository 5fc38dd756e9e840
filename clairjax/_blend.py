"""How much of what clients share each of them gets: the rule, for NumPy's arrays and JAX's."""

from typing import Any


CANDIDATES = (0.0, 0.25, 0.5, 0.75, 1.0)  # t of t · own + (1 − t) · shared
BEST, OTHERS = 2.5, 3.0  # standard errors that the best gain must have, or else any other, to be more than chance
OF_A_MEDIAN = 1.2533 * 1.4826  # standard error of a median of normal values, over their median deviation and √number


def one_t(losses: Any) -> Any:
    """Of `losses` [clients, t] the place of the t with the largest median gain over the last one, the clients' own.

    Where that gain is within chance, of the others' gains the largest one beyond it: a t between can be where the best
    costs some clients what others gain. Without any, the last place is returned. A client whose losses are NaN does
    not count.
    """
    xp: Any = losses.__array_namespace__()
    gains = losses[:, -1:] - losses
    middle = xp.nanmedian(gains, axis=0)
    number = xp.maximum(xp.sum(~xp.isnan(gains[:, 0])), 1).astype(gains.dtype)
    error = OF_A_MEDIAN * xp.nanmedian(abs(gains - middle[None]), axis=0) / xp.sqrt(number)
    needed = xp.where(middle == xp.max(middle), BEST, OTHERS) * error
    beyond = xp.where(middle > needed, middle, 0)
    return len(middle) - 1 - xp.argmax(beyond[::-1])  # of equals the one nearer to the own adapter
