"""What a strategy is: what is shared, what is personal, what a client does, what the server does."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from .._typing import Key
from ..data import Federation


class Client(eqx.Module):
    """One client inside a round: its number, and its samples as rows of the pool, `count` of them and padding."""

    number: Int[Array, ""]
    rows: Int[Array, " samples"]
    count: Int[Array, ""]
    images: Num[Array, "pool ..."]
    labels: Int[Array, " pool"]
    classes: int = eqx.field(static=True)

    @property
    def held(self) -> Bool[Array, " classes"]:
        """The classes of which the client has samples."""
        here = jnp.arange(self.rows.shape[0], dtype=self.count.dtype) < self.count
        labels = jnp.where(here, self.labels[self.rows], self.classes)
        return jnp.zeros(self.classes, bool).at[labels].set(True, mode="drop")

    @property
    def per_class(self) -> Int[Array, " classes"]:
        """How many samples of each class the client has."""
        here = jnp.arange(self.rows.shape[0], dtype=self.count.dtype) < self.count
        labels = jnp.where(here, self.labels[self.rows], self.classes)
        return jnp.zeros(self.classes, jnp.int32).at[labels].add(1, mode="drop")


class Cohort(eqx.Module):
    """Who is in a round. Slots that are not `present` did nothing, and their uploads are zero.

    `expected` is the public number of clients in a round, to divide by where the number drawn is private itself.
    """

    numbers: Int[Array, " slots"]
    present: Bool[Array, " slots"]
    expected: float = eqx.field(static=True)


class Sum(eqx.Module):
    """A part of an upload of which the server gets the sum over the cohort, and no client's own.

    The loop adds such parts as it goes, so that no round keeps every client's model.
    """

    value: PyTree


class Update(NamedTuple):
    """What a client sends, what it keeps, and its mean training loss."""

    upload: PyTree
    state: PyTree
    loss: Float[Array, ""]


class Strategy(eqx.Module):
    """A method of federated learning. A new one is a subclass with these four methods.

    `server` is what the server holds and everybody receives, `state` what one client keeps and nobody else sees. Both
    are any trees, models among them, and keep their shapes. All methods run inside one compiled program.
    """

    @abstractmethod
    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        """What the server holds and what each client holds before the first round."""

    @abstractmethod
    def client_update(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Update:
        """A client's part of a round."""

    @abstractmethod
    def server_update(self, server: PyTree, uploads: PyTree, cohort: Cohort, *, key: Key) -> PyTree:
        """The server's part: the uploads have the cohort as their first axis, a `Sum` has added it up."""

    @abstractmethod
    def personal(self, server: PyTree, state: PyTree, client: Client, *, key: Key) -> Any:
        """The model that a client uses, for which accuracy is measured."""


def weighted(tree: PyTree, weight: Num[Array, ""] | float) -> Sum:
    """To be averaged: the floating arrays of a tree, of which the server gets Σ_k w_k tree_k and Σ_k w_k.

    **Cost:** one pass.

    >>> import jax.numpy as jnp
    >>> from clairjax.federated import average, weighted
    >>> average(weighted(jnp.array([4.0, 8.0]), 0.5), jnp.zeros(2)).tolist()
    [4.0, 8.0]
    """
    weight = jnp.asarray(weight).astype(float_dtype(tree))
    return Sum((jax.tree.map(lambda leaf: leaf * weight.astype(leaf.dtype), _floats(tree)), weight))


def average(uploads: Sum, default: PyTree) -> PyTree:
    """The mean of what `weighted` sent; `default` where nobody did, and for what is no floating array.

    **Cost:** one pass.

    >>> import jax.numpy as jnp
    >>> from clairjax.federated import average, weighted
    >>> average(weighted(jnp.array([4.0, 8.0]), 0.0), jnp.zeros(2)).tolist()
    [0.0, 0.0]
    """
    total, weight = uploads.value
    some = weight > 0
    mean = lambda leaf, old: jnp.where(some, leaf / jnp.where(some, weight, 1).astype(leaf.dtype), old)
    return eqx.combine(jax.tree.map(mean, total, _floats(default)), default)


def _floats(tree: PyTree) -> PyTree:
    return eqx.filter(tree, eqx.is_inexact_array)


def one_client(federation: Federation, number: Int[Array, ""]) -> Client:
    """A client with its training samples."""
    split = federation.train
    rows, count = split.rows[number], split.counts[number]
    return Client(number, rows, count, federation.images, federation.labels, federation.classes)


def float_dtype(tree: PyTree) -> DTypeLike:
    """The dtype of the floating leaves; a tree of several computes in the widest."""
    leaves: list[Any] = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return jnp.result_type(*(leaf.dtype for leaf in leaves)) if leaves else jnp.zeros(()).dtype
