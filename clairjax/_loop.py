"""The only `while_loop` of the solvers: blocks of steps with a certificate between them."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._status import Status
from ._typing import ScalarLike


State = TypeVar("State")


class Outcome(NamedTuple):
    optimality: Float[Array, ""]
    steps: Int[Array, ""]
    status: Status


def iterate(
    step: Callable[[State], State],
    optimality: Callable[[State], Float[Array, ""]],
    state: State,
    *,
    rtol: ScalarLike,
    max_steps: int,
    check_every: int,
) -> tuple[State, Outcome]:
    """Apply `step` until `optimality(state) <= rtol`, looking after each block of `check_every` steps.

    The certificate is evaluated once a block rather than under a `cond` on the step counter: under `vmap`
    both sides of a `cond` run, which would pay for the certificate at each step. A non-finite certificate
    ends the loop. `steps` counts whole blocks.
    """
    check_every = min(check_every, max_steps)
    blocks = -(-max_steps // check_every)

    def body(carry: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
        state, _, block = carry
        state = jax.lax.fori_loop(0, check_every, lambda _, s: step(s), state)
        return state, optimality(state), block + 1

    def unfinished(carry: tuple[State, Array, Array]) -> Bool[Array, ""]:
        _, value, block = carry
        return (value > rtol) & (block < blocks) & ((block == 0) | jnp.isfinite(value))

    start = jnp.full((), jnp.inf, jax.eval_shape(optimality, state).dtype)
    state, value, block = jax.lax.while_loop(unfinished, body, (state, start, jnp.zeros((), jnp.int32)))
    status = Status.where(
        value <= rtol,
        Status.converged,
        Status.where(jnp.isfinite(value), Status.max_steps_reached, Status.nonfinite_input),
    )
    return state, Outcome(value, block * check_every, status)
