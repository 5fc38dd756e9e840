"""Every client alone: nothing is shared."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import PyTree

from .._typing import Key
from ._local import fit
from ._local_strategy import LocalStrategy
from ._parts import everything
from ._strategy import Client, Cohort, Update


class StandAlone(LocalStrategy):
    """Every client trains the whole model on its own samples and sends nothing: what collaboration has to beat.

    - `local`: how a client trains; `epochs`: of a round.

    **Source:** CENTAUR, 6 (Stand-alone-no-FL).

    >>> from clairjax.federated import Local, StandAlone, sgd
    >>> alone = StandAlone(Local(sgd(0.01), batch=20), epochs=5)
    """

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        return None, model

    def client_update(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Update:
        model, loss = fit(state, everything(state), client, self.local, epochs=self.epochs, key=key)
        return Update(jnp.zeros(()), model, loss)

    def server_update(self, server: PyTree, uploads: PyTree, cohort: Cohort, *, key: Key) -> PyTree:
        return server

    def personal(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Any:
        return state
