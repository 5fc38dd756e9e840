"""How large what each client has of its own is, beside what the others have in common."""

from typing import Any, NamedTuple

import numpy as np

from ._evidence import Either, divisor
from ._median import median


RIDGE = 0.01  # of a client's square; near copies in the core would make the table singular
COMMON = 2.0  # S² from which a member has more in common than of its own


class Own(NamedTuple):
    """Who has of its own what members have; who as much as a stranger; whether the fleet can tell the two apart."""

    usual: Either
    strange: Either
    told: Either


def own_parts(cosine: Either, variance: Either, size: Either, core: Either) -> Own:
    """W_k / ‖W_k‖ is regressed on those of the others in the core; all that takes are cosines. The rest, times the
    size, is a client's own.

    A stranger of the usual size has S times as much as the middle member. Of it chance alone explains something, by
    the `variance` of cosines of unrelated clients. What members have is within a factor √S of the middle one's. Where
    S² < 2 members have more of their own than in common, and nothing can be told.
    """
    xp: Any = cosine.__array_namespace__()
    both = core[:, None] & core
    values, vectors = xp.linalg.eigh(xp.where(both, cosine, np.eye(len(core), dtype=cosine.dtype)))
    inverse = xp.matmul(vectors / (xp.maximum(values, 0) + RIDGE), vectors.T)
    mine = xp.where(core, cosine, 0)
    beside = 1 - (xp.matmul(mine, inverse) * mine).sum(1)
    left_out = 1 / xp.diagonal(inverse) - RIDGE
    rest = xp.clip(xp.where(core, left_out, beside), RIDGE**2, 1)
    own = xp.log(size) + xp.log(rest) / 2
    by_chance = xp.clip(1 - xp.where(both, variance, 0).sum(1), 0, 1)
    apart = median(by_chance, core) / divisor(median(rest, core))
    beyond, whole = own - median(own, core), xp.log(xp.maximum(apart, 1)) / 2
    told = apart >= COMMON
    return Own(told & (abs(beyond) < whole / 2), told & (beyond >= whole), told)
