"""Eager guards: each names the argument, what it must be and what came. Values inside a trace are not looked at."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool


LEAST = 3  # clients, for a majority to be defined


def fail(name: str, must_be: str, got: object) -> ValueError:
    return ValueError(f"{name} must be {must_be}, got {got}.")


def concrete(value: Any) -> bool:
    return not isinstance(value, jax.core.Tracer)


def enough_clients(count: int, name: str) -> None:
    if count < LEAST:
        raise fail(name, f"from at least {LEAST} clients, for a majority to be defined", count)


def finite_clients(name: str, *parts: Any) -> None:
    """Of arrays with clients first; one inside a trace is not looked at."""
    if all(map(concrete, parts)):
        finite = np.logical_and.reduce([_finite(part) for part in parts])
        if not finite.all():
            clients = ", ".join(map(str, np.flatnonzero(~finite)))
            raise fail(name, "finite", f"NaN or infinite values from client(s) {clients}")


def _finite(part: Array | np.ndarray) -> np.ndarray:
    rest = tuple(range(1, part.ndim))
    if isinstance(part, np.ndarray) or jax.default_backend() == "cpu":  # no program to compile
        return np.asarray(np.isfinite(np.asarray(part)).all(rest))
    with jax.ensure_compile_time_eval():  # a constant inside someone's trace is looked at, too
        return np.asarray(jnp.isfinite(part).all(rest))


def client_matrices(weights: Any, name: str = "weights") -> Array:
    """An array, NumPy array or nested list of K ≥ 3 matrices of one shape, finite, float32 or float64."""
    if not isinstance(weights, (jax.Array, np.ndarray)):
        try:
            weights = np.asarray(weights)
        except ValueError:
            raise fail(name, "matrices of one shape", "a list of different shapes") from None
    if weights.ndim != 3:
        raise fail(name, "of shape (clients, out, in)", f"shape {tuple(weights.shape)}")
    enough_clients(weights.shape[0], name)
    if 0 in weights.shape:
        raise fail(name, "without an empty axis", f"shape {tuple(weights.shape)}")
    if weights.dtype not in (jnp.float32, jnp.float64):
        advice = "float32 or float64 (convert half precision and integers first: the spectra need the digits)"
        raise fail(name, advice, weights.dtype)
    finite_clients(name, weights)
    return jnp.asarray(weights)


def one_number(value: Any, name: str) -> None:
    """Not an array of several, nor a text; also inside a trace."""
    try:
        shape = np.shape(value)
        dtype = getattr(value, "dtype", None) or np.asarray(value).dtype
        real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    except (TypeError, ValueError):  # a ragged list, another library's array
        shape, real = (), False
    if shape != ():
        raise fail(name, "one number", f"shape {shape}")
    if not real:
        raise fail(name, "one number", repr(value))


def positive(value: Any, name: str) -> None:
    one_number(value, name)
    if concrete(value) and not 0 < float(value) < float("inf"):
        raise fail(name, "positive and finite", value)


def between(value: Any, name: str, low: float, high: float) -> None:
    one_number(value, name)
    if concrete(value) and not low < float(value) < high:
        raise fail(name, f"above {low:g} and below {high:g}", value)


def not_negative(value: Any, name: str) -> None:
    one_number(value, name)
    if concrete(value) and not 0 <= float(value) < float("inf"):
        raise fail(name, "at least 0 and finite", value)


def flag(value: Any, name: str) -> None:
    if not isinstance(value, bool | np.bool_):
        raise fail(name, "True or False", repr(value))


def one_key(value: Any, name: str) -> None:
    """Of `jax.random.key`, or a raw one of `jax.random.PRNGKey`."""
    typed = isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    raw = isinstance(value, jax.Array | np.ndarray) and not typed and value.dtype == np.uint32
    if not (typed and value.ndim == 0) and not (raw and value.ndim == 1):
        got = f"{value.shape[0]} of them" if typed and value.ndim == 1 else repr(value)
        raise fail(name, "one key, as jax.random.key(seed) gives", got)


def choice(value: Any, name: str, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise fail(name, " or ".join(f'"{one}"' for one in choices), repr(value))


def at_least(value: Any, name: str, least: int) -> None:
    """An integer, such as a number of steps; static, so never inside a trace."""
    if not is_integer(value) or value < least:
        raise fail(name, f"an integer of at least {least}", value)


def is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def traced_in_range(
    *, positive: Iterable[Any] = (), not_negative: Iterable[Any] = (), holds: Iterable[Any] = ()
) -> Bool[Array, ""] | bool:
    """Whether every traced number is finite and above (or at least) zero, and every traced condition holds.

    What is None or known outside the trace has been looked at already, and counts as in range.
    """
    traced = [(value > 0) & jnp.isfinite(value) for value in _unseen(positive)]
    traced += [(value >= 0) & jnp.isfinite(value) for value in _unseen(not_negative)]
    traced += _unseen(holds)
    return jnp.stack([jnp.all(each) for each in traced]).all() if traced else True


def _unseen(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None and not concrete(value)]
