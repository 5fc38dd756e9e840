"""PPSGD: a private shared model plus a head of one's own, added."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._typing import Key
from ._local import Local, fit, fit_head, sgd
from ._local_strategy import LocalStrategy
from ._parts import Where, chosen, everything, last_layer
from ._private import PrivateStrategy, difference, moved
from ._strategy import Client, Cohort, Sum, Update


class PPSGD(LocalStrategy, PrivateStrategy):
    """A client uses the shared model with a correction of its own added to the head.

    It trains the correction, then the shared model under it, and sends the change of the latter, clipped.

    - `privacy`: of the release. `local`: how the shared model is trained, `own`: how the correction is.
    - `own_epochs`: of the correction, `epochs`: of the shared model. `server_rate` η_g.
    - `tune`: epochs of the correction before a client uses its model.
    - `head`: picks what is corrected; the last layer if not given.

    **Source:** Bietti et al. 2022; CENTAUR, B. As in CENTAUR's code: a correction of the head alone, trained by itself
    at rate 0.1 for one epoch, and 15 before testing. Bietti et al. take one gradient for both.

    >>> from clairjax.federated import PPSGD, Privacy
    >>> strategy = PPSGD(Privacy(0.01, epsilon=1.0))
    """

    local: Local = Local(batch=None)
    own: Local = Local(sgd(0.1), batch=None)
    own_epochs: int = eqx.field(static=True, default=1)
    head: Where = eqx.field(static=True, default=last_layer)
    server_rate: float = eqx.field(static=True, default=1.0)
    tune: int = eqx.field(static=True, default=15)

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        head = eqx.filter(model, chosen(model, self.head, "head"))
        return model, jax.tree.map(jnp.zeros_like, head)

    def client_update(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Update:
        first, second = jax.random.split(key)
        used, state = self._corrected(server, state, client, self.own_epochs, first)
        # A step on the shared head moves the sum by as much: what is trained is the sum, with the correction inside.
        model, loss = fit(used, everything(used), client, self.local, epochs=self.epochs, key=second)
        return Update(self.clipped(difference(model, used)), state, loss)

    def server_update(self, server: PyTree, uploads: Sum, cohort: Cohort, *, key: Key) -> PyTree:
        return moved(server, self.release(uploads, cohort, server, key=key), self.server_rate)

    def personal(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Any:
        return self._corrected(server, state, client, self.tune, key)[0]

    def _corrected(self, server: PyTree, state: PyTree, client: Client, epochs: int, key: Key) -> tuple[Any, PyTree]:
        """The model with the correction trained, and the correction."""
        head = chosen(server, self.head, "head")
        shared, rest = eqx.partition(server, head)
        used = eqx.combine(jax.tree.map(jnp.add, shared, state), rest)
        used, _ = fit_head(used, head, client, self.own, epochs=epochs, key=key)
        return used, jax.tree.map(jnp.subtract, eqx.filter(used, head), shared)
