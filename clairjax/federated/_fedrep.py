"""FedRep: a shared body under personal heads, heads first."""

from typing import Any

import equinox as eqx
import jax

from .._typing import Key
from ._fedper import FedPer
from ._local import fit, fit_head
from ._parts import chosen, others
from ._strategy import Client


class FedRep(FedPer):
    """A client trains its head on the body it received, then the body under that head.

    - `head_epochs`: 1 is FedRep of FLUTE's Table 1, 10 its FedRep* and what FedRep's authors use. `epochs`: of the
      body.
    - the others: as in `FedPer`.

    Where the head is the last layer and nothing is augmented, the features are computed once for all head epochs.

    **Source:** Collins et al. 2021, Algorithm 1; FLUTE, 7.2.

    >>> from clairjax.federated import FedRep
    >>> star = FedRep(head_epochs=10)
    """

    head_epochs: int = eqx.field(static=True, default=1)

    def trained(self, model: Any, client: Client, key: Key) -> tuple[Any, Any]:
        head = chosen(model, self.head, "head")
        first, second = jax.random.split(key)
        model, _ = fit_head(model, head, client, self.local, epochs=self.head_epochs, key=first)
        return fit(model, others(model, head), client, self.local, epochs=self.epochs, key=second)
