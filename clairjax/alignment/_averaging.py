"""The matrix baselines that CLAIR is compared with: each maps what the clients report to what they use."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._reports import DenseReports, members_mean


def local(weights: Float[Array, "clients out in"]) -> Float[Array, "clients out in"]:
    """Each client keeps its own matrix.

    **Source:** CLAIR, section 7, the column "Local".
    """
    return weights


def fedavg(weights: Float[Array, "clients out in"]) -> Float[Array, "clients out in"]:
    """Every client gets the mean over all clients.

    **Args:** `weights` [K, q, p].

    **Returns:** [K, q, p], the same matrix K times.

    **Source:** CLAIR, section 7, the column "FedAvg". **Cost:** O(K q p).

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import fedavg
    >>> fedavg(jnp.array([[[1.0, 2.0]], [[3.0, 4.0]]])).tolist()
    [[[2.0, 3.0]], [[2.0, 3.0]]]
    """
    return jnp.broadcast_to(weights.mean(0), weights.shape)


def oracle_fedavg(
    weights: Float[Array, "clients out in"], members: Bool[Array, " clients"]
) -> Float[Array, "clients out in"]:
    """Every member gets the mean over the members; the others keep their own matrix.

    **Args:**

    - `weights` [K, q, p].
    - `members` [K], the benign clients.

    **Returns:** [K, q, p]. Without any member, `weights`.

    **Source:** CLAIR, section 7, the column "FedAvg (Oracle)". **Cost:** O(K q p).

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import oracle_fedavg
    >>> weights = jnp.array([[[1.0, 2.0]], [[3.0, 4.0]], [[9.0, 9.0]]])
    >>> oracle_fedavg(weights, jnp.array([True, True, False])).tolist()
    [[[2.0, 3.0]], [[2.0, 3.0]], [[9.0, 9.0]]]
    """
    return jnp.where(members[:, None, None], members_mean(weights, members)[None], weights)


def label_oracle(
    weights: Float[Array, "clients out in"], members: Bool[Array, " clients"], basis: Float[Array, "in rank"]
) -> Float[Array, "clients out in"]:
    """CLAIR's refinement with the true set and the true row space: what perfect recovery would give.

    A member k gets W̄ (I − P) + W^(k) P with W̄ the mean over the members and P = basis · basisᵀ; the others
    keep their own matrix.

    **Args:**

    - `weights` [K, q, p].
    - `members` [K].
    - `basis` [p, r] with columns that are orthonormal or exactly zero (padding).

    **Returns:** [K, q, p]. Without any member, `weights`.

    **Source:** CLAIR, (9) with C and A in place of their estimates; the estimator of Theorem 4.

    **Cost:** O(K q p r); no p × p matrix is formed.

    >>> import jax.numpy as jnp
    >>> from clairjax.alignment import label_oracle
    >>> weights = jnp.array([[[1.0, 2.0]], [[3.0, 4.0]], [[9.0, 9.0]]])
    >>> label_oracle(weights, jnp.array([True, True, False]), jnp.array([[1.0], [0.0]])).tolist()
    [[[1.0, 3.0]], [[3.0, 3.0]], [[9.0, 9.0]]]
    """
    return DenseReports(weights).refined(
        members.astype(weights.dtype), basis, jnp.where(members, 0, 1).astype(weights.dtype)
    )
