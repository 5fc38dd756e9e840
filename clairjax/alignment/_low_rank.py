"""Clients that report factors: CLAIR without forming any of their matrices."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .. import _validate
from ._clients import Clients, DenseClients
from ._contrasts import HIGHEST, laplacian_times, pair_squared_distances
from ._program import Decomposition


class LowRankMatrices(eqx.Module):
    """One matrix a client as a product of factors, W_k = scale_k · up_k · down_k: LoRA's scale · B · A.

    **Arguments:**

    - `up` (B): [clients, out, rank], or one [out, rank_k] matrix a client; ranks may differ.
    - `down` (A): [clients, rank, in], or one [rank_k, in] matrix a client.
    - `scale`: a number, or one a client.

    Of lists, the smaller factors are padded with zeros, which changes no product; `ranks` keeps their own ranks.

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
    def rows(self) -> int:
        """Bound on the dimension of the joint row space, and of the joint column space."""
        return self.up.shape[0] * self.up.shape[2]

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
        raise _validate.fail(name, "from at least 3 clients, for a majority to be defined", "none")
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
    if weights.shape[0] < 3:
        raise _validate.fail(name, "from at least 3 clients, for a majority to be defined", f"{weights.shape[0]}")
    for factor in (weights.up, weights.down):
        if factor.dtype not in (jnp.float32, jnp.float64) or factor.dtype != weights.up.dtype:
            advice = "float32 or float64 in both factors (convert half precision first: the spectra need the digits)"
            raise _validate.fail(name, advice, factor.dtype)
    if all(map(_validate.concrete, (weights.up, weights.down, weights.scale))):
        parts = (weights.up, weights.down, weights.scale[:, None, None])
        finite = np.logical_and.reduce([np.isfinite(np.asarray(part)).all((1, 2)) for part in parts])
        if not finite.all():
            clients = ", ".join(map(str, np.flatnonzero(~finite)))
            raise _validate.fail(name, "finite", f"NaN or infinite values from client(s) {clients}")
    return weights


