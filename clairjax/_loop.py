"""The only `while_loop` of the solvers: blocks of steps with a certificate between them."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._status import Status
from ._typing import ScalarLike


State = TypeVar("State")


@runtime_checkable
class Certified(Protocol):
    """What a certificate must hold; it may hold more."""

    @property
    def optimality(self) -> Float[Array, ""]: ...


Certificate = TypeVar("Certificate", bound=Certified)


class Outcome(NamedTuple):
    steps: Int[Array, ""]
    status: Status


def iterate(
    step: Callable[[State], State],
    certify: Callable[[State], Certificate],
    state: State,
    *,
    rtol: ScalarLike,
    max_steps: int,
    check_every: int,
) -> tuple[State, Certificate, Outcome]:
    """Apply `step` until `certify(state).optimality <= rtol`, looking after each block of `check_every` steps.

    The certificate is taken once a block. Under a `cond` on the step counter it would be taken at each step: under
    `vmap` both sides of a `cond` run. It is carried, so that the last certificate need not be taken again. A
    non-finite certificate ends the loop: `diverged`. `steps` counts whole blocks.
    """
    check_every = min(check_every, max_steps)
    blocks = -(-max_steps // check_every)

    def body(carry: tuple[State, Certificate, Array]) -> tuple[State, Certificate, Array]:
        state, _, block = carry
        state = jax.lax.fori_loop(0, check_every, lambda _, s: step(s), state)
        return state, certify(state), block + 1

    def unfinished(carry: tuple[State, Certificate, Array]) -> Bool[Array, ""]:
        _, certificate, block = carry
        value = jnp.abs(certificate.optimality)
        return (block == 0) | ((value > rtol) & (block < blocks))  # false for NaN

    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(certify, state))
    state, certificate, block = jax.lax.while_loop(unfinished, body, (state, empty, jnp.zeros((), jnp.int32)))
    value = jnp.abs(certificate.optimality)
    status = Status.where(
        value <= rtol,
        Status.converged,
        Status.where(jnp.isfinite(value), Status.max_steps_reached, Status.diverged),
    )
    return state, certificate, Outcome(block * check_every, status)
