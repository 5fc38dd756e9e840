"""What a client does: gradient steps on its own samples, in batches that padding does not change."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from .. import _validate
from .._typing import Key
from ..data import scaled
from ._parts import is_last_layer
from ._strategy import Client, float_dtype


Loss = Callable[..., Float[Array, " batch"]]
Penalty = Callable[[Any], Float[Array, ""]]


@functools.lru_cache  # so that equal optimisers are one, and equal runs one program
def sgd(rate: float = 0.01, *, momentum: float = 0.0, decay: float = 0.0) -> optax.GradientTransformation:
    """Gradient descent with momentum, and weight decay on weights but not on biases, as the papers' code has it.

    **Cost:** one copy of what is trained where there is momentum.

    >>> from clairjax.federated import sgd
    >>> sgd(0.01, momentum=0.5, decay=1e-4).init({}) is not None
    True
    """
    matrices = lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree)
    decayed = optax.masked(optax.add_decayed_weights(decay), matrices) if decay else optax.identity()
    return optax.chain(decayed, optax.sgd(rate, momentum=momentum or None))


class Local(eqx.Module):
    """How a client trains: optimiser, batch, augmentation.

    - `optimiser`: any of optax; `sgd(rate)`, say. It starts afresh in every round.
    - `batch`: samples of a step; all of a client's in every step if None. A client's last batch may be smaller.
    - `augment`: `augment(images, key=key)` on a batch, before it is scaled; `crop_and_flip`, or None.
    """

    optimiser: optax.GradientTransformation = eqx.field(static=True, default=sgd(0.01, momentum=0.5, decay=1e-4))
    batch: int | None = eqx.field(static=True, default=10)
    augment: Callable[..., Array] | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if not isinstance(self.optimiser, optax.GradientTransformation):
            raise _validate.fail("optimiser", "one of optax, such as sgd(0.01)", repr(self.optimiser))
        if self.batch is not None:
            _validate.at_least(self.batch, "batch", 1)


def cross_entropy(
    model: Any,
    images: Num[Array, "batch ..."],
    labels: Int[Array, " batch"],
    *,
    here: Bool[Array, " batch"] | None = None,
    key: Key | None = None,
) -> Float[Array, " batch"]:
    """Each sample's −log p(label).

    **Cost:** one pass of the model.

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.federated import cross_entropy
    >>> from clairjax.models import small_cnn
    >>> model = small_cnn(key=jax.random.key(0))
    >>> cross_entropy(model, jnp.zeros((2, 8, 8, 1), "float32"), jnp.zeros(2, int)).shape
    (2,)
    """
    return entropies(model(images, key=key), labels)


def entropies(logits: Float[Array, "batch classes"], labels: Int[Array, " batch"]) -> Float[Array, " batch"]:
    """Each sample's −log softmax(logits)[label]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def head_entropy(
    model: Any,
    features: Num[Array, "batch features"],
    labels: Int[Array, " batch"],
    *,
    here: Bool[Array, " batch"] | None = None,
    key: Key | None = None,
) -> Float[Array, " batch"]:
    """The same from features."""
    return entropies(model.classify(features, key=key), labels)


