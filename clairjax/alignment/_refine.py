"""Refinement (9) of a collaborative set, and shrinkage of what lies outside the shared row space."""

from collections.abc import Sequence
from functools import partial
from typing import Any, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .. import _validate
from ._arguments import checked_rank, reported, turned
from ._contrasts import pair_squared_distances
from ._factored import Factored
from ._low_rank import LowRankMatrices
from ._refined_factors import RefinedFactors
from ._refit import refit_members
from ._reports import Reports
from ._samples import noise_variances
from ._unequal import member_weights, squares_to_mean


@overload
def refine(
    weights: LowRankMatrices,
    members: ArrayLike,
    *,
    basis: ArrayLike | None = None,
    rank: int | None = None,
    shared: str = "rows",
    samples: ArrayLike | Sequence[Any] | None = None,
    shrink: bool = False,
) -> RefinedFactors: ...


@overload
def refine(
    weights: ArrayLike | Sequence[Any],
    members: ArrayLike,
    *,
    basis: ArrayLike | None = None,
    rank: int | None = None,
    shared: str = "rows",
    samples: ArrayLike | Sequence[Any] | None = None,
    shrink: bool = False,
) -> Float[Array, "clients out in"]: ...


def refine(
    weights: ArrayLike | Sequence[Any] | LowRankMatrices,
    members: ArrayLike,
    *,
    basis: ArrayLike | None = None,
    rank: int | None = None,
    shared: str = "rows",
    samples: ArrayLike | Sequence[Any] | None = None,
    shrink: bool = False,
) -> Any:
    """Members move to the members' mean outside the row space and keep their own part inside it; CLAIR (9).

    W̃_k = W̄ + (W_k − W̄)P + s_k (W_k − W̄)P⊥ with W̄ the mean of the members. (9) is s_k = 0 for members; clients
    outside keep what they reported, s_k = 1. With `samples` W̄ weighs members by them: of all weighted means that one
    has the least noise, if the noise variance is in proportion to 1/samples.

    With `shrink` every s_k is the positive part of a James–Stein factor, 1 − v_k (d − 2)/‖(W_k − W̄)P⊥‖² with
    d = q(p − r). v_k is the noise variance of an entry, σ̂² over the client's samples. A member's own noise is in W̄:
    its v_k is multiplied by 1 less its share of the samples, 1 − 1/|C| for equal samples. σ̂² is the members' mean
    square outside the row space, times samples, on (|C| − 1)d degrees of freedom. The factor assumes that noise is
    close to white and that the row space is known. So a client far from the members is left alone, and a client within
    the noise is pooled. Only members enter W̄ and σ̂²: no report of a contaminated client changes a member's result.

    **Args:**

    - `weights` [clients, out, in] or `LowRankMatrices`, float32 or float64, at least three clients.
    - `members` [clients], of `elect`, of many layers together, or known.
    - `basis` [in, columns]: of the shared row space, orthonormal or zero columns; None takes the members' principal
      directions, as `elect` refits them.
    - `rank` (static): of the row space where `basis` is None; None finds it, up to the default solver's max_rank.
    - `shared` (static): as in `elect`; with `"columns"` a basis is [out, columns].
    - `shrink` (static).

    **Returns:** what was given: an array, or `RefinedFactors` of factors.

    **Raises:** `ValueError` naming the argument, and the client for non-finite values, outside a trace.

    **Source:** CLAIR (9); the shrinkage is not in the paper.

    **Cost:** 2·K·q·p·r multiplications, memory K·q·p; one eigendecomposition of p × p without a basis.

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import refine
    >>> weights = jnp.array([[[1.0, 2.0]], [[3.0, 4.0]], [[9.0, 9.0]]])
    >>> refine(weights, jnp.array([True, True, False]), basis=jnp.array([[1.0], [0.0]])).tolist()
    [[[1.0, 3.0]], [[3.0, 3.0]], [[9.0, 9.0]]]
    """
    reports = reported(weights, shared)
    count, _, in_ = reports.shape
    members = jnp.asarray(members)
    if members.dtype != bool or members.shape != (count,):
        got = f"{members.dtype} of shape {members.shape}"
        raise _validate.fail("members", f"booleans of shape ({count},)", got)
    _validate.flag(shrink, "shrink")
    if basis is not None:
        basis = jnp.asarray(basis, reports.dtype)
        if basis.ndim != 2 or basis.shape[0] != in_:
            raise _validate.fail("basis", f"of shape ({in_}, columns)", f"shape {basis.shape}")
        if rank is not None:
            raise _validate.fail("rank", "None where a basis is given", rank)
    if rank is not None:
        rank = checked_rank(rank, reports, in_)
    variances, in_range = noise_variances(samples, count, reports.dtype)
    # Nobody is refined by samples that are out of range: inside a trace there is no other way to say so.
    members = members if in_range is True else members & in_range
    return _refine(reports, members, basis, variances, rank, shared, bool(shrink))


@partial(jax.jit, static_argnames=("rank", "shared", "shrink"))
def _refine(
    reports: Reports,
    members: Array,
    basis: Array | None,
    variances: Array,
    rank: int | None,
    shared: str,
    shrink: bool,
) -> Any:
    weights = member_weights(members, jnp.ones_like(variances), variances)
    if basis is None:
        clients = reports.clients()
        bound = min(Factored().max_rank if rank is None else rank, clients.shape[2])
        space = refit_members(clients, weights, bound, rank)
        basis, found = clients.lift(space.basis), space.rank
    else:
        found = jnp.sum(jnp.any(basis != 0, axis=0), dtype=jnp.int32)
    return turned(refined(reports, weights, ~members, variances, basis, found, shrink=shrink), shared)


@jax.named_scope("clairjax.refine")
def refined(
    reports: Reports,
    weights: Float[Array, " clients"],
    kept: Bool[Array, " clients"],
    variances: Float[Array, " clients"],
    basis: Float[Array, " in columns"],
    rank: Int[Array, ""],
    *,
    shrink: bool,
) -> Any:
    """`refine` of reports that are turned already. `weights` are above 0 for members.

    Without shrinkage who is `kept` does not change; with it, no member of them does. Where nobody is a member nothing
    changes.
    """
    share = kept.astype(reports.dtype)
    if shrink:
        own = _own_shares(reports, weights, variances, basis, rank)
        share = jnp.where((kept & (weights > 0)) | ~jnp.any(weights > 0), share, own)
    return reports.refined(weights, basis, share)


def _own_shares(
    reports: Reports,
    weights: Float[Array, " clients"],
    variances: Float[Array, " clients"],
    basis: Float[Array, " in columns"],
    rank: Int[Array, ""],
) -> Float[Array, " clients"]:
    """s_k, from inner products of what is outside the row space."""
    outside = reports.outside(basis).clients()
    squares, pi = squares_to_mean(pair_squared_distances(outside.inner_products()), weights)
    members, freedom = weights > 0, outside.freedom(rank).astype(squares.dtype)
    # Of ‖(W_k − W̄)P⊥‖², in units of σ² and a degree of freedom: the client's noise, less what of it is in the mean.
    own = jnp.where(members, variances * (1 - 2 * pi) + jnp.sum(pi**2 * variances), variances)
    seen = jnp.where(members, own / variances, 0).sum()
    variance = jnp.where(members, squares / variances, 0).sum() / jnp.maximum(seen * freedom, 1)
    noise = variance * own * jnp.maximum(freedom - 2, 0)
    return jnp.maximum(1 - noise / jnp.where(squares > 0, squares, 1), 0)
