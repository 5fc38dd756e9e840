"""`ProximalGradient`: Algorithm 1 of the paper on the stack of contrasts."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _validate
from .._loop import iterate
from .._precision import HIGHEST
from .._typing import ScalarLike
from ..kernels import block_norms, block_soft_threshold, gram, right_basis, svt
from ._clients import Clients
from ._contrasts import contrasts, pair_index, pair_table
from ._program import Certificate, Decomposition, Penalty, Start, certify, decomposition, residual_weights, tolerance
from ._solver import Solver


class ProximalGradient(Solver):
    """Proximal gradient on (L, S), or accelerated on L alone.

    A step is R = D − L − S, L ← SVT(L + t ω R; t λ_L), S ← BST(S + t ω R; t λ_S) from L = S = 0.

    **Args:**

    - `step`: the constant t; None means 1/(2 max ω), the inverse of the Lipschitz constant.
    - `backtracking` (static): halve t until the quadratic bound holds, and let it grow by 1.2 a step. It pays only
      where pair weights differ much.
    - `accelerate` (static): eliminate S, so that t may be 1/max ω, and extrapolate with restart. The optimum is the
      same, in several times fewer steps.
    - `max_steps`, `rtol`: as of `Factored`.

    **Source:** CLAIR Algorithm 1, (20)-(21). Departs from print: the paper runs a given number of steps; here a
    duality gap, taken every 10 steps, says when to stop.

    **Cost:** a step K²·q·p² multiplications and one p × p eigendecomposition; 4 stacks of K²·q·p/2 numbers.
    `Factored` needs neither.
    """

    step: ScalarLike | None = None
    backtracking: bool = eqx.field(static=True, default=False)
    accelerate: bool = eqx.field(static=True, default=False)
    max_steps: int = eqx.field(static=True, default=5000)
    rtol: ScalarLike | None = None

    def check(self) -> Bool[Array, ""] | bool:
        if self.step is not None:
            _validate.positive(self.step, "solver.step")
        return super().check() & _validate.traced_in_range(positive=[self.step])

    def solve(
        self,
        clients: Clients,
        penalty: Penalty,
        pair_weights: Float[Array, "clients clients"],
        start: Start | None = None,
    ) -> Decomposition:
        """Solve (7) on contrasts that are formed. `start` is `Factored`'s and is not used here."""
        del start
        stack = contrasts(clients.matrices())
        weights = pair_weights[pair_index(clients.shape[0])][:, None, None]
        dtype = stack.dtype
        rtol = tolerance(self.rtol, dtype)
        lipschitz = jnp.max(weights) * (1 if self.accelerate else 2)
        size = 1 / lipschitz if self.step is None else jnp.asarray(self.step, dtype)
        zero = jnp.zeros_like(stack)
        _, certificate, outcome = iterate(
            lambda state: self._step(stack, weights, penalty, state),
            lambda state: _certificate(stack, pair_weights, penalty, state.low_rank),
            _State(zero, zero, zero, jnp.zeros((), dtype), size),
            rtol=rtol,
            max_steps=self.max_steps,
            check_every=10,
        )
        return decomposition(certificate, outcome, penalty, rtol)

    def _step(self, stack: Array, weights: Array, penalty: Penalty, state: "_State") -> "_State":
        if self.accelerate:
            return _accelerated_step(stack, weights, penalty, state)
        if self.backtracking:
            return _backtracking_step(stack, weights, penalty, state)
        low_rank, sparse = _algorithm_1_step(stack, weights, penalty, state.step, state.low_rank, state.sparse)
        return state._replace(low_rank=low_rank, sparse=sparse)


class _State(NamedTuple):
    low_rank: Float[Array, "pairs out in"]
    sparse: Float[Array, "pairs out in"]
    previous: Float[Array, "pairs out in"]  # low-rank part of the step before, for acceleration
    momentum: Float[Array, ""]
    step: Float[Array, ""]


