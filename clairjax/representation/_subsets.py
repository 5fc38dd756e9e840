"""Which of a client's own samples a round looks at."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _validate
from .._typing import Key


def draw_subsets(
    inputs: Float[Array, "clients samples features"],
    targets: Float[Array, "clients samples"],
    size: int,
    number: int,
    *,
    key: Key,
) -> list[tuple[Float[Array, "clients size features"], Float[Array, "clients size"]]]:
    """`number` disjoint subsets of `size` samples of each client, drawn without replacement."""
    clients, samples = targets.shape
    order = jnp.argsort(jax.random.uniform(key, (clients, samples), jnp.float32), axis=1)[:, : number * size]
    return [
        (jnp.take_along_axis(inputs, rows[:, :, None], axis=1), jnp.take_along_axis(targets, rows, axis=1))
        for rows in jnp.split(order, number, axis=1)
    ]


def check_batch(size: int | None, samples: int, subsets: int, least: int) -> None:
    if size is None:
        return
    if not _validate.is_integer(size) or not least <= size <= samples // subsets:
        share = "samples" if subsets == 1 else f"samples // {subsets}"
        raise _validate.fail("batch_size", f"an integer between {least} and {share} = {samples // subsets}", size)
