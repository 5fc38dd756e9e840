"""FLUTE: a shared body that is too small, and heads that the server pulls towards one simplex."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from .._typing import Key
from ._local import entropies, fit, fit_head
from ._local_strategy import LocalStrategy
from ._neural_collapse import neural_collapse, neural_collapse_step
from ._parts import check_classifier, chosen, everything, last_layer
from ._strategy import Client, Cohort, Sum, Update, average, weighted


class FluteServer(NamedTuple):
    body: PyTree
    heads: PyTree  # clients first


class FluteUpload(NamedTuple):
    body: Sum
    head: PyTree
    held: Bool[Array, " classes"]


class Flute(LocalStrategy):
    """Clients train body and head together under penalties; the server averages bodies and moves the heads, too.

    A client's loss is the cross-entropy + λ₁‖ψ(x)‖² + λ₂‖H‖² + λ₃ NC(H), see `neural_collapse`. The server then takes
    one step on the mean NC of the round's heads. So heads and the classes that clients have are known to the server.

    - `local`: how a client trains. `epochs`: of body and head together, `head_epochs`: of the head alone, behind them;
      10 is FLUTE*. `head_first`: before them, as in the authors' code.
    - `features` λ₁, `weights` λ₂, `collapse` λ₃; `server_rate` η_r.
    - `tune`: epochs in which a client trains its head before it uses its model.

    The model is a `models.Classifier`: the head is its last layer.

    **Source:** FLUTE, Algorithm 2, (49) and 7.2. None of these numbers is printed; they are those of the authors'
    code. λ₁ = 0.005 is on a sample's feature before dropout: there it is 0.0005 on the sum over a batch of 10. The
    server's step is on the mean NC, of rate 0.5, and on weights, not biases. NC has all classes for m.

    >>> from clairjax.federated import Flute
    >>> star = Flute(head_epochs=10)
    """

    head_epochs: int = eqx.field(static=True, default=0)
    head_first: bool = eqx.field(static=True, default=False)
    features: float = eqx.field(static=True, default=0.005)
    weights: float = eqx.field(static=True, default=0.0025)
    collapse: float = eqx.field(static=True, default=0.25)
    server_rate: float = eqx.field(static=True, default=0.5)
    tune: int = eqx.field(static=True, default=0)

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        check_classifier(model)
        head, body = eqx.partition(model, chosen(model, last_layer, "model.head"))
        many = lambda leaf: jnp.broadcast_to(leaf[None], (clients, *leaf.shape))
        return FluteServer(body, jax.tree.map(many, head)), None

    def client_update(self, server: FluteServer, state: PyTree, client: Client, *, key: Key) -> Update:
        model, held = self._model(server, client.number), client.held
        penalty = lambda model: self._penalty(model, held)
        joint_key, head_key = jax.random.split(key)
        joint = lambda model: fit(
            model,
            everything(model),
            client,
            self.local,
            epochs=self.epochs,
            key=joint_key,
            loss=self._loss,
            penalty=penalty,
        )
        alone = lambda model: self._tuned(model, client, self.head_epochs, head_key, held)
        if self.head_first:
            model, loss = joint(alone(model))
        else:
            model, loss = joint(model)
            model = alone(model)
        head, body = eqx.partition(model, chosen(model, last_layer, "model.head"))
        return Update(FluteUpload(weighted(body, 1.0), head, held), state, loss)

    def server_update(self, server: FluteServer, uploads: FluteUpload, cohort: Cohort, *, key: Key) -> PyTree:
        number = jnp.maximum(jnp.sum(cohort.present), 1)
        weight = uploads.head.head.weight
        # The mean is over those who are there: `neural_collapse_step` divides by all slots.
        rate = jnp.asarray(self.server_rate, weight.dtype) * (len(weight) / number).astype(weight.dtype)
        moved = neural_collapse_step(weight, _widened(uploads.held, weight.shape[1]), rate)
        heads = eqx.tree_at(lambda tree: tree.head.weight, uploads.head, moved)
        clients = jax.tree.leaves(server.heads)[0].shape[0]
        to = jnp.where(cohort.present, cohort.numbers, clients)
        put = lambda all_, new: all_.at[to].set(new, mode="drop")
        return FluteServer(average(uploads.body, server.body), jax.tree.map(put, server.heads, heads))

    def personal(self, server: FluteServer, state: PyTree, client: Client, *, key: Key) -> Any:
        return self._tuned(self._model(server, client.number), client, self.tune, key, client.held)

    def _model(self, server: FluteServer, number: Int[Array, ""]) -> Any:
        return eqx.combine(jax.tree.map(lambda leaf: leaf[number], server.heads), server.body)

    def _tuned(self, model: Any, client: Client, epochs: int, key: Key, held: Bool[Array, " classes"]) -> Any:
        head = chosen(model, last_layer, "model.head")
        penalty = lambda model: self._penalty(model, held)
        return fit_head(model, head, client, self.local, epochs=epochs, key=key, penalty=penalty)[0]

    def _loss(
        self,
        model: Any,
        images: Num[Array, "batch ..."],
        labels: Int[Array, " batch"],
        *,
        here: Bool[Array, " batch"],
        key: Key,
    ) -> Float[Array, " batch"]:
        features = model.features(images)
        size = jnp.asarray(self.features, features.dtype) * jnp.sum(features**2, 1)
        return entropies(model.classify(features, key=key), labels) + size

    def _penalty(self, model: Any, held: Bool[Array, " classes"]) -> Float[Array, ""]:
        weight = model.head.weight
        collapse = neural_collapse(weight, _widened(held, len(weight)))
        return self.weights * jnp.sum(weight**2) + self.collapse * collapse


def _widened(held: Bool[Array, "*clients classes"], outputs: int) -> Bool[Array, "*clients outputs"]:
    """A model may know more classes than there are data of."""
    return jnp.pad(held, [(0, 0)] * (held.ndim - 1) + [(0, outputs - held.shape[-1])])
