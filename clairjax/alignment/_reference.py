"""How members stand to what they share, to judge by it who comes later."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ._standing import (
    ALIKE,
    FEW,
    FLIPPED,
    FLOOR,
    LEAST,
    MEMBER,
    RATIO,
    RESCALED,
    SIZE,
    UNDECIDED,
    UNRELATED,
    VERDICTS,
    limit_for,
)


class Usual(NamedTuple):
    """The middle member's agreement, and how far others are from it."""

    middle: float
    spread: float

    @staticmethod
    def of(agreement: Float[np.ndarray, " members"]) -> "Usual":
        middle = float(np.median(agreement))
        away = np.abs(agreement - middle)
        both, upwards = (float(np.median(each)) for each in (away, away[agreement >= middle]))
        return Usual(middle, max(1.4826 * min(both, upwards), FLOOR * abs(middle)))


class Reference(NamedTuple):
    """What is usual of members: the cosine with what is shared, and the spread of logarithms of sizes.

    The cosine is taken plain, and over the overlap of the row spaces.

    `Reference.of` finds it; `verdict` places a client who was not there. The rule is `pool`'s for directions and
    sizes. Row spaces and copies are not judged.

    >>> import numpy as np
    >>> import clairjax as cj
    >>> usual = cj.alignment.Reference.of(np.array([0.6, 0.7, 0.65]), np.ones(3), np.array([1.0, 1.1, 0.9]))
    >>> [usual.verdict(agreement, 1.0, size)[0] for agreement, size in ((0.68, 1), (0.02, 1), (-0.5, 1), (0.68, 9))]
    ['member', 'unrelated', 'sign-flipped', 'rescaled']
    >>> usual.verdict(0.2, 0.3, 1.0)[0]  # from another start
    'member'
    """

    members: int
    plain: Usual
    corrected: Usual
    size_spread: float

    @staticmethod
    def of(
        agreement: Float[np.ndarray, " members"],
        overlap: Float[np.ndarray, " members"],
        size: Float[np.ndarray, " members"],
    ) -> "Reference":
        """From each member's cosine with what the others share, its overlap of row spaces, and its relative size."""
        sizes = float(np.median(np.abs(np.log(size))))
        usual = Usual.of(agreement), Usual.of(agreement / overlap)
        return Reference(len(agreement), *usual, max(1.4826 * sizes, FLOOR))

    @property
    def decided(self) -> bool:
        """Whether three members or more agree enough, and alike enough, for directions to tell."""
        enough = self.members >= 3 and self.plain.middle >= LEAST
        return enough and self.plain.spread <= ALIKE * self.plain.middle

    def verdict(self, agreement: float, overlap: float, size: float) -> tuple[str, bool, float]:
        """The word, whether the client agrees as members do, and its agreement over the usual one."""
        if not self.decided:
            return VERDICTS[UNDECIDED], False, agreement / self.plain.middle if self.plain.middle > 0 else 0.0
        sign = -1 if agreement < 0 else 1
        levels = ((self.plain, agreement), (self.corrected, agreement / overlap if overlap > 0 else 0.0))
        relative = sign * max(sign * mine / usual.middle for usual, mine in levels)
        surprise = sign * max(sign * (mine - usual.middle) / usual.spread for usual, mine in levels)
        limit = limit_for(self.members)
        if (relative < RATIO and surprise < -limit) or (relative < FEW and surprise < -limit / 2):
            return VERDICTS[FLIPPED if relative < -RATIO else UNRELATED], False, relative
        far = abs(math.log(size)) > max(math.log(SIZE), limit * self.size_spread)
        member = relative >= RATIO
        return VERDICTS[RESCALED if far else MEMBER if member else UNDECIDED], member, relative
