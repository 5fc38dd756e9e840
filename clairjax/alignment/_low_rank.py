"""Clients that report factors: CLAIR without forming any of their matrices."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .. import _validate
from .._precision import HIGHEST
from ..subspaces import along
from ._clients import Clients, DenseClients
from ._low_rank_clients import reduced
from ._refined_factors import RefinedFactors
from ._reports import Reports, total


class LowRankMatrices(Reports):
    """One matrix a client as a product of factors, W_k = scale_k · up_k · down_k: LoRA's scale · B · A.

    **Args:**

    - `up` (B): [clients, out, rank], or one [out, rank_k] matrix a client; ranks may differ.
    - `down` (A): [clients, rank, in], or one [rank_k, in] matrix a client.
    - `scale`: a number, or [clients].

    The smaller factors of a list are padded with zeros, which changes no product. `ranks` are those before padding.

    Products and the program's optimum are those of the dense matrices. `clair` can differ in rank or members:

    - Noise is of the clients' ranks here, and fills dense matrices. So a gap can be significant there and not here.
    - Where most clients are copies, what is left here can be rounding.
    - Of clients without noise give the dense matrices, or the rank.
    - Where ranks differ, a larger rank alone sets a client apart. Vote on `clairjax.alignment.level_ranks` of the
      clients, and refine the matrices as they are.

    **Raises:** `ValueError` for shapes that do not fit.

    **Source:** CLAIR, section 8, applies its method to such products.

    **Cost:** memory clients · rank · (out + in).

    >>> import jax.numpy as jnp
    >>> from clairjax import LowRankMatrices
    >>> one, two = jnp.ones((4, 1)), jnp.ones((4, 2))
    >>> clients = LowRankMatrices([one, two, two], [one.T, two.T, two.T], 0.5)
    >>> clients.shape, clients.ranks.tolist(), clients.dense()[:, 0, 0].tolist()
    ((3, 4, 4), [1, 2, 2], [0.5, 1.0, 1.0])
    """

    up: Float[Array, "clients out rank"]
    down: Float[Array, "clients rank in"]
    scale: Float[Array, " clients"]
    ranks: Int[Array, " clients"]

    def __init__(
        self,
        up: ArrayLike | Sequence[Any],
        down: ArrayLike | Sequence[Any],
        scale: ArrayLike | Sequence[Any] = 1.0,
    ):
        ups, downs = _factors(up, "up"), _factors(down, "down")
        _check_fit(ups, downs)
        ranks = [columns for _, columns in _shapes(ups)]
        self.up, self.down = _stacked(ups, 1, max(ranks)), _stacked(downs, 0, max(ranks))
        scale = jnp.asarray(scale, self.up.dtype)
        if scale.shape not in ((), (len(ranks),)):
            raise _validate.fail("scale", f"a number or of shape ({len(ranks)},)", f"shape {scale.shape}")
        self.scale = jnp.broadcast_to(scale, (len(ranks),))
        self.ranks = jnp.asarray(ranks, jnp.int32)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(clients, out, in), of the matrices."""
        return self.up.shape[0], self.up.shape[1], self.down.shape[2]

    @property
    def dtype(self) -> jnp.dtype:
        return self.up.dtype

    @property
    def mT(self) -> "LowRankMatrices":  # as arrays have it
        """The transposed matrices."""
        turned = (self.down.swapaxes(1, 2), self.up.swapaxes(1, 2), self.scale, self.ranks)
        where = lambda matrices: (matrices.up, matrices.down, matrices.scale, matrices.ranks)
        return eqx.tree_at(where, self, turned)

    @property
    def rank_bound(self) -> tuple[int, str]:
        count, out, in_ = self.shape
        together = count * self.up.shape[2]
        return min((min(out, in_), "min(out, in)"), (together, "the sum of the clients' ranks"), key=itemgetter(0))

    def scaled_down(self) -> Float[Array, "clients rank in"]:
        return self.scale[:, None, None] * self.down

    def dense(self) -> Float[Array, "clients out in"]:
        """The matrices themselves."""
        return jnp.matmul(self.up, self.scaled_down(), precision=HIGHEST)

    def squared_norms(self) -> Float[Array, " clients"]:
        """‖W_k‖_F², not finite where a factor is not."""
        down = self.scaled_down()
        left = jnp.einsum("kqr,kqs->krs", self.up, self.up, precision=HIGHEST)
        right = jnp.einsum("krp,ksp->krs", down, down, precision=HIGHEST)
        return jnp.sum(left * right, axis=(1, 2))

    def clients(self) -> Clients:
        """Dense, where forming the matrices is the cheaper way."""
        _, out, in_ = self.shape
        if self.up.shape[2] * (out + in_) >= out * in_:
            return DenseClients.centred(self.dense())
        return reduced(self.up, self.scaled_down(), self.ranks)

    def outside(self, basis: Float[Array, " in columns"]) -> "LowRankMatrices":
        down = self.scaled_down()
        parts = down - along(down, basis), jnp.ones_like(self.scale)
        return eqx.tree_at(lambda matrices: (matrices.down, matrices.scale), self, parts)

    def refined(
        self, weights: Float[Array, " clients"], basis: Float[Array, " in columns"], share: Float[Array, " clients"]
    ) -> RefinedFactors:
        count, out, size = self.up.shape
        down = self.scaled_down()
        inside = along(down, basis)
        own_share = share[:, None, None]
        own = jnp.where(own_share == 1, down, inside + own_share * (down - inside))
        # Clients of weight 0 may be huge or not finite: their factors stay out of the mean altogether.
        each = weights[:, None, None]
        common_up = jnp.where(each > 0, self.up, 0).transpose(1, 0, 2).reshape(out, count * size)
        common_down = (jnp.where(each > 0, each * (down - inside), 0) / total(weights)).reshape(count * size, -1)
        return RefinedFactors(self.up, own, common_up, common_down, 1 - share)


