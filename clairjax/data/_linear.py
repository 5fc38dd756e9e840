"""The multiple-response linear model of the CLAIR paper's simulation: one problem from one key."""

import math
from typing import Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float

from .. import _validate
from .._precision import HIGHEST
from .._typing import Key


Shapes: TypeAlias = dict[str, tuple[int, ...]]


class Problem(eqx.Module):
    """What the clients know, what they report, and the truth behind it."""

    weights: Float[Array, "clients out in"]  # the true W^(k)
    estimates: Float[Array, "clients out in"]  # what the clients report: least squares on their own samples
    members: Bool[Array, " clients"]  # the set C of benign clients
    basis: Float[Array, "in rank"]  # orthonormal basis of the shared row space
    signal: Float[Array, ""]  # the strength c of the contamination
    backbone: Float[Array, "out in"]  # the common W_0

    def noiseless(self) -> "Problem":
        """The same problem with clients that report the truth, as the exact-recovery theorem supposes."""
        return Problem(self.weights, self.weights, self.members, self.basis, self.signal, self.backbone)


class MultiResponse(eqx.Module):
    """Linear regressions whose coefficient matrices share a row space, a fixed share of them contaminated.

    Client k sees `samples` pairs y = W^(k) x + e with standard normal x and AR(1) noise over the coordinates
    of y, cov(e_i, e_j) = noise² · correlation^|i−j|. A benign client has W^(k) = W_0 + adaptation · B^(k) A;
    the entries of W_0 (out × in), A (rank × in) and B^(k) (out × rank) are uniform on [−1, 1]. A contaminated
    client has W^(k) = W_0 + c/√(out · (in − rank)) · Z^(k), with c drawn once per problem from `signals`.

    **Args** (sizes, all static):

    - `clients`: K ≥ 1. `outputs`: q > rank. `inputs`: p > rank. `samples`: n ≥ p, per client.
    - `rank`: r ≥ 1, of the shared row space.
    - `contaminated_share`: in [0, 1); `contaminated`, the number of contaminated clients, is the nearest
      integer to `contaminated_share · clients`. Which clients they are is random.
    - `signals`: the values of c.
    - `contamination`: the law of Z's entries, `"normal"` (standard normal) or `"uniform"` (on [−1, 1]).

    Traced: `adaptation`, `correlation` in (−1, 1), `noise` ≥ 0.

    **Raises:** `ValueError` for sizes outside these ranges.

    **Source:** CLAIR, section 7. Departs from print: the paper's Z has entries uniform on [−1, 1], but the
    FedAvg columns of its Table 1 come out only with unit variance. So `"normal"` is the default, and the printed law
    the option. The paper does not say which clients are contaminated.

    **Cost:** O(K n p (p + q)) time, O(K n (p + q)) memory.

    >>> import jax
    >>> from clairjax.data import MultiResponse
    >>> problem = MultiResponse(clients=5, outputs=6, inputs=4, samples=50).generate(key=jax.random.key(0))
    >>> problem.estimates.shape, problem.basis.shape, int(problem.members.sum())
    ((5, 6, 4), (4, 2), 3)
    """

    clients: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    inputs: int = eqx.field(static=True)
    samples: int = eqx.field(static=True)
    rank: int = eqx.field(static=True, default=2)
    contaminated_share: float = eqx.field(static=True, default=0.4)
    signals: tuple[float, ...] = eqx.field(static=True, default=(3.0, 4.0, 5.0, 6.0))
    contamination: Literal["normal", "uniform"] = eqx.field(static=True, default="normal")
    adaptation: Float[Array, ""] | float = 0.8
    correlation: Float[Array, ""] | float = 0.25
    noise: Float[Array, ""] | float = 1.0

    def __check_init__(self):
        if not 1 <= self.rank < min(self.inputs, self.outputs):
            raise ValueError(f"rank must be in [1, min(inputs, outputs)), got {self.rank}.")
        if self.samples < self.inputs:
            raise ValueError(f"samples must be at least inputs = {self.inputs}, got {self.samples}.")
        if self.clients < 1:
            raise ValueError(f"clients must be at least 1, got {self.clients}.")
        if not 0 <= self.contaminated_share < 1:
            raise ValueError(f"contaminated_share must be in [0, 1), got {self.contaminated_share}.")
        _validate.choice(self.contamination, "contamination", ("normal", "uniform"))

    @property
    def contaminated(self) -> int:
        """The number of contaminated clients."""
        return round(self.contaminated_share * self.clients)

    @eqx.filter_jit
    def generate(self, *, key: Key, dtype: DTypeLike = float) -> Problem:
        """Draw a problem; `dtype` defaults to the default float of the process."""
        K, q, p, n, r = self.clients, self.outputs, self.inputs, self.samples, self.rank
        even: Shapes = {"backbone": (q, p), "factor": (r, p), "left": (K, q, r), "order": (K,), "signal": ()}
        normal: Shapes = {"inputs": (K, n, p), "noise": (K, n, q)}
        (normal if self.contamination == "normal" else even)["perturbation"] = (K, q, p)
        # Two draws, cut up: one for each array compiles a bit generator each, and took 5 times as long.
        even_key, normal_key = jax.random.split(key)
        draws = _cut(jax.random.uniform(even_key, (_total(even),), dtype, -1, 1), even)
        draws |= _cut(jax.random.normal(normal_key, (_total(normal),), dtype), normal)

        weights, members, signal = self._truth(draws)
        estimates = ols(draws["inputs"], self._targets(weights, draws["inputs"], draws["noise"]))
        basis, _ = jnp.linalg.qr(draws["factor"].T)
        return Problem(weights, estimates, members, basis, signal, draws["backbone"])

    def _truth(self, draws: dict[str, Array]) -> tuple[Array, Array, Array]:
        members = jnp.argsort(jnp.argsort(draws["order"])) < self.clients - self.contaminated
        dtype, number = draws["signal"].dtype, len(self.signals)
        choice = jnp.minimum(jnp.floor((draws["signal"] + 1) * (number / 2)).astype(jnp.int32), number - 1)
        signal = jnp.asarray(self.signals, dtype)[choice]
        perturbation = draws["perturbation"] * (signal / math.sqrt(self.outputs * (self.inputs - self.rank)))
        shared = jnp.einsum("kqr,rp->kqp", draws["left"], draws["factor"], precision=HIGHEST)
        shared = shared * jnp.asarray(self.adaptation, dtype)
        change = jnp.where(members[:, None, None], shared, perturbation)
        return draws["backbone"][None] + change, members, signal

    def _targets(self, weights: Array, inputs: Array, noise: Array) -> Array:
        root = _autoregressive_root(self.outputs, jnp.asarray(self.correlation, weights.dtype))
        noise = jnp.einsum("kni,ji->knj", noise, root, precision=HIGHEST)
        noise = noise * jnp.asarray(self.noise, weights.dtype)
        return jnp.einsum("kqp,knp->knq", weights, inputs, precision=HIGHEST) + noise


