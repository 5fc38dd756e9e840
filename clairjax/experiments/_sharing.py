"""What a shared representation is worth beside each client on its own: claims of ours about FLUTE's figures."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..sweep import Estimate
from ._claims import Claim, above


Outputs = Mapping[str, np.ndarray]  # of one cell, an error for each replicate and method


def ends_below(cells: Sequence[Outputs], one: str, other: str, text: str) -> Claim:
    """That one's error is below the other's in each cell."""
    lower = [100 * (1 - Estimate.ratio(outputs[one], outputs[other]).value) for outputs in cells]
    figures = f"lower by {min(lower):.3g} to {max(lower):.3g} %"
    return Claim(text, [(above(outputs[other], outputs[one]),) for outputs in cells], figures)


def sharing_claims(cells: Sequence[Outputs]) -> list[Claim]:
    """The best model of rank k knows the truth: below it no representation of rank k can pay."""
    return [
        ends_below(cells, "ridge", "flute", "(ours) Truncated ridge ends below FLUTE"),
        ends_below(cells, "local_ridge", "flute", "(ours) Each client's own ridge ends below FLUTE"),
        ends_below(cells, "local_ridge", "ridge", "(ours) Each client's own ridge ends below truncated ridge"),
        ends_below(cells, "local_ridge", "floor", "(ours) Each client's own ridge ends below the best of rank k"),
    ]
