"""The private power method: a first basis from noisy second moments, and the choice among independent trials."""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .. import _validate
from .._compile import compiled
from .._precision import HIGHEST
from .._status import Status, worst
from .._typing import Key, ScalarLike
from ..kernels import grid_gaussian_mechanism, orthonormalize
from ..privacy import GaussianRounds, Ledger
from ..subspaces import subspace_distance
from ._data import ClientData, Counts, validate_linear
from ._linear import LinearClients, argument_status, input_status
from ._private import run_status
from ._subsets import check_batch, draw_subsets


class PrivatePowerMethod(eqx.Module):
    """How `centaur` finds its first basis privately; see `private_power_method` for the meaning of each option."""

    steps: int = eqx.field(static=True)
    noise_multiplier: ScalarLike
    clip_norm: ScalarLike
    trials: int = eqx.field(static=True, default=1)
    batch_size: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        _validate.at_least(self.steps, "steps", 1)
        _validate.at_least(self.trials, "trials", 1)

    def event(self, clients: int) -> GaussianRounds:
        """What all trials together spend: each step of each trial is one release."""
        return GaussianRounds(self.noise_multiplier, self.steps * self.trials, clients=clients, label="initialisation")

    @jax.named_scope("clairjax.private_power_method")
    def run(
        self,
        inputs: Float[Array, "clients samples features"],
        targets: Float[Array, "clients samples"],
        rank: int,
        key: Key,
        counts: Int[Array, " clients"] | None = None,
        *,
        mechanism: Callable = grid_gaussian_mechanism,
    ) -> Float[Array, "features rank"]:
        trial = lambda key: self._trial(ClientData(inputs, targets, counts), rank, key, mechanism)
        chosen = select_candidate(jax.vmap(trial)(jax.random.split(key, self.trials)))
        return jnp.where(self.traced_in_range(), chosen, jnp.nan)

    def traced_in_range(self) -> Bool[Array, ""] | bool:
        return _validate.traced_in_range(positive=[self.clip_norm], not_negative=[self.noise_multiplier])

    def _trial(self, data: ClientData, rank: int, key: Key, mechanism: Callable) -> Array:
        """Algorithm 5."""
        start_key, steps_key = jax.random.split(key)
        inputs, targets, counts = data
        start = orthonormalize(jax.random.normal(start_key, (inputs.shape[2], rank), inputs.dtype))

        def step(basis: Array, key: Key) -> tuple[Array, None]:
            subset_key, noise_key = jax.random.split(key)
            seen = data
            if self.batch_size is not None:
                (drawn,) = draw_subsets(inputs, targets, self.batch_size, 1, key=subset_key, counts=counts)
                seen = ClientData(*drawn, None)
            image = mechanism(
                moment_images(*seen, basis),
                self.clip_norm,
                self.noise_multiplier,
                normaliser=float(inputs.shape[0]),
                key=noise_key,
            )
            return orthonormalize(image), None

        return jax.lax.scan(step, start, jax.random.split(steps_key, self.steps))[0]


class PrivateBasis(eqx.Module):
    """What the private power method found, and what it spent.

    - `basis` [d, k], orthonormal, is released, and nothing else;
    - `status`: `nonfinite_input` if a client reported NaN or infinite values, which counted as zero. `diverged` if no
      basis came out. `invalid_argument` if a traced setting was out of range: the basis is NaN;
    - `privacy`: the events to account for, `.privacy.epsilon(delta=…, adjacency=…)`.
    """

    basis: Float[Array, "features rank"]
    status: Status
    privacy: Ledger


