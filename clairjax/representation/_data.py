"""The clients' data as every method takes it: of one dtype, finite, and zero where a client has no sample."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .. import _validate
from .._compile import compiled


Counts: TypeAlias = ArrayLike | Sequence[Any]  # an integer for each client


class ClientData(NamedTuple):
    """A rectangle of samples, zero beyond the first `counts[i]` of client i; without `counts` all are samples."""

    inputs: Float[Array, "clients samples features"]
    targets: Float[Array, "clients samples"]
    counts: Int[Array, " clients"] | None

    def enough(self, least: int = 1) -> Bool[Array, " clients"]:
        """Which clients' counts are in range: what the guards could not look at, because it is traced."""
        clients, samples = self.targets.shape
        if self.counts is None:
            return jnp.ones(clients, bool)
        return (self.counts >= least) & (self.counts <= samples)

    def numbers(self) -> Float[Array, " clients_or_1"]:
        """Each client's number of samples in the dtype of the data; NaN for a traced count out of range."""
        if self.counts is None:
            return jnp.full(1, self.targets.shape[1], self.targets.dtype)
        return jnp.where(self.enough(), self.counts.astype(self.targets.dtype), jnp.nan)

    def shares(self) -> Float[Array, " clients_or_1"]:
        """Each client's number of samples over the mean of all: 1 where all have as many."""
        filled = self.numbers() / self.targets.shape[1]
        return filled / jnp.mean(filled)


def client_data(
    inputs: Float[Array, "clients samples features"],
    targets: Float[Array, "clients samples"],
    counts: Counts | None,
) -> ClientData:
    """With zeros for what is beyond each client's count, whatever stood there."""
    if counts is None:
        return ClientData(inputs, targets, None)
    return _masked(inputs, targets, check_counts(counts, targets.shape))


@compiled
def _masked(inputs: Array, targets: Array, counts: Array) -> ClientData:
    samples = jnp.arange(targets.shape[1], dtype=counts.dtype)[None] < counts[:, None]
    return ClientData(jnp.where(samples[..., None], inputs, 0), jnp.where(samples, targets, 0), counts)


def check_counts(counts: Counts, shape: tuple[int, ...], least: int = 1, called: str = "") -> Int[Array, " clients"]:
    """An integer for each client of data of this shape, between `least` (with what it is `called`) and its samples."""
    clients, samples = shape
    if not isinstance(counts, (jax.Array, np.ndarray)):
        try:
            counts = np.asarray(counts)
        except ValueError:
            raise _validate.fail("counts", "one integer for each client", "a list of different lengths") from None
    if counts.shape != (clients,):
        raise _validate.fail("counts", f"of shape (clients,) = ({clients},)", f"shape {tuple(counts.shape)}")
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise _validate.fail("counts", "integers", counts.dtype)
    if not _validate.concrete(counts):
        wide = counts if counts.dtype.itemsize >= 4 else counts.astype(jnp.int32)
        return jnp.clip(wide, 0, samples + 1).astype(jnp.int32)  # what is out of range stays out of it
    known = np.asarray(counts)
    wrong = np.flatnonzero((known < least) | (known > samples))
    if wrong.size:
        values, names = (", ".join(map(str, each)) for each in (known[wrong], wrong))
        expected = f"between {called}{least} and samples = {samples}"
        raise _validate.fail("counts", expected, f"{values} from client(s) {names}")
    return jnp.asarray(known, jnp.int32)


def validate_linear(
    inputs: ArrayLike | Sequence[Any],
    targets: ArrayLike | Sequence[Any],
    rank: int | None = None,
    counts: Counts | None = None,
) -> ClientData:
    """Arrays, NumPy arrays or nested lists of one floating dtype, of shapes that belong together, samples finite."""
    inputs, targets = as_array(inputs, "inputs"), as_array(targets, "targets")
    if inputs.ndim != 3:
        raise _validate.fail("inputs", "of shape (clients, samples, features)", f"shape {tuple(inputs.shape)}")
    if 0 in inputs.shape:
        raise _validate.fail("inputs", "without an empty axis", f"shape {tuple(inputs.shape)}")
    if targets.shape != inputs.shape[:2]:
        expected = f"of shape (clients, samples) = {tuple(inputs.shape[:2])}"
        raise _validate.fail("targets", expected, f"shape {tuple(targets.shape)}")
    if targets.dtype != inputs.dtype:
        raise _validate.fail("targets", f"of the dtype of inputs, {inputs.dtype}", targets.dtype)
    if counts is not None:
        known = all(map(_validate.concrete, (inputs, targets, counts)))
        with jax.ensure_compile_time_eval() if known else contextlib.nullcontext():  # known in a trace, known after
            inputs, targets, counts = client_data(jnp.asarray(inputs), jnp.asarray(targets), counts)
    _validate.finite_clients("inputs", inputs)
    _validate.finite_clients("targets", targets)
    if rank is not None:
        check_rank(rank, inputs.shape[0], inputs.shape[2])
    return ClientData(jnp.asarray(inputs), jnp.asarray(targets), counts)


def check_rank(rank: Any, clients: int, features: int) -> None:
    if not _validate.is_integer(rank):
        raise _validate.fail("rank", "an integer, static inside a trace", rank)
    if not 1 <= rank <= min(features, clients):
        raise _validate.fail("rank", f"between 1 and min(features, clients) = {min(features, clients)}", rank)


def validate_truth(
    truth: ArrayLike | Sequence[Any] | None, inputs: Float[Array, "clients samples features"]
) -> Float[Array, "clients features"] | None:
    """Each client's true coefficients, in the dtype of the data."""
    if truth is None:
        return None
    truth = as_array(truth, "true_coefficients")
    clients, _, features = inputs.shape
    if truth.shape != (clients, features):
        expected = f"of shape (clients, features) = ({clients}, {features})"
        raise _validate.fail("true_coefficients", expected, f"shape {tuple(truth.shape)}")
    _validate.finite_clients("true_coefficients", truth)
    return jnp.asarray(truth, inputs.dtype)


def as_array(value: Any, name: str) -> Array | np.ndarray:
    if not isinstance(value, (jax.Array, np.ndarray)):
        try:
            value = np.asarray(value)
        except ValueError:
            raise _validate.fail(name, "an array", "a list of different lengths") from None
    if value.dtype not in (jnp.float32, jnp.float64):
        advice = "float32 or float64 (convert half precision and integers first: Gram matrices need the digits)"
        raise _validate.fail(name, advice, value.dtype)
    return value
