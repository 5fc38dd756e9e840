"""What a paper says of its figures, marked true, false or "depends"."""

import dataclasses
from collections.abc import Sequence

from ._table import Table


@dataclasses.dataclass(frozen=True)
class Claim:
    """`holds`: whether it holds, in each case looked at; `figures`: what was seen."""

    text: str
    holds: Sequence[bool]
    figures: str

    @property
    def verdict(self) -> str:
        cases, held = len(self.holds), sum(self.holds)
        if held in (0, cases):
            return "true" if held else "false"
        return f"depends ({held} of {cases})"


def claims_table(title: str, claims: Sequence[Claim]) -> Table:
    rows = tuple((claim.text, claim.verdict, claim.figures) for claim in claims)
    return Table(title, ("claim", "verdict", "figures"), rows, ("True: in every case; false: in none.",))