def private_power_method(
    inputs: ArrayLike,
    targets: ArrayLike,
    rank: int,
    *,
    key: Key,
    steps: int,
    noise_multiplier: ScalarLike,
    clip_norm: ScalarLike,
    trials: int = 1,
    batch_size: int | None = None,
    counts: Counts | None = None,
    mechanism: Callable = grid_gaussian_mechanism,
) -> PrivateBasis:
    """Private estimate of the subspace that the clients' coefficients share.

    Client i holds M_i = (1/m̄) Σ_j y_ij² x_ij x_ijᵀ, whose mean over clients tends, for standard normal inputs,
    to 2Γ + tr(Γ) I with Γ = B* (W*ᵀW*/n) B*ᵀ: its leading eigenvectors span B*. Each step is one of orthogonal
    iteration on a noisy mean of clipped images, X ← QR((Σ_i clip(M_i X; ζ) + N(0, (σζ)²)) / n).

    With `trials` > 1 the run is repeated from fresh starts with fresh noise. The candidate is returned whose median
    distance to all candidates is smallest. Algorithm 3's test is to be within 2ε_i² of at least half. The most central
    candidate passes it whenever any does, for every ε_i at once, and is the fallback where none does. The choice
    looks at candidates only, so it spends nothing. The number of trials multiplies the rounds.

    **Args:**

    - `inputs` [n, m, d], `targets` [n, m], of one dtype, float32 or float64; `rank` k ≤ min(n, d).
    - `key`: for a release that is meant, a new `privacy.secret_key()`, used once; see `centaur`.
    - `steps` L ≥ 1. `noise_multiplier` σ ≥ 0: noise per entry of the sum is σζ. `clip_norm` ζ > 0: best near
      the median norm of M_i X, not at the bound that is never reached.
    - `batch_size`: m̄ samples of each client, drawn afresh without replacement at each step; `None` takes all.
    - `counts` [n], integers from 1 (or m̄) to m: client i's samples are its first `counts[i]`, and what stands
      beyond them is not looked at; `None`: all m. M_i is the mean over the client's own samples. Every client weighs
      the same and is clipped to ζ, so the ledger is the same.
    - `mechanism`, which makes every release; as in `centaur`.

    **Returns:** a `PrivateBasis`.

    **Raises:** `ValueError` for sizes or values outside these ranges and for data that are not finite (names
    the clients; for data one owns, see `centaur`). Inside a trace a client with non-finite data counts as zero.

    **Source:** CENTAUR, Algorithms 3, 5 and 6 and appendix F. Departs from print: M_i is divided by the number
    of samples drawn (the text has m̄ once and m̄_0 once). The text's start of CENTAUR is out of reach
    under privacy: about 1.7 million samples a step for ε_i = 0.01 at d = 50 and k = 2. The ε of its trials is in the
    hundreds.

    **Cost:** O(L trials n m̄ d k). In float32 only the last digits differ.

    >>> import jax
    >>> from clairjax import privacy
    >>> from clairjax.data import SharedSubspace
    >>> from clairjax.representation import private_power_method
    >>> from clairjax.subspaces import subspace_distance
    >>> problem = SharedSubspace(clients=400, samples=100, features=6, rank=2).generate(key=jax.random.key(0))
    >>> options = dict(steps=20, noise_multiplier=1.0, clip_norm=5.0)
    >>> found = private_power_method(problem.inputs, problem.targets, 2, key=privacy.secret_key(), **options)
    >>> bool(subspace_distance(found.basis, problem.basis) < 0.1)
    True
    """
    data = validate_linear(inputs, targets, rank, counts)
    method = PrivatePowerMethod(steps, noise_multiplier, clip_norm, trials, batch_size)
    check_power_method(method, data.targets.shape, counts)
    basis, status = _private_power_method(data, key, method, rank, mechanism)
    return PrivateBasis(basis, status, Ledger((method.event(data.targets.shape[0]),)))


@partial(compiled, static_argnames=("rank", "mechanism"))
def _private_power_method(
    data: ClientData, key: Key, method: PrivatePowerMethod, rank: int, mechanism: Callable
) -> tuple[Array, Status]:
    basis = method.run(data.inputs, data.targets, rank, key, data.counts, mechanism=mechanism)
    in_range = method.traced_in_range() & data.enough(method.batch_size or 1).all()
    ended = worst(input_status(LinearClients.of(*data, for_one_round=True)), run_status(basis))
    return jnp.where(in_range, basis, jnp.nan), worst(argument_status(in_range), ended)


def moment_images(
    inputs: Float[Array, "clients size features"],
    targets: Float[Array, "clients size"],
    counts: Int[Array, " clients"] | None,
    basis: Float[Array, "features rank"],
) -> Float[Array, "clients features rank"]:
    """Each client's M_i X with M_i = (1/m̄) Σ_j y_ij² x_ij x_ijᵀ, which is not formed; m̄ its own number of samples."""
    numbers = ClientData(inputs, targets, counts).numbers()
    along = jnp.einsum("nmd,dk->nmk", inputs, basis, precision=HIGHEST) * (targets**2)[:, :, None]
    return jnp.einsum("nmd,nmk->ndk", inputs, along, precision=HIGHEST) / numbers[:, None, None]


def check_power_method(method: PrivatePowerMethod, shape: tuple[int, ...], counts: Counts | None) -> None:
    _validate.positive(method.clip_norm, "clip_norm")
    _validate.not_negative(method.noise_multiplier, "noise_multiplier")
    check_batch(method.batch_size, shape, 1, 1, counts)


def select_candidate(candidates: Float[Array, "trials features rank"]) -> Float[Array, "features rank"]:
    """The candidate whose ⌈T0/2⌉-th smallest distance to the candidates, its own included, is smallest."""
    if candidates.shape[0] == 1:
        return candidates[0]
    distances = jax.vmap(lambda one: jax.vmap(lambda other: subspace_distance(one, other))(candidates))(candidates)
    half = (candidates.shape[0] + 1) // 2
    return candidates[jnp.argmin(jnp.sort(distances, axis=1)[:, half - 1])]
