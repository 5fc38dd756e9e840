"""How products are taken on accelerators: their fast ways lose more digits than a Gram product has to spare."""

from jax.lax import Precision


HIGHEST = Precision.HIGHEST
