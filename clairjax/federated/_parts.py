"""Body and head of a model: chosen by a function on it, taken apart and put together."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from .. import _validate


Where = Callable[[Any], Any]


def last_layer(model: Any) -> Any:
    """The head of a `models.Classifier`: its last linear layer."""
    return model.head


def chosen(model: PyTree, where: Where, name: str) -> PyTree:
    """A tree like `model`, true at the floating arrays of what `where` picks and false elsewhere.

    **Raises:** `ValueError` with the name where that is nothing, or everything.

    **Cost:** none; nothing is computed.

    >>> import equinox as eqx, jax
    >>> from clairjax.federated import chosen
    >>> from clairjax.models import small_cnn
    >>> model = small_cnn(key=jax.random.key(0))
    >>> head, body = eqx.partition(model, chosen(model, lambda m: m.head, "head"))
    >>> [leaf.shape for leaf in jax.tree.leaves(head)]
    [(10, 32), (10,)]
    """
    marked = picked_out(model, where, name)
    trained = everything(model)
    if jax.tree.leaves(marked) == jax.tree.leaves(trained):
        raise _validate.fail(name, "a function that leaves at least one array of the model", "all of them")
    return marked


def picked_out(model: PyTree, where: Where, name: str) -> PyTree:
    """`chosen`, which may be everything."""
    marked = jax.tree.map(lambda _: False, model)
    try:
        picked = where(marked)
        if jax.tree.leaves(picked):
            marked = eqx.tree_at(where, marked, jax.tree.map(lambda _: True, picked))
    except (AttributeError, IndexError, TypeError, KeyError) as error:
        got = f"{type(error).__name__}: {error}"
        raise _validate.fail(name, "a function that picks parts of the model", got) from error
    marked = jax.tree.map(lambda mark, leaf: bool(mark) and eqx.is_inexact_array(leaf), marked, model)
    if not any(jax.tree.leaves(marked)):
        raise _validate.fail(name, "a function that picks at least one array of the model", "none")
    return marked


def everything(model: PyTree) -> PyTree:
    """True at every floating array."""
    return jax.tree.map(eqx.is_inexact_array, model)


def others(model: PyTree, marked: PyTree) -> PyTree:
    """True at the floating arrays that are not marked."""
    return jax.tree.map(lambda leaf, mark: eqx.is_inexact_array(leaf) and not mark, model, marked)


def check_classifier(model: Any) -> None:
    """Features, and a head that is a linear layer: some strategies write out what a head does."""
    must_be = "a models.Classifier whose head is an equinox.nn.Linear"
    if not all(hasattr(model, name) for name in ("head", "features", "classify", "dropped")):
        raise _validate.fail("model", must_be, type(model).__name__)
    if not isinstance(last_layer(model), eqx.nn.Linear):
        raise _validate.fail("model", must_be, f"one of {type(last_layer(model)).__name__}")


def linear(layer: eqx.nn.Linear, inputs: Float[Array, "batch in"]) -> Float[Array, "batch out"]:
    """A linear layer, with or without a bias, on a batch."""
    outputs = inputs @ layer.weight.T
    return outputs if layer.bias is None else outputs + layer.bias[None]


def is_last_layer(model: PyTree, marked: PyTree) -> bool:
    """Whether just the head of a classifier is marked, so that the features stay while it is trained."""
    if not (hasattr(model, "head") and hasattr(model, "features") and hasattr(model, "classify")):
        return False
    return jax.tree.leaves(marked) == jax.tree.leaves(chosen(model, last_layer, "head"))
