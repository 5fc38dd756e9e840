"""What every private method checks, and what it returns: a basis, heads, and a ledger."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .. import _validate
from .._status import Status, worst
from .._typing import ScalarLike
from ..privacy import Ledger
from ._data import Counts, check_counts
from ._linear import AbstractRepresentation, LinearClients, argument_status, input_status, least_squares_heads
from ._subsets import check_batch


# A `PrivateRepresentation` but for its ledger, which is the host's: basis, heads, status, distances, shares clipped.
Learned: TypeAlias = tuple[Array, Array, Status, Array | None, Array]


class PrivateRepresentation(AbstractRepresentation):
    """What CENTAUR learned, and what it spent.

    - `basis` [d, k], orthonormal, is released, and nothing else;
    - `heads` [n, k] stay with their clients: each is fitted to its client's own data in the final basis;
    - `status`: `nonfinite_input` if a client reported NaN or infinite values: its head is NaN, the basis is that of
      the others. `invalid_argument` if a traced setting was out of range: every array is NaN. `diverged` if the
      iterates left the range of the dtype;
    - `distances` [rounds], that of the subspaces to `true_basis` after each round, where it was given; `clipped`
      [rounds], the share of a round's updates that the clip norm shortened. Both are for the experimenter: no ε covers
      them;
    - `privacy`: the events to account for, `.privacy.epsilon(delta=…, adjacency=…)`.
    """

    basis: Float[Array, "features rank"]
    heads: Float[Array, "clients rank"]
    status: Status
    distances: Float[Array, " rounds"] | None
    clipped: Float[Array, " rounds"]
    privacy: Ledger


def learned(
    clients: LinearClients,
    basis: Float[Array, "features rank"],
    distances: Float[Array, " rounds"] | None,
    clipped: Float[Array, " rounds"],
    in_range: Bool[Array, ""] | bool,
) -> Learned:
    """With heads and status; NaN for every number where a traced setting was out of range."""
    hide = lambda array: jnp.where(in_range, array, jnp.nan)
    heads = hide(least_squares_heads(clients, basis))
    status = worst(argument_status(in_range), worst(input_status(clients), run_status(basis)))
    return hide(basis), heads, status, None if distances is None else hide(distances), hide(clipped)


def given_basis(
    value: ArrayLike, name: str, inputs: Array, rank: int, kinds: str = "an array"
) -> Float[Array, "features rank"]:
    shape = inputs.shape[2], rank
    if not isinstance(value, (jax.Array, np.ndarray, list, tuple)):
        raise _validate.fail(name, f"{kinds} of shape (features, rank) = {shape}", f"a {type(value).__name__}")
    basis = jnp.asarray(value, inputs.dtype)
    if basis.shape != shape:
        raise _validate.fail(name, f"of shape (features, rank) = {shape}", f"shape {basis.shape}")
    if _validate.concrete(basis) and not np.isfinite(np.asarray(basis)).all():
        raise _validate.fail(name, "finite", "NaN or infinite values")
    return basis


def check_run(
    shape: tuple[int, ...],
    rank: int,
    rounds: int,
    noise_multiplier: ScalarLike,
    batch_size: int | None,
    counts: Counts | None,
) -> None:
    _validate.at_least(rounds, "rounds", 1)
    _validate.not_negative(noise_multiplier, "noise_multiplier")
    check_batch(batch_size, shape, 2, rank, counts)
    if batch_size is None and shape[1] < rank:
        raise _validate.fail("inputs", f"of at least rank = {rank} samples per client", shape[1])
    if batch_size is None and counts is not None:
        check_counts(counts, shape, rank, "rank = ")


def least_count(rank: int, batch_size: int | None) -> int:
    """Samples that each client must have: for its head, or for a round's two subsets."""
    return rank if batch_size is None else 2 * batch_size


def run_status(basis: Float[Array, "features rank"]) -> Status:
    """Steps so long that the basis leaves what the dtype holds."""
    return Status.where(jnp.isfinite(jnp.sum(basis)), Status.converged, Status.diverged)
