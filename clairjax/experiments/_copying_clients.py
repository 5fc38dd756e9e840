"""The ten clients of the copying experiment: their tasks, their fine-tuned models, and how these are judged."""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from .._typing import Key, Kind
from ..data import Copying, Sequences
from ..models import CopyingTransformer, LoRA
from ._copying_training import FineTuning, Pretraining, accuracy, fine_tune, loss


Data = TypeVar("Data")
LENGTH, EXPONENT = 16, 1.1  # of the homogeneous regime
LENGTHS, EXPONENTS = (10, 26), (0.95, 1.6)  # of the heterogeneous one


@dataclasses.dataclass(frozen=True)
class Cell:
    """Nine benign clients and, last, a contaminated one whose task is `contamination`.

    In the regime `homogeneous` all have exponent 1.1 and length 16, in `heterogeneous` each draws its own. The other
    fields are S5's where it gives a number; `scale` multiplies B A.
    """

    regime: Literal["homogeneous", "heterogeneous"]
    contamination: Kind
    clients: int = 10
    sequences: int = 2000
    test_sequences: int = 500
    validation_sequences: int = 200
    scale: float = 16.0
    dropout: float = 0.005
    pretraining_steps: int = 5500
    pretraining_seed: int = 2

    @property
    def pretraining(self) -> Pretraining:
        return Pretraining(steps=self.pretraining_steps, initial_seed=self.pretraining_seed)

    @property
    def tuning(self) -> FineTuning:
        return FineTuning(sequences=self.sequences, scale=self.scale, dropout=self.dropout)

    @property
    def benign(self) -> int:
        return self.clients - 1


class Tasks(NamedTuple):
    """What distinguishes the clients' distributions."""

    exponents: Float[Array, " clients"]
    lengths: Int[Array, " clients"]


class Fleet(NamedTuple):
    """What the clients hold after fine-tuning: the attention matrices, adapters merged, and the adapters' factors."""

    attention: Float[Array, "layers clients out in"]
    up: Float[Array, "layers clients out rank"]
    down: Float[Array, "layers clients rank in"]
    outputs: eqx.nn.Linear  # each client's own output layer, stacked


def draw_tasks(cell: Cell, key: Key) -> Tasks:
    if cell.regime == "homogeneous":
        return Tasks(jnp.full(cell.clients, EXPONENT, jnp.float32), jnp.full(cell.clients, LENGTH, jnp.int32))
    exponent_key, length_key = jax.random.split(key)
    low, high = LENGTHS
    return Tasks(
        jax.random.uniform(exponent_key, (cell.clients,), jnp.float32, *EXPONENTS),
        jax.random.randint(length_key, (cell.clients,), low, high + 1, jnp.int32),
    )


def train_fleet(cell: Cell, backbone: CopyingTransformer, tasks: Tasks, *, key: Key) -> Fleet:
    """Every client's epoch, one client after another: on CPU a batch of small products is slower than a loop."""
    adapter_key, clients_key = jax.random.split(key)
    adapted = cell.tuning.adapted(backbone, key=adapter_key)  # one key: the factors A start equal
    keys = jax.random.split(clients_key, cell.clients)

    tokens = _draw(cell, tasks, jax.vmap(_data)(keys), cell.sequences)

    def train(each: tuple[Array, Key]) -> Fleet:
        model = fine_tune(adapted, each[0], cell.tuning, key=_dropout(each[1]))
        layers = [cast(LoRA, layer) for layer in model.projections]
        merged = jnp.stack([layer.merge().weight for layer in layers])
        up, down = (jnp.stack([getattr(layer, side) for layer in layers]) for side in ("up", "down"))
        return Fleet(merged, up, down, cast(LoRA, model.output).merge())

    fleet = jax.lax.map(train, (tokens, keys))
    attention, up, down = (array.swapaxes(0, 1) for array in (fleet.attention, fleet.up, fleet.down))
    return Fleet(attention, up, down, fleet.outputs)


def _draw(cell: Cell, tasks: Tasks, keys: Shaped[Array, " clients"], count: int) -> Int[Array, "clients count time"]:
    """Of each client's own task. They differ in static ways, so the contaminated client's data are drawn apart."""
    tokens = jax.lax.map(
        lambda each: Copying(each[0], each[1]).generate(count, key=each[2]).tokens,
        (*(leaf[:-1] for leaf in tasks), keys[:-1]),
    )
    odd = Copying(tasks.exponents[-1], tasks.lengths[-1], kind=cell.contamination)
    return jnp.concatenate([tokens, odd.generate(count, key=keys[-1]).tokens[None]])


def draw_validation(cell: Cell, tasks: Tasks, *, key: Key) -> Int[Array, "clients sequences time"]:
    return _draw(cell, tasks, jax.random.split(key, cell.clients), cell.validation_sequences)


def _data(key: Key) -> Key:
    return jax.random.fold_in(key, 0)


def _dropout(key: Key) -> Key:
    return jax.random.fold_in(key, 1)


def draw_tests(cell: Cell, tasks: Tasks, *, key: Key) -> Sequences:
    """Each benign client's own distribution; in the homogeneous regime the same sequences for all."""
    keys = jax.random.split(key, cell.benign)
    if cell.regime == "homogeneous":
        keys = jnp.broadcast_to(keys[:1], keys.shape)
    return jax.lax.map(
        lambda each: Copying(each[0], each[1]).generate(cell.test_sequences, key=each[2]),
        (tasks.exponents[:-1], tasks.lengths[:-1], keys),
    )


def judge(
    backbone: CopyingTransformer,
    fleet: Fleet,
    methods: Float[Array, "methods layers clients out in"],
    tests: Sequences,
) -> Float[Array, "methods benign"]:
    """Masked accuracy of each benign client with each method's attention matrices and its own output layer.

    The biases of the projections are the backbone's: adapters leave them alone.
    """
    benign = len(tests.second)
    outputs = jax.tree.map(lambda leaf: leaf[:benign], fleet.outputs)
    return _by_client(backbone, outputs, methods[:, :, :benign], tests, accuracy)


def losses(
    backbone: CopyingTransformer,
    fleet: Fleet,
    methods: Float[Array, "methods layers clients out in"],
    tokens: Int[Array, "clients sequences time"],
) -> Float[Array, "methods clients"]:
    """Each client's mean cross-entropy, as `judge` takes each method."""
    return _by_client(backbone, fleet.outputs, methods, tokens, loss)


def _by_client(
    backbone: CopyingTransformer,
    outputs: eqx.nn.Linear,
    methods: Float[Array, "methods layers clients out in"],
    data: Data,
    score: Callable[[CopyingTransformer, Data], Float[Array, ""]],
) -> Float[Array, "methods clients"]:
    def client(each: tuple[Array, eqx.nn.Linear, Data]) -> Float[Array, " methods"]:
        matrices, output, mine = each

        def method(weights: Float[Array, "layers out in"]) -> Float[Array, ""]:
            model = eqx.tree_at(lambda m: [layer.weight for layer in m.projections], backbone, list(weights))
            return score(eqx.tree_at(lambda m: m.output, model, output), mine)

        return jax.lax.map(method, matrices)

    return jax.lax.map(client, (jnp.moveaxis(methods, 2, 0), outputs, data)).T
