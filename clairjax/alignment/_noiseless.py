"""The noiseless program (24), where the two parts must add up to the contrasts."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._loop import iterate
from .._typing import ScalarLike
from ..kernels import block_norms, block_soft_threshold, svt
from ._clients import Clients
from ._contrasts import contrasts, pair_table
from ._program import Certificate, Decomposition, Penalty, Start, decomposition, tolerance
from ._proximal_gradient import directions
from ._solver import Solver


class _State(NamedTuple):
    low_rank: Float[Array, "pairs out in"]
    sparse: Float[Array, "pairs out in"]
    multiplier: Float[Array, "pairs out in"]


class Multipliers(Solver):
    """The noiseless program: min λ_L ‖L‖_* + λ_S Σ_g ‖S_g‖_F subject to L_g + S_g = D_g, by multipliers.

    The limit of (7) at small penalties is another program: its row space is off in proportion to the penalties. Here
    the minimiser depends on the ratio of the two penalties alone. `penalty_ratio_interval` has the ratios for which
    Theorem 1 promises the shared row space. Pair weights are not used.

    `optimality` is the larger of ‖D − L − S‖/‖D‖ and of the relative duality gap, which is told to √eps.
    `residual_norms` are those of the sparse part.

    **Args:**

    - `max_steps` (static).
    - `rtol`: stop when `optimality` is at or below it. None means eps^0.6 of the dtype.

    **Source:** CLAIR (24), Theorem 1; the alternating direction method of multipliers.

    **Cost:** a step as `ProximalGradient`'s, on the stack of K²/2 contrasts; 20 to 100 steps.
    """

    max_steps: int = eqx.field(static=True, default=1000)
    rtol: ScalarLike | None = None

    def solve(
        self,
        clients: Clients,
        penalty: Penalty,
        pair_weights: Float[Array, "clients clients"],
        start: Start | None = None,
    ) -> Decomposition:
        """The multiplier always meets ‖Y_g‖_F ≤ λ_S; scaled to ‖Y‖_op ≤ λ_L it gives the dual value ⟨Y, D⟩."""
        del pair_weights, start
        stack = contrasts(clients.matrices())
        dtype = stack.dtype
        rtol = tolerance(self.rtol, dtype)
        norms = block_norms(stack)
        # Steps of the multiplier in proportion to what a unit of it means: the sparse penalty over a typical contrast.
        typical = jnp.median(norms)
        scale = penalty.sparse / jnp.where(typical > 0, typical, 1)
        total = jnp.sum(stack**2)
        zero = jnp.zeros_like(stack)

        @jax.named_scope("clairjax.noiseless_step")
        def step(state: _State) -> _State:
            target = stack + state.multiplier / scale
            flat = (target - state.sparse).reshape(-1, stack.shape[2])
            low_rank = svt(flat, penalty.low_rank / scale).reshape(stack.shape)
            sparse = block_soft_threshold(target - low_rank, penalty.sparse / scale)
            return _State(low_rank, sparse, scale * (target - low_rank - sparse))

        def certify(state: _State) -> Certificate:
            residual_norms = block_norms(stack - state.low_rank)
            basis, values, dual_norm, _ = directions(state.low_rank, state.multiplier)
            objective = penalty.low_rank * values.sum() + penalty.sparse * residual_norms.sum()
            dual = jnp.sum(state.multiplier * stack) / jnp.maximum(dual_norm / penalty.low_rank, 1)
            gap = (objective - dual) / jnp.where(objective == 0, 1, objective)
            # Singular values by way of a Gram are good to √eps: below that the gap is rounding.
            gap = jnp.where(gap > 4 * jnp.sqrt(jnp.finfo(dtype).eps), gap, 0)
            violation = jnp.sum((stack - state.low_rank - state.sparse) ** 2) / jnp.where(total > 0, total, 1)
            optimality = jnp.maximum(gap, jnp.sqrt(violation))
            norms = pair_table(residual_norms, clients.shape[0])
            # The dual is linear and excludes no direction.
            return Certificate(objective, optimality, basis, values, norms, jnp.zeros_like(values))

        _, certificate, outcome = iterate(
            step, certify, _State(zero, zero, zero), rtol=rtol, max_steps=self.max_steps, check_every=10
        )
        return decomposition(certificate, outcome, penalty, rtol)
