"""A strategy of one's own: FedProx, whose clients are held near the model that they received.

`python strategy.py` compares it with FedAvg on clients that have two classes each.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import clairjax as cj
from clairjax.federated import FedAvg, Local, Strategy, Update, average, fit, sgd, train, weighted


def floats(model):
    return jax.tree.map(eqx.is_inexact_array, model)


class FedProx(Strategy):
    """Clients minimise their loss + pull/2 · ‖model − received‖²; the server averages."""

    local: Local = Local(sgd(0.05), batch=10)
    pull: float = eqx.field(static=True, default=1.0)

    def start(self, model, clients, *, key):
        return model, None  # what the server holds, and what each client keeps

    def client_update(self, server, state, client, *, key):
        def distance(model):
            leaves = zip(jax.tree.leaves(model), jax.tree.leaves(server), strict=True)
            return self.pull / 2 * sum(jnp.sum((new - old) ** 2) for new, old in leaves)

        model, loss = fit(server, floats(server), client, self.local, epochs=3, key=key, penalty=distance)
        return Update(weighted(model, client.count), state, loss)

    def server_update(self, server, uploads, cohort, *, key):
        return average(uploads, server)

    def personal(self, server, state, client, *, key):
        return server  # the model that a client uses


def drawings():
    """Noise, with one bright row that is the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    images = rng.integers(0, 100, (400, 8, 8))
    images[np.arange(400), 2 * labels] += 80
    return images.astype(np.uint8), labels


if __name__ == "__main__":
    shards = cj.data.Shards(2)
    clients = cj.data.partition(*drawings(), scheme=shards, clients=10, key=jax.random.key(0))
    model = cj.models.small_cnn(4, key=jax.random.key(1))
    for strategy in (FedAvg(Local(sgd(0.05), batch=10), epochs=3), FedProx()):
        run = train(model, strategy, clients, rounds=20, key=jax.random.key(2), sampler=5, evaluate_every=10)
        print(type(strategy).__name__, "accuracies rise:", bool(run.accuracies[-1] > run.accuracies[0] + 0.3))
