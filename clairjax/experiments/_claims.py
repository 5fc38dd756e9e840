"""What a paper says of its figures, marked true, false, undecided or a mixture."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ._table import Estimate, Table, mean


@dataclasses.dataclass(frozen=True)
class Claim:
    """`holds`: whether it holds, in each case looked at, or None for undecided; `figures`: what was seen."""

    text: str
    holds: Sequence[bool | None]
    figures: str

    @property
    def verdict(self) -> str:
        counts = {"true": 0, "false": 0, "undecided": 0}
        for case in self.holds:
            counts["undecided" if case is None else "true" if case else "false"] += 1
        seen = {word: count for word, count in counts.items() if count}
        if len(seen) == 1:
            return next(iter(seen))
        return ", ".join(f"{word} in {count}" for word, count in seen.items()) + f" of {len(self.holds)}"


def is_positive(difference: Estimate) -> bool | None:
    """None where it is within two standard errors of zero, or has none."""
    return difference.value > 0 if abs(difference.value) > 2 * difference.error else None


def is_above(one: np.ndarray, other: np.ndarray) -> bool | None:
    """Whether one's mean over replicates is above the other's, by their paired differences."""
    return is_positive(mean(one - other))


def both(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def claims_table(title: str, claims: Sequence[Claim]) -> Table:
    rows = tuple((claim.text, claim.verdict, claim.figures) for claim in claims)
    note = "In each case true or false by more than two standard errors of the difference, else undecided."
    return Table(title, ("claim", "verdict", "figures"), rows, (note,))
