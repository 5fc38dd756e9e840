"""How the solver sees the clients: products and inner products, never the matrices themselves."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._precision import HIGHEST, rounding_floor
from ..kernels import gram
from ..subspaces import along
from ._contrasts import laplacian_times, pair_squared_distances
from ._majority import medoid


class Clients(eqx.Module):
    """What `Factored`, the vote and the tuning ask of K client matrices W_k ∈ R^{q×p}, up to a common shift.

    A subclass holds dense matrices or factors. Contrasts do not see a common shift, so a subclass may centre.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """(clients K, out q, in p)."""

    @property
    @abstractmethod
    def dtype(self) -> jnp.dtype:
        """Of every result."""

    @abstractmethod
    def times(self, basis: Float[Array, " in columns"]) -> Float[Array, "clients out columns"]:
        """W_k @ basis."""

    def matrices(self) -> Float[Array, "clients out in"]:
        """W_k themselves, in the clients' own coordinates: only for solvers that form the contrasts."""
        return self.times(jnp.eye(self.shape[2], dtype=self.dtype))

    @abstractmethod
    def adjoint_times(self, rows: Float[Array, "clients out columns"]) -> Float[Array, " in columns"]:
        """Σ_k W_kᵀ @ rows_k."""

    @abstractmethod
    def inner_products(self) -> Float[Array, "clients clients"]:
        """⟨W_j, W_k⟩."""

    @abstractmethod
    def scatter(self, pair_values: Float[Array, "clients clients"]) -> Float[Array, " in in"]:
        """Σ_{j<k} v_jk D_jkᵀ D_jk for a symmetric table with zero diagonal."""

    @abstractmethod
    def project_out(self, basis: Float[Array, " in columns"]) -> "Clients":
        """W_k (I − basis basisᵀ), for a basis with orthonormal or zero columns."""

    def principal(
        self, pair_values: Float[Array, "clients clients"]
    ) -> tuple[Float[Array, " all"], Float[Array, " in in"]]:
        """Eigenvalues of `scatter`, largest first, and its eigenvectors in the same order."""
        eigenvalues, vectors = jnp.linalg.eigh(self.scatter(pair_values))
        return eigenvalues[::-1], vectors[:, ::-1]

    def freedom(self, removed: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """Numbers that noise sets on its own in a contrast, once `removed` directions are projected out."""
        _, out, in_ = self.shape
        return out * (in_ - removed)

    def noise_rows(self, members: Bool[Array, " clients"], eigenvalues: Float[Array, " all"]) -> Int[Array, ""]:
        """Rows of noise in the members' deviations from their mean, whose scatter has these eigenvalues."""
        return jnp.maximum(members.sum() - 1, 0) * self.shape[1]

    def lift(self, basis: Float[Array, " in columns"]) -> Float[Array, " whole columns"]:
        """A basis in the clients' own coordinates, in those of the inputs."""
        return basis


class DenseClients(Clients):
    """Clients as one array, shifted so that a central client is zero.

    The shift is the medoid, the client of the smallest median distance to the others. With the mean, one client a
    million times larger than the others would cost these six digits.
    """

    values: Float[Array, "clients out in"]

    @property
    def shape(self) -> tuple[int, int, int]:
        clients, out, in_ = self.values.shape
        return clients, out, in_

    @property
    def dtype(self) -> jnp.dtype:
        return self.values.dtype

    @staticmethod
    def centred(weights: Float[Array, "clients out in"]) -> "DenseClients":
        central = medoid(pair_squared_distances(_inner_products(weights)))
        return DenseClients(weights - weights[central][None])

    def matrices(self) -> Float[Array, "clients out in"]:
        return self.values

    def times(self, basis: Float[Array, " in columns"]) -> Float[Array, "clients out columns"]:
        return jnp.einsum("kqp,pr->kqr", self.values, basis, precision=HIGHEST)

    def adjoint_times(self, rows: Float[Array, "clients out columns"]) -> Float[Array, " in columns"]:
        # The few columns lead: the other order copies the clients into another layout in each call.
        columns = rows.transpose(2, 0, 1).reshape(rows.shape[2], -1)
        return jnp.matmul(columns, self.values.reshape(-1, self.shape[2]), precision=HIGHEST).T

    def inner_products(self) -> Float[Array, "clients clients"]:
        return _inner_products(self.values)

    def scatter(self, pair_values: Float[Array, "clients clients"]) -> Float[Array, " in in"]:
        rows = self.values.reshape(-1, self.shape[2])
        weighted = laplacian_times(pair_values, self.values).reshape(rows.shape)
        return jnp.matmul(rows.T, weighted, precision=HIGHEST)

    def project_out(self, basis: Float[Array, " in columns"]) -> "DenseClients":
        return DenseClients(self.values - along(self.values, basis))


def nonzero(eigenvalues: Float[Array, " all"]) -> Int[Array, ""]:
    """How many eigenvalues, largest first, are above rounding."""
    return jnp.sum(eigenvalues > rounding_floor(eigenvalues), dtype=jnp.int32)


def _inner_products(weights: Float[Array, "clients out in"]) -> Float[Array, "clients clients"]:
    return gram(weights.reshape(weights.shape[0], -1).T)