def ols(
    inputs: Float[Array, "clients samples in"], targets: Float[Array, "clients samples out"]
) -> Float[Array, "clients out in"]:
    """Each client's least squares coefficients.

    W^(k) = Σ_i y_i x_iᵀ (Σ_i x_i x_iᵀ)⁻¹, by the Cholesky factor of the Gram matrix.

    **Args:** `inputs` [K, n, p] with n ≥ p and full column rank, `targets` [K, n, q], of one dtype.

    **Returns:** [K, q, p]; NaN for a client whose inputs do not have full column rank.

    **Source:** CLAIR, section 7.

    **Cost:** O(K n p (p + q)). The Gram squares the condition number: in float32, inputs with a condition
    number above about 10³ need float64.

    >>> import jax.numpy as jnp
    >>> from clairjax.data import ols
    >>> ols(jnp.array([[[1.0], [1.0]]]), jnp.array([[[2.0, 0.0], [4.0, 1.0]]])).round(4).tolist()
    [[[3.0], [0.5]]]
    """
    gram = jnp.einsum("kni,knj->kij", inputs, inputs, precision=HIGHEST)
    moment = jnp.einsum("kni,knq->kiq", inputs, targets, precision=HIGHEST)
    solve = lambda gram, moment: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(gram), moment)
    coefficients = jax.vmap(solve)(gram, moment)
    return jnp.swapaxes(coefficients, 1, 2)


def _autoregressive_root(size: int, correlation: Float[Array, ""]) -> Float[Array, "out out"]:
    """The Cholesky factor of the matrix correlation^|i−j|, in closed form."""
    ones = jnp.ones(1, correlation.dtype)
    powers = jnp.cumprod(jnp.concatenate([ones, jnp.broadcast_to(correlation, size - 1)]))
    lag = np.subtract.outer(np.arange(size), np.arange(size))
    decay = jnp.where(lag >= 0, powers[np.maximum(lag, 0)], 0)
    return decay * jnp.concatenate([ones, jnp.broadcast_to(jnp.sqrt(1 - correlation**2), size - 1)])[None, :]


def _total(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _cut(flat: Array, shapes: Shapes) -> dict[str, Array]:
    """The flat array as arrays of these shapes, in their order."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = jnp.split(flat, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
