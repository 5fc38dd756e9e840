"""What clients report: all that the drivers ask of matrices, dense or in factors."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..subspaces import along
from ._clients import Clients, DenseClients


class Reports(eqx.Module):
    """One matrix W_k ∈ R^{q×p} a client. `Clients` is how the solvers see them, up to a common shift."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """(clients K, out q, in p)."""

    @property
    @abstractmethod
    def dtype(self) -> jnp.dtype:
        """Of every number."""

    @property
    @abstractmethod
    def mT(self) -> "Reports":  # as arrays have it
        """The transposed matrices: a shared column space is their row space."""

    @property
    @abstractmethod
    def rank_bound(self) -> tuple[int, str]:
        """The largest rank that a shared row space can have, and what sets it."""

    @abstractmethod
    def squared_norms(self) -> Float[Array, " clients"]:
        """‖W_k‖_F², not finite where an entry is not."""

    @abstractmethod
    def clients(self) -> Clients:
        """The clients as the solvers see them."""

    @abstractmethod
    def outside(self, basis: Float[Array, " in columns"]) -> "Reports":
        """W_k (I − basis basisᵀ), for a basis with orthonormal or zero columns."""

    @abstractmethod
    def refined(
        self, weights: Float[Array, " clients"], basis: Float[Array, " in columns"], share: Float[Array, " clients"]
    ) -> Any:
        """W̄ + (W_k − W̄)P + s_k (W_k − W̄)P⊥ with W̄ the weighted mean and s the `share`; CLAIR (9).

        W_k itself, bit for bit, where the share is 1. Clients of weight 0 leave no trace in the others' results.
        """


class DenseReports(Reports):
    """Clients as one array."""

    values: Float[Array, "clients out in"]

    @property
    def shape(self) -> tuple[int, int, int]:
        clients, out, in_ = self.values.shape
        return clients, out, in_

    @property
    def dtype(self) -> jnp.dtype:
        return self.values.dtype

    @property
    def mT(self) -> "DenseReports":
        return DenseReports(self.values.mT)

    @property
    def rank_bound(self) -> tuple[int, str]:
        return min(self.shape[1:]), "min(out, in)"

    def squared_norms(self) -> Float[Array, " clients"]:
        return jnp.sum(self.values**2, axis=(1, 2))

    def clients(self) -> DenseClients:
        return DenseClients.centred(self.values)

    def outside(self, basis: Float[Array, " in columns"]) -> "DenseReports":
        return DenseReports(self.values - along(self.values, basis))

    def refined(
        self, weights: Float[Array, " clients"], basis: Float[Array, " in columns"], share: Float[Array, " clients"]
    ) -> Float[Array, "clients out in"]:
        mean = weighted_mean(self.values, weights)[None]
        deviations = self.values - mean
        inside = along(deviations, basis)
        share = share[:, None, None]
        return jnp.where(share == 1, self.values, mean + inside + share * (deviations - inside))


def members_mean(weights: Float[Array, "clients out in"], members: Bool[Array, " clients"]) -> Float[Array, "out in"]:
    """The mean over the members, zero when there is none. Other clients leave no trace, finite or not."""
    return weighted_mean(weights, members.astype(weights.dtype))


def centred(
    weights: Float[Array, "clients out in"], members: Bool[Array, " clients"]
) -> Float[Array, "clients out in"]:
    """Members less their mean; zero for the others."""
    return jnp.where(members[:, None, None], weights - members_mean(weights, members)[None], 0)


def weighted_mean(
    matrices: Float[Array, "clients out in"], weights: Float[Array, " clients"]
) -> Float[Array, "out in"]:
    """Zero where no weight is above zero. Clients of weight zero leave no trace, finite or not."""
    each = weights[:, None, None]
    return jnp.where(each > 0, each * matrices, 0).sum(0) / total(weights)


def total(weights: Float[Array, " clients"]) -> Float[Array, ""]:
    """Their sum, to divide by: 1 where that is zero."""
    added = weights.sum()
    return jnp.where(added > 0, added, 1)
