"""What the solvers see of clients that report factors: products and inner products, no matrix."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._compile import after
from .._precision import HIGHEST
from ..kernels import gram
from ..subspaces import along
from ._clients import Clients, nonzero
from ._contrasts import laplacian_times, pair_squared_distances
from ._majority import medoid


class LowRankClients(Clients):
    """Clients as products of orthonormal columns and a few rows, shifted so that a central client is zero.

    W_k − W_m = Q M_k + C_k R_k. Q are the columns of the central client m, the same for all. C_k are those of client k
    outside Q. With orthonormal columns an inner product is as accurate as of dense matrices, however the factors are
    scaled. After the shift the difference of two nearly equal clients is taken once, entry by entry.

    CLAIR turns with the coordinates of rows and of columns. Where the clients' ranks add up to less than `in`, rows
    are held in an orthonormal basis of the joint row space, `row_basis`. So are columns, whose basis nobody asks for.
    """

    common_columns: Float[Array, "out rank"]  # Q, in coordinates of the joint column space
    common_rows: Float[Array, "clients rank in"]  # M_k
    columns: Float[Array, "clients out rank"]  # C_k
    column_products: Float[Array, "all all"]  # C_jᵀ C_k
    rows: Float[Array, "clients rank in"]  # R_k
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
        own = jnp.matmul(self.columns, jnp.matmul(self.rows, basis, precision=HIGHEST), precision=HIGHEST)
        common = jnp.matmul(self.common_rows, basis, precision=HIGHEST)
        columns = jnp.broadcast_to(self.common_columns, self.columns.shape)  # a batch, as the other product is
        return own + jnp.matmul(columns, common, precision=HIGHEST)

    def adjoint_times(self, rows: Float[Array, "clients out columns"]) -> Float[Array, " in columns"]:
        own = jnp.einsum("kqm,kqr->kmr", self.columns, rows, precision=HIGHEST)
        common = jnp.einsum("qm,kqr->kmr", self.common_columns, rows, precision=HIGHEST)
        pairs = ((self.rows, own), (self.common_rows, common))
        own, common = (jnp.einsum("kmp,kmr->pr", left, right, precision=HIGHEST) for left, right in pairs)
        return own + common

    def inner_products(self) -> Float[Array, "clients clients"]:
        common = self.common_rows.reshape(self.shape[0], -1)
        return gram(common.T) + _inner_products(self.column_products, self.rows)

    def scatter(self, pair_values: Float[Array, "clients clients"]) -> Float[Array, " in in"]:
        """Σ_jk ℓ_jk W_jᵀ W_k, ℓ the Laplacian: the rows' Gram in the metric ℓ_jk · (columns_jᵀ columns_k)."""
        count, rank, in_ = self.rows.shape
        laplacian = laplacian_times(pair_values, jnp.eye(count, dtype=pair_values.dtype))
        metric = self.column_products.reshape(count, rank, count, rank) * laplacian[:, None, :, None]
        rows, common = self.rows.reshape(-1, in_), self.common_rows.reshape(-1, in_)
        weighted = jnp.matmul(metric.reshape(count * rank, -1), rows, precision=HIGHEST)
        common_weighted = laplacian_times(pair_values, self.common_rows).reshape(common.shape)
        own = jnp.matmul(rows.T, weighted, precision=HIGHEST)
        return own + jnp.matmul(common.T, common_weighted, precision=HIGHEST)

    def project_out(self, basis: Float[Array, " in columns"]) -> "LowRankClients":
        where = lambda clients: (clients.rows, clients.common_rows)
        return eqx.tree_at(where, self, [rows - along(rows, basis) for rows in where(self)])

    def principal(
        self, pair_values: Float[Array, "clients clients"]
    ) -> tuple[Float[Array, " all"], Float[Array, " in in"]]:
        """The eigenvalues of the whole, those outside the joint row space included: they are zero."""
        eigenvalues, vectors = super().principal(pair_values)
        return jnp.pad(eigenvalues, (0, self.whole[1] - eigenvalues.shape[0])), vectors

    def freedom(self, removed: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """The dimension of the out × (in − removed) matrices of a contrast's rank, twice the smallest of a client.

        Of the same matrices dense it is taken to be out·(in − removed). There the vote holds smaller differences for
        significant, and can leave out a client that is a member here.
        """
        out, in_ = self.whole[0], self.whole[1] - removed
        rank = jnp.minimum(2 * jnp.min(self.ranks).astype(in_.dtype), jnp.minimum(out, in_))
        return rank * (out + in_ - rank)

    def noise_rows(self, members: Bool[Array, " clients"], eigenvalues: Float[Array, " all"]) -> Int[Array, ""]:
        """As many as there are directions: noise of low rank has few rows, not `out` a client.

        Without noise the directions are those of the shared row space, no more than one client has. Then rows are as
        many as the members could have. So most eigenvalues are zero, and each of the others is signal.
        """
        most = jnp.sum(jnp.where(members, self.ranks, 0))
        directions = nonzero(eigenvalues).astype(most.dtype)
        noiseless = directions <= jnp.max(jnp.where(members, self.ranks, 0)).astype(most.dtype)
        return jnp.where(noiseless, most, jnp.minimum(directions, most))

    def lift(self, basis: Float[Array, " in columns"]) -> Float[Array, " whole columns"]:
        return basis if self.row_basis is None else jnp.matmul(self.row_basis, basis, precision=HIGHEST)


def _column_products(columns: Float[Array, "clients out rank"]) -> Float[Array, "all all"]:
    return gram(columns.transpose(1, 0, 2).reshape(columns.shape[1], -1))


def _inner_products(
    column_products: Float[Array, "all all"], rows: Float[Array, "clients rank in"]
) -> Float[Array, "clients clients"]:
    """⟨C_j R_j, C_k R_k⟩ = ⟨C_jᵀ C_k, R_j R_kᵀ⟩."""
    count, rank, in_ = rows.shape
    table = column_products * gram(rows.reshape(-1, in_).T)
    return table.reshape(count, rank, count, rank).sum((1, 3))


@jax.named_scope("clairjax.reduce_factors")
def reduced(
    up: Float[Array, "clients out rank"], down: Float[Array, "clients rank in"], ranks: Int[Array, " clients"]
) -> LowRankClients:
    """The clients W_k = up_k down_k, of these ranks, as the solvers see them."""
    out, in_ = up.shape[1], down.shape[2]
    up = _coordinates(up)
    row_basis, down = joint_rows(after(down, up))
    central = medoid(_squared_distances(after(up, down), down))
    common_columns, core = jnp.linalg.qr(up[central])

    def inside(columns: Array) -> Array:
        return jnp.einsum("qm,kqr->kmr", common_columns, columns, precision=HIGHEST)

    def outside(columns: Array, inside: Array) -> Array:
        return columns - jnp.einsum("qm,kmr->kqr", common_columns, inside, precision=HIGHEST)

    # Twice: after the first time, what is left of the columns inside is rounding of the whole.
    first = inside(up)
    left = outside(up, first)
    second = inside(left)
    columns, own_core = jnp.linalg.qr(outside(left, second))
    common_rows = jnp.matmul(first + second, down, precision=HIGHEST)
    rows = jnp.matmul(own_core, down, precision=HIGHEST)
    own_square = jnp.sum(common_rows**2 + rows**2, axis=(1, 2))  # ‖W_k‖²
    common_rows = common_rows - jnp.matmul(core, down[central], precision=HIGHEST)[None]
    # Copies of the central client, and itself: nothing is left of them but rounding, which has a row space, too.
    rounding = 16 * jnp.finfo(rows.dtype).eps
    same = jnp.sum(common_rows**2 + rows**2, axis=(1, 2)) <= rounding**2 * own_square
    common_rows, rows = (jnp.where(same[:, None, None], 0, each) for each in (common_rows, rows))
    products = _column_products(columns)
    return LowRankClients(common_columns, common_rows, columns, products, rows, row_basis, ranks, (out, in_))


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


def _squared_distances(
    up: Float[Array, "clients out rank"], down: Float[Array, "clients rank in"]
) -> Float[Array, "clients clients"]:
    columns, core = jnp.linalg.qr(up)
    rows = jnp.matmul(core, down, precision=HIGHEST)
    return pair_squared_distances(_inner_products(_column_products(columns), rows))
