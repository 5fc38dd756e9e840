"""Who gets which samples: by shards of classes, by Dirichlet shares, or by a group that each sample names."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _validate
from .._typing import Key
from ._federation import Federation, Labelled, Split, checked, refuse_empty


Rows = list[np.ndarray]
TRIES = 200  # of Dirichlet shares, until every client has a sample


class Scheme(eqx.Module):
    """How samples are dealt to clients."""

    @abstractmethod
    def shares(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Each client's share [clients, classes] of each class; a column adds up to 1, or to 0 if nobody has it."""


class Shards(Scheme):
    """Each class is cut into shards of equal size, and every client gets `per_client` shards at random.

    A client may get two shards of one class, as in the papers' code. With 5 shards of 10 classes, 70 % of the
    clients have a repeat. With C classes a class is cut into clients · `per_client` / C shards, or one more where that
    is not whole.

    **Source:** FLUTE, 7.2 and CENTAUR, 6 (`per_client` is m, and S).
    """

    per_client: int = eqx.field(static=True)

    def __check_init__(self):
        _validate.at_least(self.per_client, "per_client", 1)

    def shares(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        sizes = np.bincount(labels)
        present = np.flatnonzero(sizes)
        total = clients * self.per_client
        whole, more = divmod(total, len(present))
        cards = np.concatenate([np.repeat(present, whole), rng.permutation(present)[:more]])
        shards = np.bincount(cards, minlength=len(sizes))
        if (shards > sizes).any():
            scarce = int(np.flatnonzero(shards > sizes)[0])
            must_be = f"few enough for a sample in each shard ({clients} clients × per_client shards in all)"
            got = f"{self.per_client}: class {scarce} has {sizes[scarce]} samples for {shards[scarce]} shards"
            raise _validate.fail("per_client", must_be, got)
        hands = rng.permutation(cards).reshape(clients, self.per_client)
        held = np.stack([np.bincount(hand, minlength=len(sizes)) for hand in hands])
        return held / np.maximum(shards, 1)


class Dirichlet(Scheme):
    """Each class is shared out among the clients by a draw from a symmetric Dirichlet law.

    A small `concentration` gives each client few classes, a large one all alike. Shares are drawn again until every
    client has a sample.
    """

    concentration: float = eqx.field(static=True)

    def __check_init__(self):
        _validate.positive(self.concentration, "concentration")

    def shares(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        sizes = np.bincount(labels)
        for _ in range(TRIES):
            shares = rng.dirichlet(np.full(clients, self.concentration), len(sizes)).T
            if _lengths(shares, sizes).sum(1).min() > 0:
                return shares
        must_be = f"larger, or clients fewer: {clients} clients did not all get a sample in {TRIES} draws"
        raise _validate.fail("concentration", must_be, self.concentration)


class ByGroup(eqx.Module):
    """A client for each distinct id, such as a writer or a speaker: `ids` [samples], in the order of the samples."""

    ids: Any


def partition(
    images: Any,
    labels: Any,
    *,
    scheme: Scheme | ByGroup,
    clients: int | None = None,
    key: Key,
    test: float | tuple[Any, Any] = 0.2,
    whole_classes: bool = False,
    validation: float = 0.0,
    most: int | None = None,
    classes: int | None = None,
) -> Federation:
    """Labelled images dealt to clients; each client's samples split into training, test and validation.

    **Args:**

    - `images` [samples, height, width, channels], uint8 or floats; without channels for grey ones.
    - `labels` [samples], integers from 0.
    - `scheme`: `Shards(2)`, `Dirichlet(0.3)`, `ByGroup(ids)`, or a `Scheme` of one's own.
    - `clients`: how many; not with `ByGroup`.
    - `test`: the share of each client's samples that is held out for testing, or a test set of its own, `(images,
      labels)`. Its samples are dealt in the same shares, so that a client is tested on the classes it has.
      `whole_classes`: every client is tested on all test samples of its classes instead, as in CENTAUR's code.
    - `validation`: the share of the remaining samples that is held out for choosing a round.
    - `most`: training samples of a client, at most.
    - `classes`: their number; the largest label and one, if not given.

    **Returns:** a `Federation`. The same key gives the same one.

    **Raises:** `ValueError` for arguments out of range, labels too large, more shards than a class has samples, and a
    client that would be left without training samples.

    **Source:** FLUTE, 7.2; CENTAUR, 6. Departs from print: neither says that classes may repeat in a client's shards;
    their code does it.

    **Cost:** linear in the samples, on the host; the images are copied once.

    >>> import jax, numpy as np
    >>> from clairjax.data import Shards, partition
    >>> images, labels = np.zeros((60, 8, 8), np.uint8), np.arange(60) % 3
    >>> clients = partition(images, labels, scheme=Shards(2), clients=4, key=jax.random.key(0))
    >>> len(clients), int(clients.counts.sum() + clients.test.counts.sum()), clients.table.shape
    (4, 60, (4, 3))
    """
    train = checked(images, labels, classes)
    classes = int(train.labels.max()) + 1 if classes is None else classes
    _check_shares(test, validation)
    if most is not None:
        _validate.at_least(most, "most", 1)
    _validate.one_key(key, "key")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    if isinstance(scheme, ByGroup):
        rows, shares = _by_group(scheme, len(train.labels), clients), None
    else:
        _validate.at_least(clients, "clients", 1)
        assert clients is not None
        shares = _shares(scheme, train.labels, clients, rng)
        rows = _deal(shares, train.labels, rng)
    if isinstance(test, tuple):
        apart = checked(*test, classes, "test ")
        pool = _joined(train, apart)
        held_out = _test_rows(shares, apart, whole_classes, rows, train.labels, rng)
        tested = [each + len(train.labels) for each in held_out]
        rows = [rng.permutation(each) for each in rows]
    else:
        pool = train
        tested, rows = _cut(rows, test, rng)
        if whole_classes:
            tested = _all_of_its_classes(np.concatenate(tested), rows, train.labels)
    validated, rows = _cut(rows, validation, rng)
    rows = [each[:most] for each in rows]
    refuse_empty(np.array([len(each) for each in rows]))
    train_rows, test_rows, validation_rows = (Split.of(each) for each in (rows, tested, validated))
    images, labels = jnp.asarray(pool.images), jnp.asarray(pool.labels)
    return Federation(images, labels, train_rows, test_rows, validation_rows, classes)


def _check_shares(test: Any, validation: Any) -> None:
    for value, name in ((test, "test"), (validation, "validation")):
        if isinstance(value, tuple) and len(value) == 2:
            continue
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not number or not 0 <= value < 1:
            must_be = "at least 0 and below 1" + (", or (images, labels)" if name == "test" else "")
            raise _validate.fail(name, must_be, value if number else f"a {type(value).__name__}")


def _shares(scheme: Scheme, labels: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """A scheme's, looked at: one of somebody's own may deal a sample twice, or to nobody."""
    if not isinstance(scheme, Scheme):
        raise _validate.fail("scheme", "Shards, Dirichlet, ByGroup or a Scheme of one's own", repr(scheme))
    shares = np.asarray(scheme.shares(labels, clients, rng), float)
    name, shape = f"{type(scheme).__name__}.shares", (clients, int(labels.max()) + 1)
    if shares.ndim != 2 or shares.shape[0] != clients or shares.shape[1] < shape[1]:
        raise _validate.fail(name, f"of shape {shape}, clients and classes", f"shape {shares.shape}")
    sums = shares.sum(0)
    if not (shares >= 0).all() or not (np.isclose(sums, 1) | (sums == 0)).all():
        raise _validate.fail(name, "at least 0, and of each class 1 or 0 in all", f"sums {sums.min()} … {sums.max()}")
    return shares


def _lengths(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Samples [clients, classes] that these shares of classes of these sizes are."""
    ends = np.rint(np.cumsum(shares, 0) * sizes).astype(int)
    return np.diff(ends, axis=0, prepend=0)


def _deal(shares: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Rows:
    """Each class shuffled and cut by the clients' shares of it."""
    lengths = _lengths(shares, np.bincount(labels, minlength=shares.shape[1])[: shares.shape[1]])
    hands: list[list[np.ndarray]] = [[] for _ in shares]
    for number in range(shares.shape[1]):
        samples = rng.permutation(np.flatnonzero(labels == number))
        for hand, part in zip(hands, np.split(samples, np.cumsum(lengths[:, number])[:-1]), strict=True):
            hand.append(part[: len(samples) if shares[:, number].any() else 0])
    return [np.concatenate(hand) for hand in hands]


def _by_group(scheme: ByGroup, samples: int, clients: int | None) -> Rows:
    ids = np.asarray(scheme.ids)
    if clients is not None and clients != len(np.unique(ids)):
        must_be = f"left out or {len(np.unique(ids))}, the number of distinct ids, where scheme is ByGroup"
        raise _validate.fail("clients", must_be, clients)
    if ids.shape != (samples,):
        raise _validate.fail("ids", f"of shape ({samples},), one for each image", f"shape {ids.shape}")
    return [np.flatnonzero(ids == each) for each in np.unique(ids)]


def _test_rows(
    shares: np.ndarray | None,
    apart: Labelled,
    whole_classes: bool,
    rows: Rows,
    labels: np.ndarray,
    rng: np.random.Generator,
) -> Rows:
    if whole_classes:
        return [np.flatnonzero(np.isin(apart.labels, labels[each])) for each in rows]
    if shares is None:
        raise _validate.fail("test", "a share where scheme is ByGroup without whole_classes", "a test set of its own")
    return _deal(shares, apart.labels, rng)


def _all_of_its_classes(tested: np.ndarray, rows: Rows, labels: np.ndarray) -> Rows:
    return [tested[np.isin(labels[tested], labels[each])] for each in rows]


def _cut(rows: Rows, share: float, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """A share of each client's rows, and the rest, both in random order; a last sample is never taken."""
    shuffled = [rng.permutation(each) for each in rows]
    sizes = [min(round(share * len(each)), max(len(each) - 1, 0)) for each in shuffled]
    pairs = list(zip(shuffled, sizes, strict=True))
    return [each[:size] for each, size in pairs], [each[size:] for each, size in pairs]


def _joined(train: Labelled, test: Labelled) -> Labelled:
    if train.images.shape[1:] != test.images.shape[1:] or train.images.dtype != test.images.dtype:
        must_be = f"of shape (samples, *{train.images.shape[1:]}) and {train.images.dtype}, as images are"
        raise _validate.fail("test images", must_be, f"shape {test.images.shape} and {test.images.dtype}")
    return Labelled(*(np.concatenate(pair) for pair in zip(train, test, strict=True)))