def fit(
    model: Any,
    trained: PyTree,
    client: Client,
    local: Local,
    *,
    epochs: int,
    key: Key,
    loss: Loss = cross_entropy,
    penalty: Penalty | None = None,
) -> tuple[Any, Float[Array, ""]]:
    """Epochs of gradient steps on the leaves where `trained` is true: the model, and the mean loss of a sample.

    A step's objective is the mean of `loss(model, images, labels, here=here, key=key)` over the batch plus
    `penalty(model)`; `here` is false at the padding of a batch, whose losses do not count. Each epoch takes the
    samples in a new random order. It depends on the key and their number alone, so that padding changes no bit.

    **Cost:** a forward and a backward pass over the client's samples for each epoch.

    >>> import inspect
    >>> from clairjax.federated import FedAvg, fit  # a use of it:
    >>> "fit(server, everything(server), client, self.local" in inspect.getsource(FedAvg.client_update)
    True
    """
    parameters, frozen = eqx.partition(model, trained)
    if epochs == 0 or not jax.tree.leaves(parameters):
        return model, jnp.zeros((), float_dtype(model))
    batch = client.rows.shape[0] if local.batch is None else local.batch
    steps = 1 if local.batch is None else _ceil(client.count, batch)

    dtype = float_dtype(model)

    def objective(parameters: PyTree, rows: Array, here: Array, total: Array, key: Key) -> Float[Array, ""]:
        images, labels = _batch(client, rows, local, key, dtype)
        model = eqx.combine(parameters, frozen)
        losses = loss(model, images, labels, here=here, key=jax.random.fold_in(key, 1))
        return jnp.sum(jnp.where(here, losses, 0)) / total.astype(losses.dtype)

    def gradient(parameters: PyTree, order: Array, step: Array, key: Key) -> tuple[Array, PyTree]:
        value, slope = _mean_gradient(objective, parameters, order, step, client.count, local.batch, key)
        if penalty is not None:
            more, tilt = eqx.filter_value_and_grad(lambda p: penalty(eqx.combine(p, frozen)))(parameters)
            value, slope = value + more, jax.tree.map(jnp.add, slope, tilt)
        return value, slope

    def step(number: Array, carry: tuple[PyTree, PyTree, Array], order: Array, key: Key) -> Any:
        parameters, state, total = carry
        value, slope = gradient(parameters, order, number, jax.random.fold_in(key, number))
        change, state = local.optimiser.update(slope, state, parameters)
        return optax.apply_updates(parameters, change), state, total + value

    def epoch(carry: tuple[PyTree, PyTree, Array], key: Key) -> tuple[Any, None]:
        order_key, step_key = jax.random.split(key)
        order = client.rows if local.batch is None else _shuffled(client, batch, order_key)
        return lax.fori_loop(0, steps, lambda n, c: step(n, c, order, step_key), carry), None

    start = parameters, local.optimiser.init(parameters), jnp.zeros((), float_dtype(model))
    (parameters, _, total), _ = lax.scan(epoch, start, jax.random.split(key, epochs))
    return eqx.combine(parameters, frozen), total / jnp.asarray(epochs * steps).astype(total.dtype)


def fit_head(
    model: Any,
    head: PyTree,
    client: Client,
    local: Local,
    *,
    epochs: int,
    key: Key,
    penalty: Penalty | None = None,
) -> tuple[Any, Float[Array, ""]]:
    """`fit` of the head. Where it is the last layer and nothing is augmented, the features are computed once.

    **Cost:** one forward pass of the body, or one for each epoch.

    >>> import inspect
    >>> from clairjax.federated import FedRep, fit_head  # a use of it:
    >>> "fit_head(model, head, client, self.local, epochs=self.head_epochs" in inspect.getsource(FedRep.trained)
    True
    """
    if epochs == 0 or local.augment is not None or not is_last_layer(model, head):
        return fit(model, head, client, local, epochs=epochs, key=key, penalty=penalty)
    seen = featured(model, client)
    return fit(model, head, seen, local, epochs=epochs, key=key, loss=head_entropy, penalty=penalty)


def featured(model: Any, client: Client) -> Client:
    """The client with its samples' features in place of the images."""
    chunk, dtype = chunk_size(), float_dtype(model)
    width = _ceil(client.rows.shape[0], chunk) * chunk
    rows = jnp.pad(client.rows, (0, width - client.rows.shape[0]))
    shape = jax.eval_shape(lambda: model.features(scaled(client.images[:1], dtype)))

    def fill(number: Array, buffer: Array) -> Array:
        here = lax.dynamic_slice(rows, (number * chunk,), (chunk,))
        values = model.features(scaled(client.images[here], dtype))
        return lax.dynamic_update_slice(buffer, values, (number * chunk, jnp.zeros_like(number)))

    buffer = jnp.zeros((width, shape.shape[1]), shape.dtype)
    features = lax.fori_loop(0, _ceil(client.count, chunk), fill, buffer)
    own = jnp.arange(client.rows.shape[0], dtype=client.rows.dtype)
    features, labels = features[: len(own)], client.labels[client.rows]
    return Client(client.number, own, client.count, features, labels, client.classes)