class LowRankClients(Clients):
    """Clients as products of orthonormal columns and a few rows, shifted so that a central client is zero.

    Orthonormal columns make every inner product as accurate as of the dense matrices, however badly the factors are
    scaled; and after the shift the difference of two nearly equal clients is taken once, entry by entry.

    All of CLAIR turns with the coordinates of rows and of columns. So where the clients' ranks add up to less than
    `in`, rows are held by their coordinates in an orthonormal basis of the joint row space, `row_basis`, and
    likewise columns, whose basis nobody asks for: an exact reduction to a problem of that size.
    """

    columns: Float[Array, "clients out rank"]  # orthonormal, in coordinates of the joint column space
    column_products: Float[Array, "all all"]  # of every client's columns with every client's
    rows: Float[Array, "clients rank in"]
    row_basis: Float[Array, "whole in"] | None
    ranks: Int[Array, " clients"]
    whole: tuple[int, int] = eqx.field(static=True)  # (out, in) of the matrices

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.rows.shape[0], self.columns.shape[1], self.rows.shape[2]

    @property
    def dtype(self) -> jnp.dtype:
        return self.rows.dtype

    def times(self, basis: Float[Array, " in columns"]) -> Float[Array, "clients out columns"]:
        return jnp.matmul(self.columns, jnp.matmul(self.rows, basis, precision=HIGHEST), precision=HIGHEST)

    def adjoint_times(self, rows: Float[Array, "clients out columns"]) -> Float[Array, " in columns"]:
        along = jnp.einsum("kqm,kqr->kmr", self.columns, rows, precision=HIGHEST)
        return jnp.einsum("kmp,kmr->pr", self.rows, along, precision=HIGHEST)

    def inner_products(self) -> Float[Array, "clients clients"]:
        count, rank, _ = self.rows.shape
        rows = self.rows.reshape(count * rank, -1)
        table = self.column_products * jnp.matmul(rows, rows.T, precision=HIGHEST)
        return table.reshape(count, rank, count, rank).sum((1, 3))

    def scatter(self, pair_values: Float[Array, "clients clients"]) -> Float[Array, " in in"]:
        """Σ_jk ℓ_jk W_jᵀ W_k, ℓ the Laplacian: the rows' Gram in the metric ℓ_jk · (columns_jᵀ columns_k)."""
        count, rank, _ = self.rows.shape
        rows = self.rows.reshape(count * rank, -1)
        laplacian = laplacian_times(pair_values, jnp.eye(count, dtype=pair_values.dtype))
        metric = self.column_products.reshape(count, rank, count, rank) * laplacian[:, None, :, None]
        weighted = jnp.matmul(metric.reshape(count * rank, -1), rows, precision=HIGHEST)
        return jnp.matmul(rows.T, weighted, precision=HIGHEST)

    def project_out(self, basis: Float[Array, " in columns"]) -> "LowRankClients":
        along = jnp.matmul(self.rows, basis, precision=HIGHEST)
        rows = self.rows - jnp.matmul(along, basis.T, precision=HIGHEST)
        return eqx.tree_at(lambda clients: clients.rows, self, rows)

    def principal(
        self, pair_values: Float[Array, "clients clients"]
    ) -> tuple[Float[Array, " all"], Float[Array, " in in"]]:
        """The eigenvalues of the whole, those outside the joint row space included: they are zero."""
        eigenvalues, vectors = super().principal(pair_values)
        return jnp.pad(eigenvalues, (0, self.whole[1] - eigenvalues.shape[0])), vectors

    def freedom(self, removed: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """The dimension of the out × (in − removed) matrices of a contrast's rank, twice the smallest of a client.

        Of the same matrices dense it is taken to be out·(in − removed): there the vote holds smaller differences for
        significant, and can exclude a client that it keeps here.
        """
        out, in_ = self.whole[0], self.whole[1] - removed
        rank = jnp.minimum(2 * jnp.min(self.ranks).astype(in_.dtype), jnp.minimum(out, in_))
        return rank * (out + in_ - rank)

    def noise_rows(self, members: Bool[Array, " clients"], eigenvalues: Float[Array, " all"]) -> Int[Array, ""]:
        """As many as there are directions: noise of low rank is that of few rows, and not of `out` a client.

        Without noise the directions are those of the shared row space, no more than one client has. Then the rows
        are all that the members could have, which leaves most eigenvalues at zero: each of the others is signal.
        """
        most = jnp.sum(jnp.where(members, self.ranks, 0))
        rounding = 4 * eigenvalues.shape[0] * jnp.finfo(eigenvalues.dtype).eps * eigenvalues[0]
        directions = jnp.sum(eigenvalues > rounding, dtype=most.dtype)
        noiseless = directions <= jnp.max(jnp.where(members, self.ranks, 0)).astype(most.dtype)
        return jnp.where(noiseless, most, jnp.minimum(directions, most))

    def lift(self, basis: Float[Array, " in columns"]) -> Float[Array, " whole columns"]:
        return basis if self.row_basis is None else jnp.matmul(self.row_basis, basis, precision=HIGHEST)


def _low_rank_clients(
    columns: Array, rows: Array, row_basis: Array | None, ranks: Array, whole: tuple[int, int]
) -> LowRankClients:
    flat = columns.transpose(1, 0, 2).reshape(columns.shape[1], -1)
    return LowRankClients(columns, jnp.matmul(flat.T, flat, precision=HIGHEST), rows, row_basis, ranks, whole)


def centred(weights: Array | LowRankMatrices) -> Clients:
    """The form in which the solvers take the clients: dense, where forming the matrices is the cheaper way."""
    if not isinstance(weights, LowRankMatrices):
        return DenseClients.centred(weights)
    _, out, in_ = weights.shape
    if weights.up.shape[2] * (out + in_) >= out * in_:
        return DenseClients.centred(weights.dense())
    return _centred(weights)


@jax.named_scope("clairjax.reduce_factors")
def _centred(weights: LowRankMatrices) -> LowRankClients:
    _, out, in_ = weights.shape
    up = _coordinates(weights.up)
    row_basis, down = joint_rows(weights.scaled_down())
    medoid = _medoid(up, down)
    # W_k − W_m = [B_k, B_m] [A_k; −A_m], with the columns made orthonormal.
    pairs = jnp.concatenate([up, jnp.broadcast_to(up[medoid][None], up.shape)], axis=2)
    columns, core = jnp.linalg.qr(pairs)
    shifted = jnp.concatenate([down, jnp.broadcast_to(-down[medoid][None], down.shape)], axis=1)
    rows = jnp.matmul(core, shifted, precision=HIGHEST)
    rows = jnp.where((jnp.arange(rows.shape[0]) == medoid)[:, None, None], 0, rows)
    return _low_rank_clients(columns, rows, row_basis, weights.ranks, (out, in_))


def _coordinates(up: Float[Array, "clients out rank"]) -> Float[Array, "clients reduced rank"]:
    """The columns of all clients in an orthonormal basis of their span, where that is of fewer than `out`."""
    count, out, rank = up.shape
    if count * rank >= out:
        return up
    upper = jnp.linalg.qr(up.transpose(1, 0, 2).reshape(out, -1), mode="r")
    return upper.reshape(-1, count, rank).transpose(1, 0, 2)


def joint_rows(
    down: Float[Array, "clients rank in"],
) -> tuple[Float[Array, " in reduced"] | None, Float[Array, "clients rank reduced"]]:
    """An orthonormal basis of the joint row space and the rows' coordinates in it; None where it is no smaller.

    Householder's QR errs by eps of each row's own length, whatever the others' are.
    """
    count, rank, in_ = down.shape
    if count * rank >= in_:
        return None, down
    basis, upper = jnp.linalg.qr(down.reshape(-1, in_).T)
    return basis, upper.T.reshape(count, rank, -1)


def _medoid(up: Float[Array, "clients out rank"], down: Float[Array, "clients rank in"]) -> Int[Array, ""]:
    """As of `DenseClients`: the client of the smallest median distance to the others."""
    count, out, rank = up.shape
    columns, core = jnp.linalg.qr(up)
    rows = jnp.matmul(core, down, precision=HIGHEST)
    uncentred = _low_rank_clients(columns, rows, None, jnp.full(count, rank, jnp.int32), (out, down.shape[2]))
    distances = pair_squared_distances(uncentred.inner_products())
    return jnp.argmin(jnp.sort(distances, axis=1)[:, count // 2])


def lifted(solution: Decomposition, clients: Clients) -> Decomposition:
    """With the basis in the coordinates of the inputs."""
    return eqx.tree_at(lambda result: result.basis, solution, clients.lift(solution.basis))
