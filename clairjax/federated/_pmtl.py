"""Private multi-task learning: models of one's own, held together by a private mean."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .. import _validate
from .._typing import Key
from ._local import Local, fit, fit_head
from ._local_strategy import LocalStrategy
from ._parts import Where, chosen, everything, last_layer
from ._private import PrivateStrategy, difference, moved
from ._strategy import Client, Cohort, Sum, Update


class PMTL(LocalStrategy, PrivateStrategy):
    """A client trains a whole model of its own on loss + λ/2 ‖w_k − w‖², w the private mean of such models.

    It sends w_k − w, clipped; the server adds the private mean of these to w.

    - `privacy`: of the release. `local`: how a client trains; `epochs`: of a round. `pull` λ. `server_rate` η_g.
    - `tune`: epochs in which a client tunes its head, picked by `head`, before it uses its model (PMTL-ft).

    **Source:** Hu et al. 2021, Algorithm 1; CENTAUR, 6 and B (λ = 1). Departs from CENTAUR's code, whose regulariser
    has no gradient: here it has.

    >>> from clairjax.federated import PMTL, Privacy
    >>> strategy = PMTL(Privacy(0.04, epsilon=1.0))
    """

    local: Local = Local(batch=None)
    epochs: int = eqx.field(static=True, default=5)
    pull: float = eqx.field(static=True, default=1.0)
    head: Where = eqx.field(static=True, default=last_layer)
    server_rate: float = eqx.field(static=True, default=1.0)
    tune: int = eqx.field(static=True, default=15)

    def __check_init__(self):
        _validate.not_negative(self.pull, "pull")

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        chosen(model, self.head, "head")
        return model, model

    def client_update(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Update:
        model, loss = fit(
            state,
            everything(state),
            client,
            self.local,
            epochs=self.epochs,
            key=key,
            penalty=lambda model: self.pull / 2 * square_distance(model, server),
        )
        return Update(self.clipped(difference(model, server)), model, loss)

    def server_update(self, server: PyTree, uploads: Sum, cohort: Cohort, *, key: Key) -> PyTree:
        return moved(server, self.release(uploads, cohort, server, key=key), self.server_rate)

    def personal(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Any:
        head = chosen(state, self.head, "head")
        return fit_head(state, head, client, self.local, epochs=self.tune, key=key)[0]


def square_distance(first: PyTree, second: PyTree) -> Float[Array, ""]:
    """‖first − second‖² over all floating arrays."""
    squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(difference(first, second))]
    return jnp.sum(jnp.stack(squares))
