"""What the solvers see of clients that report factors: products and inner products, no matrix."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._clients import Clients, DenseClients, nonzero
from ._contrasts import HIGHEST, laplacian_times, pair_squared_distances
from ._low_rank import LowRankMatrices
from ._program import Decomposition


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
        directions = nonzero(eigenvalues).astype(most.dtype)
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
