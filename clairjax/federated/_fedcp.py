"""FedCP: a policy splits each feature into a part for the shared head and a part for a personal one."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from .._typing import Key
from ._local import entropies, fit
from ._local_strategy import LocalStrategy
from ._parts import check_classifier, chosen, last_layer, linear
from ._strategy import Client, Cohort, Sum, Update, average, weighted


BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels of the alignment


class Policy(eqx.Module):
    """A share in (0, 1) for each feature: softmax over two of ReLU(layer norm(linear(context ⊙ features)))."""

    layer: eqx.nn.Linear
    scale: Float[Array, " twice"]
    shift: Float[Array, " twice"]

    @staticmethod
    def create(width: int, like: Array, *, key: Key) -> "Policy":
        layer = eqx.nn.Linear(width, 2 * width, dtype=like.dtype, key=key)
        return Policy(layer, jnp.ones(2 * width, like.dtype), jnp.zeros(2 * width, like.dtype))

    def __call__(
        self, features: Float[Array, "batch features"], context: Float[Array, " features"]
    ) -> Float[Array, "batch features"]:
        scores = linear(self.layer, features * context[None])
        centred = scores - scores.mean(1, keepdims=True)
        spread = jax.lax.rsqrt((centred**2).mean(1, keepdims=True) + jnp.asarray(1e-5, scores.dtype))
        scores = jax.nn.relu(centred * spread * self.scale[None] + self.shift[None])
        own, other = jnp.split(scores, 2, axis=1)
        return jax.nn.sigmoid(own - other)


class Split(eqx.Module):
    """What a client of FedCP uses: body, policy, the shared head and its own."""

    model: Any  # its head is the client's own
    shared: eqx.nn.Linear
    policy: Policy
    context: Float[Array, " features"]

    def __call__(self, images: Num[Array, "batch ..."], *, key: Key | None = None) -> Float[Array, "batch classes"]:
        return self.classify(self.model.dropped(self.model.features(images), key=key))

    def classify(self, features: Float[Array, "batch features"]) -> Float[Array, "batch classes"]:
        share = self.policy(features, self.context)
        return linear(self.shared, share * features) + self.model.classify((1 - share) * features)


class FedCPServer(NamedTuple):
    model: Any
    policy: Policy


class FedCP(LocalStrategy):
    """Clients train body, policy and a head of their own, while the head they received stays as it is.

    The policy's context is the sum of the client's head over classes, normed, at the start of a round. A term `align`
    · MMD² keeps the features near those of the received body. The server averages bodies, policies and heads; heads
    also stay with their clients. So heads leave the clients.

    - `local`: how a client trains; `epochs`: of a round. `align` λ.
    - `by_samples`: whether averages are weighted by the clients' numbers of samples.

    The model is a `models.Classifier`.

    **Source:** Zhang et al. 2023 (FedCP), Algorithm 1; a baseline of FLUTE, 7.2. Context and heads are the paper's. In
    the authors' code the context is the sum of |received head − the one received before|, and clients send the mean of
    both their heads. Its softmax has Gumbel noise; there is none here. As in the code, MMD² is over the batch, with
    Gaussian kernels exp(−d²/(2a)) for a = 10, 15, 20, 50. FLUTE does not say its λ; FedCP has 5 for CIFAR-10.

    >>> from clairjax.federated import FedCP
    >>> FedCP(epochs=5).align
    5.0
    """

    align: float = eqx.field(static=True, default=5.0)
    by_samples: bool = eqx.field(static=True, default=True)

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        check_classifier(model)
        weight = last_layer(model).weight
        return FedCPServer(model, Policy.create(weight.shape[1], weight, key=key)), last_layer(model)

    def client_update(self, server: FedCPServer, state: PyTree, client: Client, *, key: Key) -> Update:
        received, used = server.model, self._used(server, state)

        def loss(
            used: Split, images: Num[Array, "batch ..."], labels: Int[Array, " batch"], *, here: Array, key: Key
        ) -> Float[Array, " batch"]:
            features = used.model.features(images)
            apart = discrepancy(features, jax.lax.stop_gradient(received.features(images)), here)
            logits = used.classify(used.model.dropped(features, key=key))
            return entropies(logits, labels) + jnp.asarray(self.align, apart.dtype) * apart

        trained = chosen(used, lambda used: (used.model, used.policy), "model")
        used, value = fit(used, trained, client, self.local, epochs=self.epochs, key=key, loss=loss)
        sent = FedCPServer(used.model, used.policy)
        return Update(weighted(sent, client.count if self.by_samples else 1.0), last_layer(used.model), value)

    def server_update(self, server: FedCPServer, uploads: Sum, cohort: Cohort, *, key: Key) -> PyTree:
        return average(uploads, server)

    def personal(self, server: FedCPServer, state: PyTree, client: Client, *, key: Key) -> Any:
        return self._used(server, state)

    def _used(self, server: FedCPServer, state: PyTree) -> Split:
        context = jnp.sum(state.weight, 0)
        context = context / jnp.maximum(jnp.sqrt(jnp.sum(context**2)), jnp.finfo(context.dtype).tiny)
        model = eqx.tree_at(last_layer, server.model, state)
        return Split(model, last_layer(server.model), server.policy, context)


def discrepancy(
    first: Float[Array, "batch features"], second: Float[Array, "batch features"], here: Bool[Array, " batch"]
) -> Float[Array, ""]:
    """MMD² of two sets of features, over the samples that are there."""
    weight = here.astype(first.dtype) / jnp.maximum(jnp.sum(here), 1).astype(first.dtype)

    def kernel(a: Array, b: Array) -> Array:
        squares = jnp.sum((a[:, None] - b[None]) ** 2, 2)
        values = sum(jnp.exp(-squares / (2 * bandwidth)) for bandwidth in BANDWIDTHS)
        return weight @ values @ weight

    return kernel(first, first) + kernel(second, second) - 2 * kernel(first, second)
