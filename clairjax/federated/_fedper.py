"""FedPer: a shared body under personal heads, trained together."""

from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from .._typing import Key
from ._local import fit, fit_head
from ._local_strategy import LocalStrategy
from ._parts import Where, chosen, everything, last_layer
from ._strategy import Client, Cohort, Sum, Update, average, weighted


class FedPer(LocalStrategy):
    """Every client trains body and head together; the server averages the bodies, and heads stay with their clients.

    - `local`: how a client trains; `epochs`: of a round.
    - `head`: picks what is personal, as in `equinox.tree_at`; the last layer if not given.
    - `tune`: epochs in which a client trains its head before it uses its model.
    - `by_samples`: whether bodies are weighted by the clients' numbers of samples.

    **Source:** Arivazhagan et al. 2019; a baseline of FLUTE, 7.2.

    >>> from clairjax.federated import FedPer
    >>> two_layers = FedPer(head=lambda model: (model.head, model.dense[-1]))
    """

    head: Where = eqx.field(static=True, default=last_layer)
    tune: int = eqx.field(static=True, default=0)
    by_samples: bool = eqx.field(static=True, default=False)

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        head, body = eqx.partition(model, chosen(model, self.head, "head"))
        return body, head

    def client_update(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Update:
        model, loss = self.trained(eqx.combine(state, server), client, key)
        head, body = eqx.partition(model, chosen(model, self.head, "head"))
        return Update(weighted(body, client.count if self.by_samples else 1.0), head, loss)

    def trained(self, model: Any, client: Client, key: Key) -> tuple[Any, Any]:
        """A client's model after a round, and its loss."""
        return fit(model, everything(model), client, self.local, epochs=self.epochs, key=key)

    def server_update(self, server: PyTree, uploads: Sum, cohort: Cohort, *, key: Key) -> PyTree:
        return average(uploads, server)

    def personal(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Any:
        model = eqx.combine(state, server)
        return fit_head(model, chosen(model, self.head, "head"), client, self.local, epochs=self.tune, key=key)[0]
