"""Training on the copying task: the backbone, once, and each client's adapters, an epoch as one compiled scan."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Float, Int, PyTree

from .._typing import Key
from ..data import Copying, Sequences, masked_accuracy
from ..models import CopyingTransformer, adapt, trainable


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """How the common backbone is trained: S5's numbers, and what it leaves open.

    The seeds decide when the blocks start to copy, a sudden change after some thousands of steps. So they decide how
    good the backbone is: 0.87 with this seed after 5,500 steps, 0.49 with another after 4,500. `embedding` is
    the standard deviation of the first embeddings; at 0.02 nothing had started after 2,500 steps.
    """

    steps: int = 5500
    batch: int = 64
    rate: float = 1e-3
    exponent: float = 1.1
    shortest: int = 5
    longest: int = 15
    embedding: float = 1.0
    initial_seed: int = 2
    data_seed: int = 1

    @property
    def task(self) -> Copying:
        return Copying(self.exponent, jnp.arange(self.shortest, self.longest + 1))

    def initial(self) -> CopyingTransformer:
        model = CopyingTransformer.create(key=jax.random.key(self.initial_seed))
        return eqx.tree_at(lambda m: m.embedding, model, self.embedding * model.embedding)


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """How each client trains its adapters: S5's numbers."""

    sequences: int = 2000
    batch: int = 50
    rate: float = 1e-3
    rank: int = 3
    scale: float = 16.0
    dropout: float = 0.005

    def adapted(self, backbone: CopyingTransformer, *, key: Key) -> CopyingTransformer:
        """The backbone with adapters on the eight attention matrices and the output layer."""
        layers = lambda model: (*model.projections, model.output)
        return adapt(backbone, layers, self.rank, scale=self.scale, dropout=self.dropout, key=key)


def loss(model: CopyingTransformer, tokens: Int[Array, "batch time"], *, key: Key | None = None) -> Float[Array, ""]:
    """Mean cross-entropy of every next token, copied or not."""
    logits = model(tokens, key=key)[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


Carry = tuple[PyTree, PyTree]


def _adam(
    rate: float, rebuild: Callable[[PyTree], CopyingTransformer], carry: Carry, tokens: Array, key: Key | None
) -> tuple[Carry, Float[Array, ""]]:
    parameters, state = carry
    value, gradient = jax.value_and_grad(lambda p: loss(rebuild(p), tokens, key=key))(parameters)
    with jax.numpy_dtype_promotion("standard"):  # optax raises a Python float to an integer count
        updates, state = optax.adam(rate).update(gradient, state)
    return (optax.apply_updates(parameters, updates), state), value


@eqx.filter_jit
def pretrain_steps(
    model: CopyingTransformer, state: PyTree, settings: Pretraining, first: Int[Array, ""], count: int
) -> tuple[CopyingTransformer, PyTree, Float[Array, ""]]:
    """`count` steps on fresh sequences, from step `first`; the model, Adam's state and the mean loss."""
    parameters, rest = eqx.partition(model, eqx.is_array)
    key = jax.random.key(settings.data_seed)

    def step(carry: Carry, number: Int[Array, ""]) -> tuple[Carry, Float[Array, ""]]:
        sequences = settings.task.generate(settings.batch, key=jax.random.fold_in(key, number))
        return _adam(settings.rate, lambda p: eqx.combine(p, rest), carry, sequences.tokens, None)

    numbers = first + jnp.arange(count, dtype=jnp.int32)
    (parameters, state), losses = jax.lax.scan(step, (parameters, state), numbers)
    return eqx.combine(parameters, rest), state, losses.mean()


def start(model: CopyingTransformer, rate: float) -> PyTree:
    """Adam's state before the first step."""
    return optax.adam(rate).init(eqx.filter(model, eqx.is_array))


def fine_tune(
    adapted: CopyingTransformer, tokens: Int[Array, "sequences time"], settings: FineTuning, *, key: Key
) -> CopyingTransformer:
    """One epoch in the order given, adapters alone; a last batch that is not full is left out."""
    trained, frozen = eqx.partition(adapted, trainable(adapted))
    steps = len(tokens) // settings.batch
    batches = tokens[: steps * settings.batch].reshape(steps, settings.batch, -1)

    def step(carry: Carry, batch: tuple[Array, Key]) -> tuple[Carry, Float[Array, ""]]:
        return _adam(settings.rate, lambda p: eqx.combine(p, frozen), carry, *batch)

    carry = trained, optax.adam(settings.rate).init(trained)
    (trained, _), _ = jax.lax.scan(step, carry, (batches, jax.random.split(key, steps)))
    return eqx.combine(trained, frozen)


def accuracy(model: CopyingTransformer, sequences: Sequences, batch: int = 50) -> Float[Array, ""]:
    """Masked accuracy, a batch at a time to stay in the cache; all segments of one length."""
    parts = jax.tree.map(lambda leaf: leaf.reshape(-1, min(batch, len(leaf)), *leaf.shape[1:]), sequences)
    return jax.lax.map(lambda part: masked_accuracy(model(part.tokens), part), parts).mean()
