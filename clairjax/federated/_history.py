"""What a run gives back: curves, the models, what was spent."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .. import _validate
from .._status import Status
from .._typing import Key
from ..data import Federation
from ..privacy import Ledger
from ._rounds import Place, program, scores
from ._strategy import Strategy, one_client


class History(eqx.Module):
    """Curves and models of a run of `federated.train`.

    - `rounds` [evaluations]: after which round each evaluation was, the first before any.
    - `accuracies` [evaluations]: the share of all clients' test samples that the clients' own models got right: the
      mean over clients, weighted by their test samples. `client_accuracies` [evaluations, clients]: each client's, NaN
      for one without test samples. `validation_accuracies` [evaluations]: the same on validation samples; NaN if there
      are none.
    - `losses` [rounds]: the mean training loss of a round's clients; infinite where a client's is not finite, and NaN
      for a round of nobody.
    - `server`, `states`: what the server and the clients hold after the last round, clients first.
    - `status`: `converged` where all numbers are finite (it says nothing of more rounds), else `diverged`.
    - `privacy`: the `Ledger` of what a private strategy spent, or None.
    - `measures`: what `measure` gave, by name, evaluations first.

    >>> from clairjax.federated import History
    >>> History.best.fget.__doc__.split(".")[0]
    'The evaluation with the best validation accuracy, the first of several'
    """

    rounds: Int[np.ndarray, " evaluations"]
    accuracies: Float[np.ndarray, " evaluations"]
    client_accuracies: Float[np.ndarray, "evaluations clients"]
    validation_accuracies: Float[np.ndarray, " evaluations"]
    losses: Float[np.ndarray, " rounds"]
    server: PyTree
    states: PyTree
    status: Status
    privacy: Ledger | None
    strategy: Strategy
    federation: Federation
    key: Key
    measures: dict[str, np.ndarray]

    @property
    def best(self) -> int:
        """The evaluation with the best validation accuracy, the first of several.

        It looks at private data: the ε of the rounds does not cover what is read off there.
        """
        if np.isnan(self.validation_accuracies).all():
            raise ValueError("best must be asked for where clients have validation samples, got none.")
        return int(np.nanargmax(self.validation_accuracies))

    def personal(self, client: int) -> Any:
        """The model that client k uses after the last round."""
        count = len(self.federation)
        if not _validate.is_integer(client) or not 0 <= client < count:
            raise _validate.fail("client", f"an integer in 0 … {count - 1}", repr(client))
        number = jax.numpy.asarray(client, jax.numpy.int32)  # an array: one program for all clients
        return _personal(self.strategy, self.federation, Place(self.server, self.states), number, self.key)

    def __str__(self) -> str:
        text = f"accuracy {self.accuracies[-1]:.3f} after round {self.rounds[-1]}"
        if not np.isnan(self.validation_accuracies).all():
            at = self.best
            text += f"; {self.accuracies[at]:.3f} at the round of the best validation accuracy, {self.rounds[at]}"
            text += " (chosen by looking: no epsilon covers it)" if self.privacy is not None else ""
        return text


def evaluate(run: History, strategy: Strategy | None = None) -> Float[np.ndarray, " clients"]:
    """Each client's accuracy after the last round: the share of its test samples that its own model gets right.

    **Args:**

    - `run`, of `train`.
    - `strategy`: the run's own if not given. Another must go on from what the run's clients and server hold, such as
      the run's with more epochs of tuning.

    **Returns:** [clients], NaN for a client without test samples. The mean weighted by `run.federation.test.counts` is
    what `accuracies` has.

    **Cost:** one pass over all test samples, and the tuning.

    >>> import jax, numpy as np
    >>> import clairjax as cj
    >>> from clairjax.federated import FedAvg, FedAvgFT, evaluate, train
    >>> images, labels = np.zeros((80, 4, 4), np.float32), np.arange(80) % 2
    >>> clients = cj.data.partition(images, labels, scheme=cj.data.Shards(2), clients=4, key=jax.random.key(0))
    >>> model = cj.models.Network.create((4, 4, 1), 2, dense=(4,), key=jax.random.key(1))
    >>> run = train(model, FedAvg(), clients, rounds=4, key=jax.random.key(2))
    >>> evaluate(run, FedAvgFT(tune=10)).shape
    (4,)
    """
    place = Place(run.server, run.states)
    devices = tuple(jax.local_devices()[:1])
    strategy = run.strategy if strategy is None else strategy
    right = program(scores)(strategy, run.federation, place, devices, run.key)
    counts = np.asarray(run.federation.test.counts)
    return np.asarray(right.test) / np.where(counts > 0, counts, np.nan)


@eqx.filter_jit  # without options, which JAX refuses where something around is traced
def _personal(strategy: Strategy, federation: Federation, place: Place, number: Array, key: Key) -> Any:
    state = jax.tree.map(lambda leaf: leaf[number] if eqx.is_array(leaf) else leaf, place.states)
    return strategy.personal(place.server, state, one_client(federation, number), key=jax.random.fold_in(key, number))
