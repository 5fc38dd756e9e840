"""Which of a client's own samples a round looks at."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .. import _validate
from .._typing import Key
from ._data import Counts, check_counts


def draw_subsets(
    inputs: Float[Array, "clients samples features"],
    targets: Float[Array, "clients samples"],
    size: int,
    number: int,
    *,
    key: Key,
    counts: Int[Array, " clients"] | None = None,
) -> list[tuple[Float[Array, "clients size features"], Float[Array, "clients size"]]]:
    """`number` disjoint subsets of `size` samples of each client, drawn without replacement.

    With `counts`, from a client's first `counts[i]`, which must be enough for all subsets.
    """
    clients, samples = targets.shape
    places = jax.random.uniform(key, (clients, samples), jnp.float32)
    if counts is not None:
        places = jnp.where(jnp.arange(samples, dtype=counts.dtype)[None] < counts[:, None], places, jnp.inf)
    order = jnp.argsort(places, axis=1)[:, : number * size]
    return [
        (jnp.take_along_axis(inputs, rows[:, :, None], axis=1), jnp.take_along_axis(targets, rows, axis=1))
        for rows in jnp.split(order, number, axis=1)
    ]


def check_batch(
    size: int | None,
    shape: tuple[int, ...],
    subsets: int,
    least: int,
    counts: Counts | None,
) -> None:
    """Subsets of a size that every client has samples for; of clients that have too few the counts are refused."""
    samples = shape[1]
    if size is None:
        return
    if not _validate.is_integer(size) or not least <= size <= samples // subsets:
        share = "samples" if subsets == 1 else f"samples // {subsets}"
        raise _validate.fail("batch_size", f"an integer between {least} and {share} = {samples // subsets}", size)
    if counts is not None:
        called = "batch_size = " if subsets == 1 else f"{subsets} batch_size = "
        check_counts(counts, shape, subsets * size, called)
