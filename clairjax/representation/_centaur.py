"""CENTAUR, linear: a shared subspace learned by noisy projected gradient steps that are private for each user."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, DTypeLike, Float

from .. import _validate
from .._compile import compiled
from .._precision import HIGHEST
from .._typing import Key, ScalarLike
from ..kernels import grid_gaussian_mechanism, normalize, orthonormalize
from ..privacy import GaussianRounds, Ledger, Poisson
from ..subspaces import subspace_distance
from ._data import ClientData, Counts, validate_linear
from ._linear import LinearClients, least_squares_heads
from ._power_method import PrivatePowerMethod, check_power_method
from ._private import Learned, PrivateRepresentation, check_run, given_basis, learned, least_count
from ._subsets import draw_subsets


PATH = 16.0  # sum of the default steps times the clip norm, for each column of the basis


def centaur(
    inputs: ArrayLike,
    targets: ArrayLike,
    rank: int,
    *,
    key: Key,
    rounds: int = 40,
    noise_multiplier: ScalarLike,
    clip_norm: ScalarLike = 0.1,
    batch_size: int | None = None,
    sampling_rate: float = 1.0,
    step_size: ArrayLike | None = None,
    init: PrivatePowerMethod | ArrayLike | None = None,
    true_basis: ArrayLike | None = None,
    counts: Counts | None = None,
    mechanism: Callable = grid_gaussian_mechanism,
) -> PrivateRepresentation:
    """Shared subspace of the clients' linear models, under user-level differential privacy.

    Each round, every sampled client fits its head, w_i = argmin ‖X_i B w − y_i‖, and sends the gradient of half
    its mean squared error, G_i = X_iᵀ(X_i B w_i − y_i) w_iᵀ/m̄. The server clips each to norm ζ, adds noise of
    standard deviation σζ to the sum, divides by the expected number of clients and projects:
    B ← QR(B − η G). Heads never leave their clients.

    **Args:**

    - `inputs` [n, m, d], `targets` [n, m], of one dtype, float32 or float64; `rank` k ≤ min(n, d).
    - `key`: for a release that is meant, secret, unguessable and new, as `privacy.secret_key()` is, and used once. Who
      can guess it draws the noise and takes it away; two runs with one key have the same noise.
    - `rounds` T ≥ 1. `noise_multiplier` σ ≥ 0, over the clip norm: `privacy.noise_multiplier(ε, T, delta=…)`
      gives it.
    - `clip_norm` ζ > 0. The default belongs to heads of about unit length: a tenth of the mean of ‖w_i‖² under
      inputs of unit variance. Whatever scales the targets must be public, as ζ itself.
    - `batch_size` m̄: two disjoint subsets of m̄ samples per client, for the head and for the gradient, as the paper's
      analysis needs. They are drawn afresh each round without replacement. Take at least 4k; k + 1 fail. `None`: both
      use all samples, whose Gram matrices are kept, which is faster and, on exact linear data, no worse.
    - `sampling_rate` p in (0, 1]: each client takes part in a round by an independent coin.
    - `step_size` η: one, or one per round. `None`: in proportion to (1 − t/T)³, with the sum 16 k/ζ. It
      depends on nothing private. The paper's is 1/(4 s_1²) with s_1² the leading eigenvalue of W*ᵀW*/n.
    - `init`: an orthonormal basis that does not depend on the users' data, or a `PrivatePowerMethod`. Its events are
      added to the ledger. `None` is a random basis and free.
    - `true_basis` [d, k]: if given, `distances` holds the distance to it after each round.
    - `counts` [n], integers from k (or 2m̄) to m: client i's samples are its first `counts[i]`, and what stands
      beyond them is not looked at; `None`: all m. G_i is the mean over the client's own samples, and subsets are
      drawn among them. Every client weighs the same and is clipped to ζ, so the ledger is the same.
    - `mechanism`, which makes every release, those of `init` too. The default works in whole numbers, so that what
      leaves the program has the ε that is accounted for. `kernels.gaussian_mechanism` is a simulation of it in
      floating point, whose low-order bits are not private: for experiments on data one owns.

    **Returns:** a `PrivateRepresentation`.

    **Raises:** `ValueError` for sizes or values outside these ranges and for data that are not finite (names
    the clients). The second is for data one owns: whether a run stops tells something of one client. For a release on
    the data of others, `jax.jit` a function of the data. There a client with NaN counts as zero, and `status`, which
    says that there was one, stays with you.

    **Source:** CENTAUR, Algorithms 1, 3 and 4. Departs from print: the noisy sum is divided by p·n and not by the
    number of clients that came, which is private. The number n counts as public: under add-or-remove-one,
    the neighbour is a client who sends zero. The defaults are not the theorem's, whose clip norm is never reached and
    whose constant step wastes the budget. With these defaults a private initialisation is not worth its budget:
    `clairjax reproduce centaur-tradeoff`, and the results page.

    **Cost:** O(T n min(m, d) d) without `batch_size`, O(T n m̄ d) with it. At n = 1000, m = 20, d = 50, k = 2 a round
    takes 1.7 times as long as with `kernels.gaussian_mechanism`. In float32 the distance to the
    truth is limited to about 1e-6 without noise, far below any noise that protects.

    >>> import jax
    >>> from clairjax import privacy
    >>> from clairjax.data import SharedSubspace
    >>> from clairjax.representation import centaur
    >>> problem = SharedSubspace(clients=500, samples=10, features=8, rank=2).generate(key=jax.random.key(0))
    >>> data = problem.inputs, problem.targets
    >>> run = centaur(*data, 2, key=privacy.secret_key(), noise_multiplier=24.0, true_basis=problem.basis)
    >>> bool(run.distances[-1] < 0.05), round(run.privacy.epsilon(delta=1e-5, adjacency="add-or-remove-one"), 2)
    (True, 0.98)
    """
    data = validate_linear(inputs, targets, rank, counts)
    shape, dtype = data.targets.shape, data.inputs.dtype
    check_run(shape, rank, rounds, noise_multiplier, batch_size, counts)
    _validate.positive(clip_norm, "clip_norm")
    if not 0 < sampling_rate <= 1:
        raise _validate.fail("sampling_rate", "in (0, 1]", sampling_rate)
    if not callable(mechanism):
        raise _validate.fail("mechanism", "a function such as kernels.gaussian_mechanism", repr(mechanism))
    sampler = Poisson(sampling_rate)
    events: tuple[GaussianRounds, ...] = (sampler.rounds(noise_multiplier, rounds, clients=shape[0]),)
    if isinstance(init, PrivatePowerMethod):
        check_power_method(init, shape, counts)
        events = (init.event(shape[0]), *events)
    elif init is not None:
        init = given_basis(init, "init", data.inputs, rank, "None, a PrivatePowerMethod or an array")
    truth = None if true_basis is None else given_basis(true_basis, "true_basis", data.inputs, rank)
    steps = None if step_size is None else _given_steps(step_size, rounds, dtype)
    options = _Options(noise_multiplier, clip_norm, steps, init, truth, sampler, rank, rounds, batch_size, mechanism)
    found: Learned = _centaur(data, key, options)
    return PrivateRepresentation(*found, Ledger(events))


class _Options(eqx.Module):
    """What `centaur` was asked for. Numbers and arrays are traced: with others of the same shapes nothing compiles."""

    noise_multiplier: ScalarLike
    clip_norm: ScalarLike
    step_size: Float[Array, " rounds"] | None
    init: PrivatePowerMethod | Float[Array, "features rank"] | None
    truth: Float[Array, "features rank"] | None
    sampler: Poisson
    rank: int = eqx.field(static=True)
    rounds: int = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)
    mechanism: Callable = eqx.field(static=True)

    def in_range(self, data: ClientData) -> Bool[Array, ""] | bool:
        holds: list[Array | bool] = [data.enough(least_count(self.rank, self.batch_size))]
        if isinstance(self.init, PrivatePowerMethod):
            holds += [self.init.traced_in_range(), data.enough(self.init.batch_size or 1)]
        elif self.init is not None:
            holds.append(jnp.isfinite(self.init))
        positive = [self.clip_norm, self.step_size]
        return _validate.traced_in_range(positive=positive, not_negative=[self.noise_multiplier], holds=holds)


@compiled
def _centaur(data: ClientData, key: Key, options: _Options) -> Learned:
    start_key, rounds_key = jax.random.split(key)
    start = _start(options, data, start_key)
    truth = None if options.truth is None else orthonormalize(options.truth)
    clients, number, sampler = LinearClients.of(*data), data.inputs.shape[0], options.sampler
    clip_norm = jnp.asarray(options.clip_norm, data.inputs.dtype)
    steps = _default_steps(options.rounds, options.rank, clip_norm) if options.step_size is None else options.step_size

    def step(basis: Array, turn: tuple[Key, Array]) -> tuple[Array, tuple[Array | None, Array]]:
        subsets_key, clients_key, noise_key = jax.random.split(turn[0], 3)
        first, second = clients, clients
        if options.batch_size is not None:
            subsets = draw_subsets(
                data.inputs, data.targets, options.batch_size, 2, key=subsets_key, counts=data.counts
            )
            first, second = (LinearClients.of(*subset, for_one_round=True) for subset in subsets)
        updates = client_updates(first, second, basis)
        active = sampler.draw(number, key=clients_key)
        sent = jnp.where(active[:, None, None], updates, 0)
        update = options.mechanism(
            sent, clip_norm, options.noise_multiplier, normaliser=sampler.normaliser(number), key=noise_key
        )
        basis = orthonormalize(basis - turn[1] * update)
        distance = None if truth is None else subspace_distance(basis, truth)
        return basis, (distance, _clipped_share(sent, clip_norm, active))

    with jax.named_scope("clairjax.centaur"):
        keys = jax.random.split(rounds_key, options.rounds)
        basis, (distances, clipped) = jax.lax.scan(step, start, (keys, steps))
    return learned(clients, basis, distances, clipped, options.in_range(data))


def client_updates(
    first: LinearClients, second: LinearClients, basis: Float[Array, "features rank"]
) -> Float[Array, "clients features rank"]:
    """Algorithm 4: each client's head from one subset, the gradient of the basis from the other."""
    heads = least_squares_heads(first, basis)
    residuals = second.gradient(jnp.einsum("nk,dk->nd", heads, basis, precision=HIGHEST))
    return residuals[:, :, None] * heads[:, None, :]


