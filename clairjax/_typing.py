"""Names shared by the signatures. Axis words: `clients`, `out` (the papers' q), `in` (p), `rank` (r), `pairs` (G)."""

from typing import Literal, TypeAlias

from jaxtyping import Array, Float
from jaxtyping import Key as _Key


ScalarLike: TypeAlias = Float[Array, ""] | float
Key: TypeAlias = _Key[Array, ""]
Kind: TypeAlias = Literal["fuzzy", "clean", "reversed", "shifted", "random"]  # of copying task
