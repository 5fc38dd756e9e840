"""FedAvg: everything is shared; and with fine-tuning at the client."""

from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from .._typing import Key
from ._local import fit
from ._local_strategy import LocalStrategy
from ._parts import everything
from ._strategy import Client, Cohort, Sum, Update, average, weighted


class FedAvg(LocalStrategy):
    """Every client trains the whole model, and the server averages.

    - `local`: how a client trains; `epochs`: of a round.
    - `by_samples`: whether the average is weighted by the clients' numbers of samples.

    **Source:** McMahan et al. 2017, Algorithm 1; a baseline of FLUTE, 7.2.

    >>> from clairjax.federated import FedAvg
    >>> FedAvg(epochs=5).by_samples
    True
    """

    by_samples: bool = eqx.field(static=True, default=True)

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        return model, None

    def client_update(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Update:
        model, loss = fit(server, everything(server), client, self.local, epochs=self.epochs, key=key)
        return Update(weighted(model, client.count if self.by_samples else 1.0), state, loss)

    def server_update(self, server: PyTree, uploads: Sum, cohort: Cohort, *, key: Key) -> PyTree:
        return average(uploads, server)

    def personal(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Any:
        return server


class FedAvgFT(FedAvg):
    """FedAvg, and each client then trains the model it got for `tune` epochs on its own samples.

    The server never sees the tuned models.

    **Source:** FLUTE, 7.2 (FedAvg-FT); Collins et al. 2022.

    >>> from clairjax.federated import FedAvgFT
    >>> FedAvgFT(tune=10).epochs
    1
    """

    tune: int = eqx.field(static=True, default=10)

    def personal(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Any:
        return fit(server, everything(server), client, self.local, epochs=self.tune, key=key)[0]
