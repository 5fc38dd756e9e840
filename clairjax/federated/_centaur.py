"""CENTAUR: a shared body learned privately, under heads that stay at home."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from .._typing import Key
from ._local import Local, fit, fit_head
from ._local_strategy import LocalStrategy
from ._parts import Where, chosen, last_layer, others
from ._private import PrivateStrategy, difference, moved
from ._strategy import Client, Cohort, Sum, Update


class Centaur(LocalStrategy, PrivateStrategy):
    """A client fits its head to the body it received, takes steps on the body, and sends the body's change, clipped.

    - `privacy`: of the release. `local`: how a client trains; `head_epochs`: of its head, `epochs`: of the body.
    - `head`: picks what is personal; the last layer if not given. `server_rate` η_g.
    - `tune`: epochs in which a client fits its head before it uses its model.
    - `head_local`: how heads are trained, if not as bodies: CENTAUR's code augments the images for heads alone.

    **Source:** CENTAUR, Algorithms 1 and 2, and B. Departs from print, as the authors' code, which has 15: the head
    takes `head_epochs` epochs from where it was, and is not brought to its minimum.

    >>> from clairjax.federated import Centaur, Privacy
    >>> strategy = Centaur(Privacy(0.01, epsilon=1.0))
    """

    local: Local = Local(batch=None)
    head_epochs: int = eqx.field(static=True, default=15)
    head: Where = eqx.field(static=True, default=last_layer)
    server_rate: float = eqx.field(static=True, default=1.0)
    tune: int = eqx.field(static=True, default=15)
    head_local: Local | None = None

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        head, body = eqx.partition(model, chosen(model, self.head, "head"))
        return body, head

    def client_update(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Update:
        first, second = jax.random.split(key)
        model, head = self._fitted(server, state, client, self.head_epochs, first)
        model, loss = fit(model, others(model, head), client, self.local, epochs=self.epochs, key=second)
        own, body = eqx.partition(model, head)
        return Update(self.clipped(difference(body, server)), own, loss)

    def server_update(self, server: PyTree, uploads: Sum, cohort: Cohort, *, key: Key) -> PyTree:
        return moved(server, self.release(uploads, cohort, server, key=key), self.server_rate)

    def personal(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Any:
        return self._fitted(server, state, client, self.tune, key)[0]

    def _fitted(self, server: PyTree, state: PyTree, client: Client, epochs: int, key: Key) -> tuple[Any, PyTree]:
        """The model with its head fitted, and which leaves are the head."""
        model = eqx.combine(state, server)
        head = chosen(model, self.head, "head")
        local = self.head_local or self.local
        return fit_head(model, head, client, local, epochs=epochs, key=key)[0], head
