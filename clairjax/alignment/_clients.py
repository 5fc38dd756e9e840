"""How the solver sees the clients: products and inner products, never the matrices themselves."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._contrasts import HIGHEST, pair_squared_distances


class Clients(eqx.Module):
    """What `Factored`, the vote and the tuning ask of K client matrices W_k ∈ R^{q×p}, up to a common shift.

    An implementation may hold dense matrices or factors. Contrasts do not see a common shift, so it may centre.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """(clients K, out q, in p)."""

    @abstractmethod
    def times(self, basis: Float[Array, " in columns"]) -> Float[Array, "clients out columns"]:
        """W_k @ basis."""

    @abstractmethod
    def adjoint_times(self, rows: Float[Array, "clients out columns"]) -> Float[Array, " in columns"]:
        """Σ_k W_kᵀ @ rows_k."""

    @abstractmethod
    def inner_products(self) -> Float[Array, "clients clients"]:
        """⟨W_j, W_k⟩."""

    @abstractmethod
    def scatter(self, members: Float[Array, " clients"]) -> Float[Array, " in in"]:
        """Σ_k m_k (W_k − W̄)ᵀ(W_k − W̄) with W̄ the mean weighted by m."""

    @abstractmethod
    def project_out(self, basis: Float[Array, " in columns"]) -> "Clients":
        """W_k (I − basis basisᵀ), for a basis with orthonormal or zero columns."""


class DenseClients(Clients):
    """Clients as one array, shifted so that a central client is zero.

    The shift is the medoid (smallest median distance to the others) and not the mean: one client a million
    times larger than the rest would otherwise cost the rest six digits.
    """

    values: Float[Array, "clients out in"]

    @property
    def shape(self) -> tuple[int, int, int]:
        clients, out, in_ = self.values.shape
        return clients, out, in_

    @staticmethod
    def centred(weights: Float[Array, "clients out in"]) -> "DenseClients":
        distances = pair_squared_distances(_inner_products(weights))
        medoid = jnp.argmin(jnp.median(distances, axis=1))
        return DenseClients(weights - weights[medoid])

    def times(self, basis: Float[Array, " in columns"]) -> Float[Array, "clients out columns"]:
        return jnp.einsum("kqp,pr->kqr", self.values, basis, precision=HIGHEST)

    def adjoint_times(self, rows: Float[Array, "clients out columns"]) -> Float[Array, " in columns"]:
        return jnp.einsum("kqp,kqr->pr", self.values, rows, precision=HIGHEST)

    def inner_products(self) -> Float[Array, "clients clients"]:
        return _inner_products(self.values)

    def scatter(self, members: Float[Array, " clients"]) -> Float[Array, " in in"]:
        count = jnp.maximum(members.sum(), 1)
        # Rows of excluded clients are selected away, not multiplied by zero: 0 · inf is NaN.
        selected = jnp.where(members[:, None, None] > 0, self.values, 0)
        deviations = jnp.where(members[:, None, None] > 0, selected - selected.sum(0) / count, 0)
        rows = deviations.reshape(-1, self.shape[2])
        return jnp.matmul(rows.T, rows, precision=HIGHEST)

    def project_out(self, basis: Float[Array, " in columns"]) -> "DenseClients":
        return DenseClients(self.values - jnp.matmul(self.times(basis), basis.T, precision=HIGHEST))


def _inner_products(weights: Float[Array, "clients out in"]) -> Float[Array, "clients clients"]:
    rows = weights.reshape(weights.shape[0], -1)
    return jnp.matmul(rows, rows.T, precision=HIGHEST)
