"""FedRoD: a generic head for all classes alike, and a personal one beside it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PyTree

from .._typing import Key
from ._local import entropies, fit
from ._local_strategy import LocalStrategy
from ._parts import check_classifier, everything, last_layer, linear
from ._strategy import Client, Cohort, Sum, Update, average, weighted


class TwoHeads(eqx.Module):
    """A classifier and a second head on its features; logits are the sum."""

    model: Any
    own: eqx.nn.Linear

    def __call__(self, images: Num[Array, "batch ..."], *, key: Key | None = None) -> Float[Array, "batch classes"]:
        features = self.model.dropped(self.model.features(images), key=key)
        return self.model.classify(features) + linear(self.own, features)


class FedRoD(LocalStrategy):
    """Body and generic head are trained on the balanced softmax, and averaged; a personal head is added for own use.

    With n_c samples of class c at a client, the balanced softmax is the cross-entropy of logits + log n_c. A model of
    equally frequent classes would need that. The personal head is trained with the sum of both on the plain
    cross-entropy; its gradient does not reach body and generic head. It starts at 0.

    - `local`: how a client trains; `epochs`: of a round.
    - `by_samples`: whether the average is weighted by the clients' numbers of samples.

    The model is a `models.Classifier`.

    **Source:** Chen and Chao 2022, FedRoD with a linear head and not their hypernetwork; balanced softmax after Ren et
    al. 2020; a baseline of FLUTE, 7.2. The paper's losses. Both heads and the body take their steps together, from one
    gradient. PFLlib's public code steps the personal head behind the others, from a copy of the generic one.

    >>> from clairjax.federated import FedRoD
    >>> FedRoD(epochs=5).epochs
    5
    """

    by_samples: bool = eqx.field(static=True, default=True)

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        check_classifier(model)
        return model, jax.tree.map(jnp.zeros_like, last_layer(model))

    def client_update(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Update:
        both, counts = TwoHeads(server, state), client.per_class

        def loss(
            both: TwoHeads, images: Num[Array, "batch ..."], labels: Int[Array, " batch"], *, here: Array, key: Key
        ) -> Float[Array, " batch"]:
            features = both.model.dropped(both.model.features(images), key=key)
            generic = both.model.classify(features)
            seen = jax.lax.stop_gradient
            own = seen(generic) + linear(both.own, seen(features))
            return balanced(generic, labels, counts) + entropies(own, labels)

        both, value = fit(both, everything(both), client, self.local, epochs=self.epochs, key=key, loss=loss)
        return Update(weighted(both.model, client.count if self.by_samples else 1.0), both.own, value)

    def server_update(self, server: PyTree, uploads: Sum, cohort: Cohort, *, key: Key) -> PyTree:
        return average(uploads, server)

    def personal(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Any:
        return TwoHeads(server, state)


def balanced(
    logits: Float[Array, "batch classes"], labels: Int[Array, " batch"], counts: Int[Array, " held"]
) -> Float[Array, " batch"]:
    """Each sample's cross-entropy of logits + log n_c; classes without samples are left out."""
    prior = jnp.pad(jnp.log(counts.astype(logits.dtype)), (0, logits.shape[1] - len(counts)), constant_values=-jnp.inf)
    return entropies(logits + prior[None], labels)
