"""Layers as matrices that clients align: a weight with an adapter's product added, or with its bias beside it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .. import _validate
from .._factorisations import factoring_in_turn
from .._typing import Key
from ..alignment import LowRankMatrices
from ..models import LoRA, trainable
from ._parts import Where, everything, picked_out


Change = (
    tuple[Float[Array, "*_clients _out _rank"], Float[Array, "*_clients _rank _in"]]
    | Float[Array, "*_clients _out _in"]
)
Found = TypeVar("Found")


def adapters(model: Any) -> list[LoRA]:
    """All of a model."""
    is_adapter = lambda node: isinstance(node, LoRA)
    return [node for node in jax.tree.leaves(model, is_leaf=is_adapter) if is_adapter(node)]


def aligned(model: Any, where: Where) -> list[Any]:
    """The layers that `where` picks."""
    picked = where(model)
    return [picked] if hasattr(picked, "weight") or isinstance(picked, LoRA) else list(picked)


def check_layers(model: Any, where: Where) -> None:
    picked_out(model, where, "layers")
    try:
        layers = aligned(model, where)
    except TypeError:
        got = type(where(model)).__name__
        raise _validate.fail("layers", "a function that picks a layer or several", got) from None
    for layer in layers:
        if not isinstance(layer, LoRA) and getattr(getattr(layer, "weight", None), "ndim", 0) < 2:
            must_be = "a function that picks adapters, or layers whose weight has two axes or more"
            raise _validate.fail("layers", must_be, type(layer).__name__)
    leaves, structure = jax.tree.flatten(model)
    numbers = jax.tree.leaves(aligned(jax.tree.unflatten(structure, range(len(leaves))), where))
    if len(set(numbers)) < len(numbers):  # it would get its change twice, and have two voices in the verdict
        raise _validate.fail("layers", "a function that picks each layer once", "a layer or a part of it twice")


def trained(model: PyTree, where: Where) -> PyTree:
    """True at what is trained of the aligned layers: A and B of an adapter, all of another layer."""
    layers = aligned(model, where)
    marks = [trainable(layer) if isinstance(layer, LoRA) else everything(layer) for layer in layers]
    return eqx.tree_at(lambda tree: aligned(tree, where), jax.tree.map(lambda _: False, model), marks)


def matrix(layer: Any) -> Float[Array, "out in"]:
    if isinstance(layer, LoRA):
        return layer.merge().weight
    weight = layer.weight.reshape(len(layer.weight), -1)
    bias = getattr(layer, "bias", None)
    return weight if bias is None else jnp.concatenate([weight, bias.reshape(-1, 1)], 1)


def with_matrices(
    model: Any, where: Where, matrices: Sequence[Float[Array, "_out _in"]], *, key: Key | None = None
) -> Any:
    """The model with these matrices; adapters with B = 0, and with a new A where there is a key."""
    layers = aligned(model, where)
    keys = [None] * len(layers) if key is None else list(jax.random.split(key, len(layers)))
    new = [_with_matrix(*each) for each in zip(layers, matrices, keys, strict=True)]
    return eqx.tree_at(lambda tree: aligned(tree, where), model, new)


def _with_matrix(layer: Any, values: Float[Array, "out in"], key: Key | None) -> Any:
    if isinstance(layer, LoRA):
        if key is not None:
            layer = LoRA.around(layer.base, len(layer.down), scale=layer.scale, dropout=layer.dropout, key=key)
        return eqx.tree_at(lambda each: (each.base.weight, each.up), layer, (values, jnp.zeros_like(layer.up)))
    weight, bias = layer.weight, getattr(layer, "bias", None)
    layer = eqx.tree_at(lambda each: each.weight, layer, values[:, : weight[0].size].reshape(weight.shape))
    return layer if bias is None else eqx.tree_at(lambda each: each.bias, layer, values[:, -1].reshape(bias.shape))


def change(old: Any, new: Any) -> Change:
    """What a round made of a layer: of an adapter, which started at B = 0, the factors of its product."""
    if isinstance(new, LoRA):
        return new.up, new.scale * new.down
    return matrix(new) - matrix(old)


def reports(changes: Change) -> LowRankMatrices | Float[Array, "clients out in"]:
    """As `alignment` takes them."""
    return LowRankMatrices(*changes) if isinstance(changes, tuple) else changes


def over_layers(function: Callable[[Change], Found], layers: Sequence[Change]) -> list[Found]:
    """`function` of each layer. Those of one shape are a loop, so that they are compiled once.

    Loops of several shapes run side by side, and batched factorisations in them would wait for each other for ever.
    """
    alike: dict[Any, list[int]] = {}
    for place, layer in enumerate(layers):
        leaves, structure = jax.tree.flatten(layer)
        alike.setdefault((structure, *((leaf.shape, leaf.dtype) for leaf in leaves)), []).append(place)
    found: dict[int, Found] = {}
    for places in alike.values():
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(layers[place] for place in places))
        done = jax.lax.map(factoring_in_turn(function), stacked)
        found |= {place: jax.tree.map(lambda leaf, n=n: leaf[n], done) for n, place in enumerate(places)}
    return [found[place] for place in range(len(layers))]