def _clipped_share(
    updates: Float[Array, "clients features rank"], clip_norm: Float[Array, ""], active: Bool[Array, " clients"]
) -> Float[Array, ""]:
    longer = active & ~(jax.vmap(normalize)(updates)[1] <= clip_norm)  # a NaN counts as clipped: to zero
    return jnp.sum(longer.astype(updates.dtype)) / jnp.maximum(jnp.sum(active.astype(updates.dtype)), 1)


def _default_steps(rounds: int, rank: int, clip_norm: Float[Array, ""]) -> Float[Array, " rounds"]:
    """Clipped updates have a known length, so the path that the basis can take is known, too: it gets a fixed
    length, long steps first. What the noise of early rounds did, later rounds undo."""
    decay = (1 - np.arange(rounds) / rounds) ** 3
    return jnp.asarray(PATH * rank * decay / decay.sum(), clip_norm.dtype) / clip_norm


def _given_steps(step_size: ArrayLike, rounds: int, dtype: DTypeLike) -> Float[Array, " rounds"]:
    sizes = jnp.asarray(step_size, dtype)
    if sizes.shape not in ((), (rounds,)):
        raise _validate.fail("step_size", f"one number or one per round ({rounds})", f"shape {sizes.shape}")
    for size in (sizes.min(), sizes.max()):
        _validate.positive(size, "step_size")
    return jnp.broadcast_to(sizes, (rounds,))


def _start(options: _Options, data: ClientData, key: Key) -> Float[Array, "features rank"]:
    init = options.init
    if init is None:
        return orthonormalize(jax.random.normal(key, (data.inputs.shape[2], options.rank), data.inputs.dtype))
    if isinstance(init, PrivatePowerMethod):
        return init.run(*data[:2], options.rank, key, data.counts, mechanism=options.mechanism)
    return orthonormalize(init)
