"""On CPU, factor one matrix at a time: jaxlib's batched factorisations can wait for each other for ever.

jaxlib hands the matrices of a batch to XLA's thread pool and waits for them on a thread of that same pool. When
every thread waits so, nothing runs any more. That takes as many devices as threads, or as many factorisations that do
not depend on each other. A batch of one is computed where it is called and waits for nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_batching import sequential_vmap
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jaxtyping import PyTree


_OF_MATRICES = "cholesky eig eigh hessenberg householder_product lu ormqr qr schur svd triangular_solve tridiagonal"
_AXES = {getattr(jax.lax.linalg, f"{name}_p", None): 2 for name in _OF_MATRICES.split()}
_AXES[getattr(jax.lax.linalg, "tridiagonal_solve_p", None)] = 1  # its first operand is a diagonal


def factoring_in_turn(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """A function of trees of arrays that does the same; on CPU with its factorisations one matrix at a time."""

    def call(*given: PyTree) -> PyTree:
        if jax.default_backend() != "cpu":
            return function(*given)
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*given)
        values = jaxpr_as_fun(one_matrix_at_a_time(closed))(*jax.tree.leaves(given))
        return jax.tree.unflatten(jax.tree.structure(shapes), values)

    return call


def one_matrix_at_a_time(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, in which factorisations loop over their batch, also over the one that `vmap` will add."""
    if not _factors(closed.jaxpr):
        return closed
    avals = [variable.aval for variable in closed.jaxpr.invars]
    inputs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals]
    return jax.make_jaxpr(lambda *values: _evaluate(closed.jaxpr, closed.consts, values))(*inputs)


def _factors(value: Any) -> bool:
    if isinstance(value, ClosedJaxpr):
        return _factors(value.jaxpr)
    if isinstance(value, Jaxpr):
        return any(eqn.primitive in _AXES or any(map(_factors, eqn.params.values())) for eqn in value.eqns)
    return isinstance(value, tuple | list) and any(map(_factors, value))


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))
    for eqn in jaxpr.eqns:
        needed = list(dict.fromkeys(variable for variable in eqn.invars if not isinstance(variable, Literal)))
        call = _alone(jaxpr, eqn, needed)
        if eqn.primitive in _AXES:
            call = sequential_vmap(call)
            first: Any = eqn.invars[0].aval
            for _ in range(first.ndim - _AXES[eqn.primitive]):
                call = jax.vmap(call)
        known.update(zip(eqn.outvars, call(*[known[variable] for variable in needed]), strict=True))
    return [variable.val if isinstance(variable, Literal) else known[variable] for variable in jaxpr.outvars]


def _alone(jaxpr: Jaxpr, eqn: JaxprEqn, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """A function that does what one equation does, bound by JAX itself with its scopes and contexts."""
    eqn = eqn.replace(params={name: _rewritten(value) for name, value in eqn.params.items()})
    unnamed = jaxpr.debug_info.with_unknown_names()
    alone = jaxpr.replace(constvars=[], invars=inputs, outvars=eqn.outvars, eqns=[eqn], debug_info=unnamed)
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))


def _rewritten(value: Any) -> Any:
    """A parameter of an equation, with the programs inside it rewritten."""
    if not _factors(value):
        return value
    if isinstance(value, ClosedJaxpr):
        return one_matrix_at_a_time(value)
    if isinstance(value, Jaxpr):
        return one_matrix_at_a_time(ClosedJaxpr(value, ())).jaxpr
    items = [_rewritten(item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
