"""Low-rank adaptation: linear layers of any equinox model frozen, with a trainable low-rank part beside them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from .. import _validate
from .._precision import HIGHEST
from .._typing import Key


Model = TypeVar("Model")

FEW = 0.05  # dropout rates below which drawing the dropped entries beats drawing for every entry


class LoRA(eqx.Module):
    """A linear layer W x + b with an update beside it: W x + b + scale · B A D x.

    A (`down`) and B (`up`) are trained, W and b are not (`trainable` tells which leaves are). D drops entries of x
    with probability `dropout` and divides the others by 1 − `dropout`; without a key it is the identity. B starts
    at zero, so that a new wrapper changes nothing.

    It takes the place of an `equinox.nn.Linear`: called on one vector, or on an array of them with the features last.

    - `base`: the layer it wraps. `down` [rank, in], `up` [out, rank].
    - `scale` (static): what multiplies B A; other libraries call alpha/rank what is `scale` here.
    - `dropout` (static): in [0, 1).

    **Source:** CLAIR, section 1 and S5. **Cost:** rank · (in + out) multiplications a vector.

    >>> import equinox as eqx, jax
    >>> from clairjax.models import LoRA
    >>> layer = LoRA.around(eqx.nn.Linear(4, 3, key=jax.random.key(0)), 2, scale=16.0, key=jax.random.key(1))
    >>> layer.delta().shape, float(abs(layer.delta()).max())
    ((3, 4), 0.0)
    """

    base: eqx.nn.Linear
    down: Float[Array, "rank in"]
    up: Float[Array, "out rank"]
    scale: float = eqx.field(static=True, default=1.0)
    dropout: float = eqx.field(static=True, default=0.0)

    @staticmethod
    def around(layer: eqx.nn.Linear, rank: int, *, scale: float = 1.0, dropout: float = 0.0, key: Key) -> "LoRA":
        """Wrap one layer: A uniform on ±1/√in, B zero, in the dtype of the layer.

        **Raises:** `ValueError` for a layer with a scalar side and for arguments outside their ranges.
        """
        out, in_ = layer.weight.shape
        if "scalar" in (layer.in_features, layer.out_features):
            raise _validate.fail("layer", "a matrix acting on vectors", "a linear layer with a scalar side")
        _validate.at_least(rank, "rank", 1)
        if rank > min(out, in_):
            raise _validate.fail("rank", f"at most the smaller side of the layer, {min(out, in_)}", rank)
        _validate.positive(scale, "scale")
        if not 0 <= dropout < 1:
            raise _validate.fail("dropout", "at least 0 and below 1", dropout)
        dtype = layer.weight.dtype
        bound = in_**-0.5
        down = jax.random.uniform(key, (rank, in_), dtype, -bound, bound)
        return LoRA(layer, down, jnp.zeros((out, rank), dtype), float(scale), float(dropout))

    def __call__(self, inputs: Float[Array, "*batch in"], *, key: Key | None = None) -> Float[Array, "*batch out"]:
        dropped = inputs if key is None or self.dropout == 0 else _drop(inputs, self.dropout, key)
        return affine(self.base, inputs) + self.scale * ((dropped @ self.down.T) @ self.up.T)

    def delta(self) -> Float[Array, "out in"]:
        """scale · B A, what the update adds to W."""
        return self.scale * jnp.matmul(self.up, self.down, precision=HIGHEST)

    def merge(self) -> eqx.nn.Linear:
        """The plain layer with weight W + scale · B A and the same bias."""
        return eqx.tree_at(lambda layer: layer.weight, self.base, self.base.weight + self.delta())


def affine(layer: eqx.nn.Linear, inputs: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
    """A plain linear layer on the last axis: one matrix product for all vectors, where `jax.vmap` transposes twice."""
    outputs = inputs @ layer.weight.T
    if layer.bias is None:
        return outputs
    return outputs + layer.bias.reshape((1,) * (outputs.ndim - 1) + (-1,))


def apply(
    layer: eqx.nn.Linear | LoRA, inputs: Float[Array, "*batch in"], *, key: Key | None = None
) -> Float[Array, "*batch out"]:
    """A linear layer, plain or adapted, on the last axis."""
    return layer(inputs, key=key) if isinstance(layer, LoRA) else affine(layer, inputs)


def _drop(inputs: Float[Array, "*batch in"], rate: float, key: Key) -> Float[Array, "*batch in"]:
    kept = _kept_few_dropped if rate < FEW else _kept
    scaled = inputs / jnp.asarray(1 - rate, inputs.dtype)
    return jnp.where(kept(inputs.shape, rate, key), scaled, jnp.zeros((), inputs.dtype))


def _kept(shape: tuple[int, ...], rate: float, key: Key) -> Bool[Array, "..."]:
    return jax.random.uniform(key, shape, jnp.float32) >= jnp.float32(rate)


def _kept_few_dropped(shape: tuple[int, ...], rate: float, key: Key) -> Bool[Array, "..."]:
    """The same law from far fewer random numbers: those of the gaps between dropped entries, which are geometric.

    As many gaps are drawn as reach past the last entry, except once in 10⁹ times.
    """
    size = math.prod(shape)
    count = math.ceil(rate * size + 6 * math.sqrt(rate * size) + 10)
    uniform = jax.random.uniform(key, (count,), jnp.float32, minval=2.0**-24)
    gaps = 1 + jnp.floor(jnp.log(uniform) / jnp.float32(math.log1p(-rate))).astype(jnp.int32)
    return jnp.ones(size, bool).at[jnp.cumsum(gaps) - 1].set(False, mode="drop").reshape(shape)


def adapt(
    model: Model,
    where: Callable[[Model], Sequence[eqx.nn.Linear]],
    rank: int,
    *,
    scale: float = 1.0,
    dropout: float = 0.0,
    key: Key,
) -> Model:
    """A model with some of its linear layers wrapped in `LoRA`; it computes the same until it is trained.

    **Args:**

    - `model`: any equinox module. `where`: picks the layers out of it, as in `equinox.tree_at`.
    - `rank`, `scale`, `dropout`: as in `LoRA`, the same for all layers.
    - `key`: of the factors A; clients that use one key start from the same factors.

    **Returns:** the model, the chosen layers replaced.

    **Raises:** `ValueError` if `where` picks no layer, or something that is no `equinox.nn.Linear`.

    **Cost:** rank · (in + out) numbers a layer.

    >>> import equinox as eqx, jax
    >>> from clairjax.models import adapt
    >>> model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    >>> adapt(model, lambda m: m.layers, 2, key=jax.random.key(1)).layers[0].down.shape
    (2, 3)
    """
    layers = tuple(where(model))
    if not layers:
        raise _validate.fail("where", "a function that picks at least one layer", "none")
    for layer in layers:
        if not isinstance(layer, eqx.nn.Linear):
            raise _validate.fail("where", "a function that picks equinox.nn.Linear layers", type(layer).__name__)
    keys = jax.random.split(key, len(layers))
    wrapped = [
        LoRA.around(layer, rank, scale=scale, dropout=dropout, key=one)
        for layer, one in zip(layers, keys, strict=True)
    ]
    return eqx.tree_at(lambda m: list(where(m)), model, wrapped)


def merge(model: Model) -> Model:
    """A model with every `LoRA` replaced by the plain layer it equals.

    **Cost:** rank · in · out multiplications a layer.

    >>> import equinox as eqx, jax
    >>> from clairjax.models import adapt, merge
    >>> model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    >>> adapted = adapt(model, lambda m: m.layers, 2, key=jax.random.key(1))
    >>> bool(eqx.tree_equal(merge(adapted), model))
    True
    """
    return jax.tree.map(lambda node: node.merge() if _is_lora(node) else node, model, is_leaf=_is_lora)


def trainable(model: PyTree) -> PyTree:
    """A tree like `model` that is true at A and B of every `LoRA` and false elsewhere: the filter for training.

    **Cost:** none; nothing is computed.

    >>> import equinox as eqx, jax
    >>> from clairjax.models import adapt, trainable
    >>> model = adapt(eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)), lambda m: m.layers, 2, key=jax.random.key(1))
    >>> trained, frozen = eqx.partition(model, trainable(model))
    >>> [leaf.shape for leaf in jax.tree.leaves(trained)]
    [(2, 3), (4, 2), (2, 4), (2, 2)]
    """

    def mark(node: Any) -> Any:
        nothing = jax.tree.map(lambda _: False, node)
        return eqx.tree_at(lambda layer: (layer.down, layer.up), nothing, (True, True)) if _is_lora(node) else nothing

    return jax.tree.map(mark, model, is_leaf=_is_lora)


def _is_lora(node: Any) -> bool:
    return isinstance(node, LoRA)
