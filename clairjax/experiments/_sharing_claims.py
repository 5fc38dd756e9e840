"""What a shared representation is worth beside each client on its own: claims of ours about FLUTE's figures."""

from collections.abc import Sequence
from typing import Any

from ._claims import Claim, above
from ._table import Row


def ends_below(rows: Sequence[Row[Any]], one: str, other: str, text: str) -> Claim:
    """That one's error is below the other's in each row."""
    lower = [100 * (1 - row.ratio(one, other).value) for row in rows]
    figures = f"lower by {min(lower):.3g} to {max(lower):.3g} %"
    return Claim(text, [(above(row[other], row[one]),) for row in rows], figures)


def sharing_claims(rows: Sequence[Row[Any]]) -> list[Claim]:
    """The best model of rank k knows the truth: below it no representation of rank k can pay."""
    return [
        ends_below(rows, "ridge", "flute", "(ours) Truncated ridge ends below FLUTE"),
        ends_below(rows, "local_ridge", "flute", "(ours) Each client's own ridge ends below FLUTE"),
        ends_below(rows, "local_ridge", "ridge", "(ours) Each client's own ridge ends below truncated ridge"),
        ends_below(rows, "local_ridge", "floor", "(ours) Each client's own ridge ends below the best of rank k"),
    ]
