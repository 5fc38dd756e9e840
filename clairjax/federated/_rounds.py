"""The compiled loop: rounds between two evaluations, and the evaluation, as one program over any number of devices."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._compile import cpu_options
from .._typing import Key
from ..data import Federation
from ..privacy import FixedSize, Poisson
from ._local import correct
from ._strategy import Client, Cohort, Strategy, Sum, Update, float_dtype, one_client


Sampler = Poisson | FixedSize
LANES = 16  # clients at once on an accelerator


class Place(NamedTuple):
    """Where a run is between two rounds: all that the next round depends on, but for the key and the data."""

    server: PyTree
    states: PyTree  # clients first


class Scores(NamedTuple):
    """Samples that each client's own model got right."""

    test: Int[Array, " clients"]
    validation: Int[Array, " clients"]


@functools.cache  # made when it is first asked for: an import starts no device
def program(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as one compiled program for each strategy and shape of the data; arrays are traced."""
    options = cpu_options() if jax.default_backend() == "cpu" else None
    return eqx.filter_jit(function, compiler_options=options)  # type: ignore[call-overload]


def advance(
    strategy: Strategy,
    sampler: Sampler,
    federation: Federation,
    place: Place,
    first: Int[Array, ""],
    count: Int[Array, ""],
    capacity: int,
    devices: Sequence[jax.Device],
    key: Key,
) -> tuple[Place, Float[Array, " capacity"], Scores]:
    """`count` rounds from round `first`, `capacity` at most; each round's loss, and the scores after the last.

    Round t depends on `fold_in(key, t)`, and client k in it on that key and k alone.
    """
    arrays, static = eqx.partition(place, eqx.is_array)

    def body(number: Array, carry: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
        place = eqx.combine(carry[0], static)
        place, loss = _round(strategy, sampler, federation, place, devices, jax.random.fold_in(key, first + number))
        return eqx.filter(place, eqx.is_array), carry[1].at[number].set(loss.astype(carry[1].dtype))

    # At least float32: NumPy, which keeps the curve, knows no bfloat16.
    losses = jnp.full(capacity, jnp.nan, np.promote_types(float_dtype(place), np.float32))
    arrays, losses = lax.fori_loop(0, count, body, (arrays, losses))
    place = eqx.combine(arrays, static)
    return place, losses, scores(strategy, federation, place, devices, jax.random.fold_in(key, first + count))


def _round(
    strategy: Strategy,
    sampler: Sampler,
    federation: Federation,
    place: Place,
    devices: Sequence[jax.Device],
    key: Key,
) -> tuple[Place, Float[Array, ""]]:
    who_key, client_key, server_key = jax.random.split(key, 3)
    cohort = _draw(sampler, len(federation), _slots(len(devices)), who_key)
    own, rest = eqx.partition(place.states, eqx.is_array)

    def update(number: Array, state: PyTree, server: PyTree, federation: Federation) -> Update:
        client, client_state = one_client(federation, number), eqx.combine(state, rest)
        done = strategy.client_update(server, client_state, client, key=jax.random.fold_in(client_key, number))
        return eqx.filter(done, eqx.is_array)

    states = jax.tree.map(lambda leaf: leaf[cohort.numbers], own)
    done = over_clients(update, cohort, states, place.server, federation, devices)
    server = strategy.server_update(place.server, done.upload, cohort, key=server_key)
    # A slot that is not present writes nothing: its number is put outside.
    to = jnp.where(cohort.present, cohort.numbers, len(federation))
    own = jax.tree.map(lambda all_, new: all_.at[to].set(new, mode="drop"), own, done.state)
    number = jnp.sum(cohort.present)
    loss = jnp.sum(done.loss) / jnp.maximum(number, 1).astype(done.loss.dtype)
    loss = jnp.where(jnp.isfinite(loss), loss, jnp.inf)
    return Place(server, eqx.combine(own, rest)), jnp.where(number > 0, loss, jnp.nan)  # NaN says that nobody came


def _draw(sampler: Sampler, clients: int, multiple: int, key: Key) -> Cohort:
    """The clients of a round first, in order of their numbers; slots up to a multiple of what runs at once."""
    drawn = sampler.draw(clients, key=key)
    fixed = sampler.size if isinstance(sampler, FixedSize) else clients
    numbers = jnp.argsort(~drawn, stable=True)[:fixed].astype(jnp.int32)
    more = -fixed % multiple
    present = jnp.pad(drawn[numbers], (0, more))
    return Cohort(jnp.pad(numbers, (0, more)), present, sampler.normaliser(clients))


def _slots(devices: int) -> int:
    return devices * lanes_of_backend()


def lanes_of_backend() -> int:
    """Clients that are trained at once on a device: one on a CPU, where several together are slower and larger."""
    return 1 if jax.default_backend() == "cpu" else LANES


def over_clients(
    update: Callable[..., Update],
    cohort: Cohort,
    states: PyTree,
    server: PyTree,
    federation: Federation,
    devices: Sequence[jax.Device],
) -> Update:
    """`update` for every slot that is present, split over the devices; sums added up, the rest stacked."""
    parts, static = eqx.partition((server, federation), eqx.is_array)
    alone = functools.partial(_on_one_device, update, static)
    if len(devices) == 1:
        return alone(cohort.numbers, cohort.present, states, parts)
    mesh = Mesh(np.array(devices), ("clients",))

    def shard(numbers: Array, present: Array, states: PyTree, parts: PyTree) -> Update:
        done = alone(numbers, present, states, parts)
        total = lambda node: Sum(lax.psum(node.value, "clients")) if _is_sum(node) else node
        return done._replace(upload=jax.tree.map(total, done.upload, is_leaf=_is_sum))

    shapes = jax.eval_shape(alone, cohort.numbers, cohort.present, states, parts)
    out = shapes._replace(
        upload=jax.tree.map(
            lambda node: jax.tree.map(lambda _: Spec(), node) if _is_sum(node) else Spec("clients"),
            shapes.upload,
            is_leaf=_is_sum,
        ),
        state=jax.tree.map(lambda _: Spec("clients"), shapes.state),
        loss=Spec("clients"),
    )
    sharded = Spec("clients")
    # Loops inside start from constants, which are the same on all devices, and end with what is not.
    run = jax.shard_map(shard, mesh=mesh, in_specs=(sharded, sharded, sharded, Spec()), out_specs=out, check_vma=False)
    return run(cohort.numbers, cohort.present, states, parts)


def _on_one_device(
    update: Callable[..., Update], static: PyTree, numbers: Array, present: Array, states: PyTree, parts: PyTree
) -> Update:
    """One client after another on a CPU, some at once elsewhere."""
    server, federation = eqx.combine(parts, static)
    call = lambda number, state: update(number, state, server, federation)
    shapes = jax.eval_shape(call, numbers[0], jax.tree.map(lambda leaf: leaf[0], states))
    blank = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    def one(number: Array, here: Bool[Array, ""], state: PyTree) -> Update:
        return lax.cond(here, lambda: call(number, state), lambda: blank)

    lanes = lanes_of_backend()

    def step(total: list[PyTree], block: PyTree) -> tuple[list[PyTree], Any]:
        if lanes == 1:
            done = jax.tree.map(lambda leaf: leaf[None], one(*jax.tree.map(lambda leaf: leaf[0], block)))
        else:
            done = jax.vmap(one)(*block)
        sums, rest = _apart(done.upload)
        total = jax.tree.map(lambda old, new: old + jnp.sum(new, 0, dtype=old.dtype), total, sums)
        return total, done._replace(upload=rest)

    blocks = jax.tree.map(lambda leaf: leaf.reshape(-1, lanes, *leaf.shape[1:]), (numbers, present, states))
    total, done = lax.scan(step, _apart(blank.upload)[0], blocks)
    done = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), done)
    return done._replace(upload=_together(total, done.upload))


def _is_sum(node: Any) -> bool:
    return isinstance(node, Sum)


def _apart(upload: PyTree) -> tuple[list[PyTree], PyTree]:
    """The sums of an upload, in order, and the upload without their contents."""
    sums = [node.value for node in jax.tree.leaves(upload, is_leaf=_is_sum) if _is_sum(node)]
    return sums, jax.tree.map(lambda node: Sum(None) if _is_sum(node) else node, upload, is_leaf=_is_sum)


def _together(sums: list[PyTree], upload: PyTree) -> PyTree:
    each = iter(sums)
    return jax.tree.map(lambda node: Sum(next(each)) if _is_sum(node) else node, upload, is_leaf=_is_sum)


def scores(
    strategy: Strategy, federation: Federation, place: Place, devices: Sequence[jax.Device], key: Key
) -> Scores:
    """Every client's own model on its test and validation samples."""
    clients = len(federation)
    multiple = _slots(len(devices))
    numbers = jnp.arange(clients, dtype=jnp.int32)
    everyone = Cohort(
        jnp.pad(numbers, (0, -clients % multiple)),
        jnp.pad(jnp.ones(clients, bool), (0, -clients % multiple)),
        float(clients),
    )
    own, rest = eqx.partition(place.states, eqx.is_array)

    def measure(number: Array, state: PyTree, server: PyTree, federation: Federation) -> Update:
        client = one_client(federation, number)
        model = strategy.personal(server, eqx.combine(state, rest), client, key=jax.random.fold_in(key, number))
        right = lambda split: correct(model, _holding(client, *split))
        splits = lax.map(right, _both(federation, number))  # a loop of two: one program for both
        return Update((splits[0], splits[1]), None, jnp.zeros((), jnp.int32))

    states = jax.tree.map(lambda leaf: leaf[everyone.numbers], own)
    done = over_clients(measure, everyone, states, place.server, federation, devices)
    return Scores(*(each[:clients] for each in done.upload))


def _both(federation: Federation, number: Int[Array, ""]) -> tuple[Array, Array]:
    """A client's test and validation rows, padded to one width, and their counts."""
    splits = federation.test, federation.validation
    width = max(split.rows.shape[1] for split in splits)
    rows = [jnp.pad(split.rows[number], (0, width - split.rows.shape[1])) for split in splits]
    return jnp.stack(rows), jnp.stack([split.counts[number] for split in splits])


def _holding(client: Client, rows: Int[Array, " samples"], count: Int[Array, ""]) -> Client:
    return eqx.tree_at(lambda c: (c.rows, c.count), client, (rows, count))
