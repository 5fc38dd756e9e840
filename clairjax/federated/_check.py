"""What is looked at before a run starts: the model, the cohort, and that a strategy gives back the trees it got."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .. import _validate
from .._typing import Key
from ..data import Federation, scaled
from ..privacy import FixedSize
from ._rounds import Place, Sampler
from ._strategy import Cohort, Strategy, Sum, Update, float_dtype, one_client


def check_model(model: Any, federation: Federation) -> None:
    """It takes the images and tells the classes apart."""
    if not callable(model):
        raise _validate.fail("model", "callable on a batch of images, as a models.Classifier is", type(model).__name__)
    if not any(map(eqx.is_inexact_array, jax.tree.leaves(model))):
        raise _validate.fail("model", "one with floating arrays to train", f"none in a {type(model).__name__}")
    dtype = float_dtype(model)
    images = jax.ShapeDtypeStruct((2, *federation.images.shape[1:]), federation.images.dtype)
    try:
        shape = eqx.filter_eval_shape(lambda images: model(scaled(images, dtype)), images).shape
    except TypeError as error:
        got = f"one that refuses them ({str(error).splitlines()[0]})"
        raise _validate.fail("model", f"one for images of shape {images.shape[1:]}", got) from error
    if len(shape) != 2 or shape[0] != 2 or shape[1] < federation.classes:
        must_be = f"one that gives logits of shape (batch, {federation.classes} or more)"
        raise _validate.fail("model", must_be, f"shape {shape}")


def check_devices(devices: Any) -> tuple[jax.Device, ...]:
    found = devices if isinstance(devices, Sequence) else ()
    if not found or len(set(found)) < len(found) or not all(isinstance(each, jax.Device) for each in found):
        raise _validate.fail("devices", "a list of JAX devices, at least one and each once", repr(devices))
    return tuple(found)


def check_sampler(sampler: Sampler, clients: int) -> None:
    if isinstance(sampler, FixedSize) and sampler.size > clients:
        raise _validate.fail("sampler.size", f"at most the number of clients, {clients}", sampler.size)


def check_trees(strategy: Strategy, federation: Federation, place: Place, cohort: Cohort, key: Key) -> None:
    """A strategy's states and server keep their leaves, shapes and dtypes: a loop carries them."""
    name = type(strategy).__name__
    state = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, place.states)
    client = lambda: one_client(federation, jnp.zeros((), jnp.int32))
    update = eqx.filter_eval_shape(lambda: strategy.client_update(place.server, state, client(), key=key))
    if not isinstance(update, Update):
        raise _validate.fail(f"{name}.client_update", "a function that returns an Update", type(update).__name__)
    if getattr(update.loss, "shape", None) != ():
        got = f"shape {update.loss.shape}" if hasattr(update.loss, "shape") else f"a {type(update.loss).__name__}"
        raise _validate.fail(f"{name}.client_update", "a function whose loss is an array of one number", got)
    _same(f"{name}.client_update", "state", state, update.state)
    stacked = jax.tree.map(
        lambda node: node if isinstance(node, Sum) else _stack(node, len(cohort.numbers)),
        update.upload,
        is_leaf=lambda node: isinstance(node, Sum),
    )
    server = eqx.filter_eval_shape(
        lambda uploads: strategy.server_update(place.server, uploads, cohort, key=key), stacked
    )
    _same(f"{name}.server_update", "server", place.server, server)


def _stack(shape: Any, slots: int) -> Any:
    return jax.ShapeDtypeStruct((slots, *shape.shape), shape.dtype) if hasattr(shape, "shape") else shape


def _same(function: str, what: str, given: PyTree, returned: PyTree) -> None:
    """The first leaf that differs, by its name."""
    must_be = f"a function that returns the {what} it was given"
    old, new = (dict(jax.tree_util.tree_flatten_with_path(tree)[0]) for tree in (given, returned))
    name = lambda path: f"{what}{jax.tree_util.keystr(path)}"
    for path in (*old, *new):
        if path not in new:
            raise _validate.fail(function, must_be, f"it without {name(path)}")
        if path not in old:
            raise _validate.fail(function, must_be, f"it with another leaf {name(path)}")
        shapes = [(leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else None for leaf in (old[path], new[path])]
        if shapes[0] != shapes[1]:
            texts = [f"{pair[0]} {pair[1]}" if pair else "no array" for pair in shapes]
            raise _validate.fail(function, must_be, f"{name(path)} of {texts[1]} instead of {texts[0]}")
        if shapes[0] is None and not (old[path] is new[path] or old[path] == new[path]):
            got = f"{name(path)} = {new[path]} instead of {old[path]} (what changes must be an array)"
            raise _validate.fail(function, must_be, got)
    structures: list[Any] = [jax.tree.structure(tree) for tree in (given, returned)]
    if structures[0] != structures[1]:
        raise _validate.fail(function, must_be, f"a {what} of another structure")