def _shapes(factors: Array | list[Array]) -> list[tuple[int, ...]]:
    return [factors.shape[1:]] * len(factors) if isinstance(factors, jax.Array) else [one.shape for one in factors]


def _check_fit(ups: Array | list[Array], downs: Array | list[Array]) -> None:
    if len(ups) != len(downs):
        raise _validate.fail("down", f"from {len(ups)} clients, as up is", len(downs))
    (out, _), (_, in_) = _shapes(ups)[0], _shapes(downs)[0]
    for k, (left, right) in enumerate(zip(_shapes(ups), _shapes(downs), strict=True)):
        if left[1] != right[0]:
            raise _validate.fail(f"down of client {k}", f"of as many rows as up has columns, {left[1]}", right[0])
        if left[0] != out or right[1] != in_:
            raise _validate.fail(f"factors of client {k}", f"({out}, r) and (r, {in_}), as of client 0", [left, right])


def _factors(factors: Any, name: str) -> Array | list[Array]:
    if isinstance(factors, (jax.Array, np.ndarray)):
        if factors.ndim != 3 or 0 in factors.shape:
            raise _validate.fail(name, "of three axes, clients first, none of them empty", f"shape {factors.shape}")
        return jnp.asarray(factors)
    matrices = [jnp.asarray(one) for one in factors]
    if not matrices:
        _validate.enough_clients(0, name)
    for k, matrix in enumerate(matrices):
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise _validate.fail(f"{name} of client {k}", "a matrix without an empty axis", f"shape {matrix.shape}")
        if matrix.dtype != matrices[0].dtype:
            raise _validate.fail(f"{name} of client {k}", f"{matrices[0].dtype}, as of client 0", matrix.dtype)
    return matrices


def _stacked(factors: Array | list[Array], axis: int, size: int) -> Array:
    if isinstance(factors, jax.Array):
        return factors
    widths = [[(0, size - one.shape[axis]) if place == axis else (0, 0) for place in range(2)] for one in factors]
    return jnp.stack([jnp.pad(one, width) for one, width in zip(factors, widths, strict=True)])


def client_factors(weights: LowRankMatrices, name: str = "weights") -> LowRankMatrices:
    """`_validate.client_matrices` for factors."""
    _validate.enough_clients(weights.shape[0], name)
    for factor in (weights.up, weights.down):
        if factor.dtype not in (jnp.float32, jnp.float64) or factor.dtype != weights.up.dtype:
            advice = "float32 or float64 in both factors (convert half precision first: the spectra need the digits)"
            raise _validate.fail(name, advice, factor.dtype)
    _validate.finite_clients(name, weights.up, weights.down, weights.scale)
    return weights
