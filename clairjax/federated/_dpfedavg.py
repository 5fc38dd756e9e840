"""Private FedAvg, and heads that clients tune for themselves."""

from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from .._typing import Key
from ._local import Local, fit, fit_head
from ._local_strategy import LocalStrategy
from ._parts import Where, chosen, everything, last_layer
from ._private import PrivateStrategy, difference, moved
from ._strategy import Client, Cohort, Sum, Update


class DPFedAvg(LocalStrategy, PrivateStrategy):
    """Every client trains the whole model and sends its change, clipped; it tunes the head of what it gets.

    - `privacy`: of the release. `local`: how a client trains; `epochs`: of a round. `server_rate` η_g.
    - `tune`: epochs in which a client tunes the head, picked by `head`, before it uses its model; 0 for none.

    **Source:** McMahan et al. 2018; with tuned heads CENTAUR's DP-FedAvg-fb, after Yu et al. 2020.

    >>> from clairjax.federated import DPFedAvg, Privacy
    >>> strategy = DPFedAvg(Privacy(0.04, epsilon=1.0))
    """

    local: Local = Local(batch=None)
    head: Where = eqx.field(static=True, default=last_layer)
    server_rate: float = eqx.field(static=True, default=1.0)
    tune: int = eqx.field(static=True, default=15)

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        chosen(model, self.head, "head")
        return model, None

    def client_update(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Update:
        model, loss = fit(server, everything(server), client, self.local, epochs=self.epochs, key=key)
        return Update(self.clipped(difference(model, server)), state, loss)

    def server_update(self, server: PyTree, uploads: Sum, cohort: Cohort, *, key: Key) -> PyTree:
        return moved(server, self.release(uploads, cohort, server, key=key), self.server_rate)

    def personal(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Any:
        head = chosen(server, self.head, "head")
        return fit_head(server, head, client, self.local, epochs=self.tune, key=key)[0]