def chunk_size() -> int:
    """Samples that a pass over all of a client's takes at once: few on a CPU, for its caches."""
    return 10 if jax.default_backend() == "cpu" else 256


def correct(model: Any, client: Client, chunk: int = 50) -> Int[Array, ""]:
    """How many of the client's samples the model gets right."""
    rows = jnp.pad(client.rows, (0, chunk))
    dtype = float_dtype(model)

    def add(number: Array, total: Array) -> Array:
        here = lax.dynamic_slice(rows, (number * chunk,), (chunk,))
        said = jnp.argmax(model(scaled(client.images[here], dtype)), 1).astype(client.labels.dtype)
        inside = _inside(number, chunk, client.count)
        return total + jnp.sum((said == client.labels[here]) & inside, dtype=total.dtype)

    return lax.fori_loop(0, _ceil(client.count, chunk), add, jnp.zeros((), jnp.int32))


def _mean_gradient(
    objective: Callable[..., Array],
    parameters: PyTree,
    order: Int[Array, " padded"],
    step: Int[Array, ""],
    count: Int[Array, ""],
    batch: int | None,
    key: Key,
) -> tuple[Float[Array, ""], PyTree]:
    """Of one batch; of all samples, chunk by chunk, so that neither memory nor any bit depends on the padding."""
    slope_of = eqx.filter_value_and_grad(objective)
    if batch is not None:
        rows = lax.dynamic_slice(order, (step * batch,), (batch,))
        here = _inside(step, batch, count)
        return slope_of(parameters, rows, here, jnp.sum(here), key)
    chunk = chunk_size()  # never fewer: programs of another shape differ in the last digits
    padded = jnp.pad(order, (0, chunk))

    def add(number: Array, carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        rows = lax.dynamic_slice(padded, (number * chunk,), (chunk,))
        here = _inside(number, chunk, count)
        return jax.tree.map(jnp.add, carry, slope_of(parameters, rows, here, count, jax.random.fold_in(key, number)))

    zero = jnp.zeros((), float_dtype(parameters)), jax.tree.map(jnp.zeros_like, parameters)
    return lax.fori_loop(0, _ceil(count, chunk), add, zero)


def _batch(
    client: Client, rows: Int[Array, " batch"], local: Local, key: Key, dtype: Any
) -> tuple[Float[Array, "batch ..."], Int[Array, " batch"]]:
    images = client.images[rows]
    if local.augment is not None:
        images = local.augment(images, key=jax.random.fold_in(key, 0))
    return scaled(images, dtype), client.labels[rows]


def _shuffled(client: Client, batch: int, key: Key) -> Int[Array, " padded"]:
    """The client's rows in a random order, padding last, and a batch more of it.

    Each place draws from a key of its own, so that the order of the samples does not depend on how many are padding.
    """
    places = jnp.arange(client.rows.shape[0], dtype=jnp.uint32)
    draws = jax.vmap(lambda place: jax.random.bits(jax.random.fold_in(key, place), (), jnp.uint32))(places)
    draws = jnp.where(places < client.count.astype(jnp.uint32), draws >> 1, jnp.uint32(2**32 - 1))
    return jnp.pad(client.rows[jnp.argsort(draws, stable=True)], (0, batch))


def _inside(number: Int[Array, ""], size: int, count: Int[Array, ""]) -> Bool[Array, " batch"]:
    return number * size + jnp.arange(size, dtype=jnp.int32) < count


def _ceil(count: Any, size: int) -> Any:
    return (count + size - 1) // size