@jax.named_scope("clairjax.algorithm_1_step")
def _algorithm_1_step(
    stack: Array, weights: Array, penalty: Penalty, step: Array, low_rank: Array, sparse: Array
) -> tuple[Array, Array]:
    residual = stack - low_rank - sparse
    return (
        _block_svt(low_rank + step * weights * residual, step * penalty.low_rank),
        block_soft_threshold(sparse + step * weights * residual, step * penalty.sparse),
    )


def _backtracking_step(stack: Array, weights: Array, penalty: Penalty, state: _State) -> _State:
    def attempt(step: Array) -> tuple[Array, Array]:
        return _algorithm_1_step(stack, weights, penalty, step, state.low_rank, state.sparse)

    def too_long(carry: tuple[Array, Array, Array]) -> Array:
        # The loss is quadratic, so its bound at t reads ‖√ω(ΔL + ΔS)‖² ≤ (‖ΔL‖² + ‖ΔS‖²)/t.
        step, low_rank, sparse = carry
        moved_l, moved_s = low_rank - state.low_rank, sparse - state.sparse
        return jnp.sum(weights * (moved_l + moved_s) ** 2) * step > jnp.sum(moved_l**2) + jnp.sum(moved_s**2)

    def halve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step = carry[0] / 2
        return step, *attempt(step)

    step = state.step * jnp.asarray(1.2, stack.dtype)
    step, low_rank, sparse = jax.lax.while_loop(too_long, halve, (step, *attempt(step)))
    return state._replace(low_rank=low_rank, sparse=sparse, step=step)


@jax.named_scope("clairjax.accelerated_step")
def _accelerated_step(stack: Array, weights: Array, penalty: Penalty, state: _State) -> _State:
    point = state.low_rank + state.momentum / (state.momentum + 3) * (state.low_rank - state.previous)
    residual = stack - point
    norms = block_norms(residual)[:, None, None]
    gradient = residual_weights(norms, weights, penalty) * residual
    low_rank = _block_svt(point + state.step * gradient, state.step * penalty.low_rank)
    overshot = jnp.sum((point - low_rank) * (low_rank - state.low_rank)) > 0
    return state._replace(
        low_rank=low_rank, previous=state.low_rank, momentum=jnp.where(overshot, 0, state.momentum + 1)
    )


def _block_svt(stack: Float[Array, "pairs out in"], threshold: Array) -> Float[Array, "pairs out in"]:
    return svt(stack.reshape(-1, stack.shape[2]), threshold).reshape(stack.shape)


def _certificate(
    stack: Array, pair_weights: Float[Array, "clients clients"], penalty: Penalty, low_rank: Array
) -> Certificate:
    count = pair_weights.shape[0]
    residual = stack - low_rank
    norms = pair_table(block_norms(residual), count)
    products = pair_table(jnp.sum(residual * stack, axis=(1, 2)), count)
    dual = residual_weights(norms, pair_weights, penalty)[pair_index(count)][:, None, None] * residual
    basis, values, dual_norm, dual_lengths = directions(low_rank, dual)
    return certify(basis, values, norms, products, dual_norm, dual_lengths, pair_weights, penalty)


def directions(low_rank: Float[Array, "pairs out in"], dual: Float[Array, "pairs out in"]) -> tuple[Array, ...]:
    """Right singular vectors and values of L, ‖Z‖_op of the dual variable, and its lengths along those vectors.

    Lengths along the singular vectors are right to eps of the largest; roots of the Gram's eigenvalues only to √eps.
    """
    in_ = low_rank.shape[2]
    both = jnp.stack([low_rank.reshape(-1, in_), dual.reshape(-1, in_)])
    bases, squares = jax.vmap(lambda rows: right_basis(gram(rows), in_))(both)
    values, dual_lengths = (jnp.linalg.norm(jnp.matmul(each, bases[0], precision=HIGHEST), axis=0) for each in both)
    return bases[0], values, jnp.sqrt(jnp.maximum(squares[1, 0], 0)), dual_lengths
