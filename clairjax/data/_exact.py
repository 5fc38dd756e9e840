"""Linear clients whose coefficients lie exactly in a shared subspace: one problem from one key."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from .._precision import HIGHEST
from .._typing import Key, ScalarLike


class SubspaceProblem(eqx.Module):
    """What the clients hold, and the truth behind it."""

    inputs: Float[Array, "clients samples features"]
    targets: Float[Array, "clients samples"]
    basis: Float[Array, "features rank"]  # orthonormal columns: B*
    heads: Float[Array, "clients rank"]  # w_i*


class SharedSubspace(eqx.Module):
    """Linear regressions y = w_iᵀ Bᵀ x with one column-orthonormal B for all clients.

    Inputs are standard normal. Heads are uniform on the sphere of radius √rank, then scaled coordinate by
    coordinate from `condition` down to 1, evenly. Over many clients the singular values of the heads divided by
    √clients tend to these factors: s_k = 1 and s_1/s_k = `condition`. No head is longer than `condition · √rank`.

    **Args** (sizes, all static): `clients` n ≥ 1, `samples` m ≥ 1 per client, `features` d > rank,
    `rank` k ≥ 1. Traced: `condition` κ ≥ 1, `noise` ≥ 0, the standard deviation added to the targets.

    **Raises:** `ValueError` for sizes outside these ranges.

    **Source:** CENTAUR, section 5 (the linear representation problem; assumptions 5.1 and 5.2 with μ = κ).
    The paper has `noise` = 0 and prints no experiment on this model; the law of the heads is not the paper's.

    **Cost:** O(n m d) time and memory.

    >>> import jax
    >>> from clairjax.data import SharedSubspace
    >>> problem = SharedSubspace(clients=7, samples=5, features=4, rank=2).generate(key=jax.random.key(0))
    >>> problem.inputs.shape, problem.basis.shape
    ((7, 5, 4), (4, 2))
    """

    clients: int = eqx.field(static=True)
    samples: int = eqx.field(static=True)
    features: int = eqx.field(static=True)
    rank: int = eqx.field(static=True, default=2)
    condition: ScalarLike = 1.0
    noise: ScalarLike = 0.0

    def __check_init__(self):
        if min(self.clients, self.samples) < 1:
            raise ValueError(f"clients and samples must be at least 1, got {self.clients} and {self.samples}.")
        if not 1 <= self.rank < self.features:
            raise ValueError(f"rank must be at least 1 and below features = {self.features}, got {self.rank}.")

    @eqx.filter_jit
    def generate(self, *, key: Key, dtype: DTypeLike = float) -> SubspaceProblem:
        """Draw a problem; `dtype` defaults to the default float of the process."""
        basis_key, heads_key, inputs_key, noise_key = jax.random.split(key, 4)
        basis, _ = jnp.linalg.qr(jax.random.normal(basis_key, (self.features, self.rank), dtype))
        directions = jax.random.normal(heads_key, (self.clients, self.rank), dtype)
        directions = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
        condition = jnp.asarray(self.condition, dtype)
        factors = 1 + (condition - 1) * (jnp.arange(self.rank, dtype=dtype)[::-1] / max(self.rank - 1, 1))
        heads = directions * (factors * jnp.sqrt(jnp.asarray(self.rank, dtype)))[None, :]
        inputs = jax.random.normal(inputs_key, (self.clients, self.samples, self.features), dtype)
        targets = jnp.einsum("nmd,dk,nk->nm", inputs, basis, heads, precision=HIGHEST)
        noise = jnp.asarray(self.noise, dtype) * jax.random.normal(noise_key, targets.shape, dtype)
        return SubspaceProblem(inputs, targets + noise, basis, heads)
