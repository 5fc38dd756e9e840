"""Names shared by the signatures. Axis words: `clients`, `out` (the papers' q), `in` (p), `rank` (r), `pairs` (G)."""

from typing import TypeAlias

from jaxtyping import Array, Float
from jaxtyping import Key as _Key


ScalarLike: TypeAlias = Float[Array, ""] | float
Key: TypeAlias = _Key[Array, ""]
