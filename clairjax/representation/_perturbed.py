"""The estimator CENTAUR is compared with: alternating least squares, solved at the server on perturbed moments."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .. import _validate
from .._compile import compiled
from .._precision import HIGHEST
from .._typing import Key, ScalarLike
from ..kernels import gaussian_mechanism, normalize, orthonormalize, right_basis
from ..privacy import GaussianRounds, Ledger
from ..subspaces import subspace_distance
from ._data import ClientData, Counts, validate_linear
from ._linear import LinearClients, grams, least_squares_heads
from ._private import Learned, PrivateRepresentation, check_run, given_basis, learned, least_count
from ._subsets import draw_subsets


class PerturbedMoments(eqx.Module):
    """First basis of `perturbed_least_squares`: leading eigenvectors of a noisy mean of M_i = Σ_j y² x xᵀ/m.

    One release, with `noise_multiplier` σ ≥ 0 over `clip_norm` ζ > 0, which bounds the Frobenius norm of M_i.
    """

    noise_multiplier: ScalarLike
    clip_norm: ScalarLike

    def event(self, clients: int) -> GaussianRounds:
        return GaussianRounds(self.noise_multiplier, 1, clients=clients, label="initialisation")

    def run(
        self,
        inputs: Float[Array, "clients samples features"],
        targets: Float[Array, "clients samples"],
        rank: int,
        key: Key,
        counts: Int[Array, " clients"] | None = None,
    ) -> Float[Array, "features rank"]:
        root = jnp.sqrt(ClientData(inputs, targets, counts).numbers())[:, None]
        moments = grams(inputs * (targets / root)[:, :, None])
        number = float(inputs.shape[0])
        mean = gaussian_mechanism(moments, self.clip_norm, self.noise_multiplier, normaliser=number, key=key)
        return jnp.where(self.traced_in_range(), right_basis((mean + mean.T) / 2, rank)[0], jnp.nan)

    def traced_in_range(self) -> Bool[Array, ""] | bool:
        return _validate.traced_in_range(positive=[self.clip_norm], not_negative=[self.noise_multiplier])

    def check(self) -> None:
        _validate.positive(self.clip_norm, "clip_norm of init")
        _validate.not_negative(self.noise_multiplier, "noise_multiplier of init")


def perturbed_least_squares(
    inputs: ArrayLike,
    targets: ArrayLike,
    rank: int,
    *,
    key: Key,
    rounds: int,
    noise_multiplier: ScalarLike,
    clip_norms: tuple[ScalarLike, ScalarLike],
    batch_size: int | None = None,
    init: PerturbedMoments | ArrayLike,
    true_basis: ArrayLike | None = None,
    counts: Counts | None = None,
) -> PrivateRepresentation:
    """Private alternating least squares with the basis solved for exactly, each round, at the server.

    With its head w_i fixed, client i's squared error is quadratic in the whole basis: its second moment is
    H_i = (w_i w_iᵀ) ⊗ (X_iᵀX_i/m), a dk × dk matrix, its first moment b_i = (X_iᵀy_i/m) w_iᵀ. The server gets
    the sums of both, clipped in Frobenius norm and perturbed, solves H vec(B) = vec(b) and takes QR.
    The noise in H has spectral norm of order √(dk) · σ · ‖H_i‖, and ‖H_i‖ grows with d itself: hence the error of
    order d^1.5 where CENTAUR has d.

    **Args:** as `centaur`, `key` too (secret, new, used once), except

    - `noise_multiplier` σ of a round: each of the two sums is released with √2 σ. Together they cost one release at
      σ, as a round of `centaur` does;
    - `clip_norms`: of H_i and of b_i;
    - `init`: a `PerturbedMoments`, or a basis that does not depend on the users' data.

    There is no `mechanism`: H is clipped and summed without being formed for any client, in floating point, so its ε
    is of real numbers (see `kernels.gaussian_mechanism`).

    **Returns:** as `centaur`; `clipped` counts clients with either sum clipped.

    **Raises:** as `centaur`.

    **Source:** Jain, Rush, Smith, Song and Thakurta, Differentially private model personalization (NeurIPS
    2021), the private alternating minimisation and its spectral start. Departs from it in two ways, both in its
    favour. A client's moments are averaged before they are clipped: clipping sample by sample needs larger norms.
    Eigenvalues of the perturbed H are raised to the spectral norm of the noise, a public number: no round divides by
    noise.

    **Cost:** O(T (n k² d² + (dk)³)) time, O(n d² + (dk)²) memory.

    >>> import jax
    >>> from clairjax import privacy
    >>> from clairjax.data import SharedSubspace
    >>> from clairjax.representation import perturbed_least_squares
    >>> problem = SharedSubspace(clients=5000, samples=20, features=5, rank=2).generate(key=jax.random.key(0))
    >>> options = dict(rounds=5, noise_multiplier=1.0, clip_norms=(12.0, 8.0), true_basis=problem.basis)
    >>> start = jax.numpy.eye(5)[:, :2]
    >>> key = privacy.secret_key()
    >>> run = perturbed_least_squares(problem.inputs, problem.targets, 2, key=key, init=start, **options)
    >>> bool(run.distances[-1] < 0.1)
    True
    """
    data = validate_linear(inputs, targets, rank, counts)
    check_run(data.targets.shape, rank, rounds, noise_multiplier, batch_size, counts)
    for norm, name in zip(clip_norms, ("clip_norms[0]", "clip_norms[1]"), strict=True):
        _validate.positive(norm, name)
    clients = data.targets.shape[0]
    events: tuple[GaussianRounds, ...] = (GaussianRounds(noise_multiplier, rounds, clients=clients, label="rounds"),)
    if isinstance(init, PerturbedMoments):
        init.check()
        events = (init.event(clients), *events)
    else:
        init = given_basis(init, "init", data.inputs, rank, "a PerturbedMoments or an array")
    truth = None if true_basis is None else given_basis(true_basis, "true_basis", data.inputs, rank)
    options = _Options(noise_multiplier, clip_norms, init, truth, rank, rounds, batch_size)
    found: Learned = _perturbed_least_squares(data, key, options)
    return PrivateRepresentation(*found, Ledger(events))


class _Options(eqx.Module):
    """What `perturbed_least_squares` was asked for; numbers and arrays are traced."""

    noise_multiplier: ScalarLike
    clip_norms: tuple[ScalarLike, ScalarLike]
    init: PerturbedMoments | Float[Array, "features rank"]
    truth: Float[Array, "features rank"] | None
    rank: int = eqx.field(static=True)
    rounds: int = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)

    def in_range(self, data: ClientData) -> Bool[Array, ""] | bool:
        start = self.init.traced_in_range() if isinstance(self.init, PerturbedMoments) else jnp.isfinite(self.init)
        holds = [start, data.enough(least_count(self.rank, self.batch_size))]
        return _validate.traced_in_range(positive=self.clip_norms, not_negative=[self.noise_multiplier], holds=holds)


@compiled
def _perturbed_least_squares(data: ClientData, key: Key, options: _Options) -> Learned:
    start_key, rounds_key = jax.random.split(key)
    if isinstance(options.init, PerturbedMoments):
        start = options.init.run(data.inputs, data.targets, options.rank, start_key, data.counts)
    else:
        start = orthonormalize(options.init)
    truth = None if options.truth is None else orthonormalize(options.truth)
    clients = LinearClients.of(*data)
    whole = clients, clients.full_gram(), clients.moment

    def step(basis: Array, key: Key) -> tuple[Array, tuple[Array | None, Array]]:
        subsets_key, noise_key = jax.random.split(key)
        first, gram, moment = whole
        if options.batch_size is not None:
            one, two = draw_subsets(
                data.inputs, data.targets, options.batch_size, 2, key=subsets_key, counts=data.counts
            )
            first, second = LinearClients.of(*one, for_one_round=True), LinearClients.of(*two)
            gram, moment = second.full_gram(), second.moment
        heads = least_squares_heads(first, basis)
        noise, clips = options.noise_multiplier, options.clip_norms
        system, clipped = _perturbed_system(heads, gram, moment, clips, noise, noise_key)
        basis = orthonormalize(_solve(*system))
        distance = None if truth is None else subspace_distance(basis, truth)
        return basis, (distance, clipped)

    with jax.named_scope("clairjax.perturbed_least_squares"):
        basis, (distances, clipped) = jax.lax.scan(step, start, jax.random.split(rounds_key, options.rounds))
    return learned(clients, basis, distances, clipped, options.in_range(data))


def _perturbed_system(
    heads: Float[Array, "clients rank"],
    gram: Float[Array, "clients features features"],
    moment: Float[Array, "clients features"],
    clip_norms: tuple[ScalarLike, ScalarLike],
    noise_multiplier: ScalarLike,
    key: Key,
) -> tuple[tuple[Float[Array, "size size"], Float[Array, "features rank"], Float[Array, ""]], Float[Array, ""]]:
    """Noisy means of H_i and b_i, the spectral norm of the noise in H, and the share of clients clipped."""
    matrix_key, vector_key = jax.random.split(key)
    dtype, (number, rank), features = heads.dtype, heads.shape, moment.shape[1]
    size = features * rank
    matrix_clip, vector_clip = (jnp.asarray(norm, dtype) for norm in clip_norms)
    multiplier = math.sqrt(2) * jnp.asarray(noise_multiplier, dtype)

    # A Kronecker product is as long as the product of its factors: it is clipped without being formed. The product
    # of three lengths may be infinite, and then it is longer than any clip norm.
    (heads_to, head_lengths), (gram_to, gram_lengths) = jax.vmap(normalize)(heads), jax.vmap(normalize)(gram)
    lengths = head_lengths * gram_lengths * head_lengths
    known = jnp.isfinite(heads).all(1) & jnp.isfinite(gram).all((1, 2)) & (lengths >= 0)
    kept = jnp.where(known, jnp.minimum(lengths, matrix_clip), 0)
    heads_to, gram_to = jnp.where(known[:, None], heads_to, 0), jnp.where(known[:, None, None], gram_to, 0)
    outer = kept[:, None, None] * heads_to[:, :, None] * heads_to[:, None, :]
    total = jnp.einsum("nkl,nde->dkel", outer, gram_to, precision=HIGHEST).reshape(size, size)
    noise = multiplier * matrix_clip * jax.random.normal(matrix_key, (size, size), dtype)
    matrix = (total + (noise + noise.T) / 2) / number

    vectors = moment[:, :, None] * heads[:, None, :]
    vector = gaussian_mechanism(vectors, vector_clip, multiplier, normaliser=float(number), key=vector_key)
    clipped = ~((lengths <= matrix_clip) & (jax.vmap(normalize)(vectors)[1] <= vector_clip))
    level = multiplier * matrix_clip * (math.sqrt(2 * size) / number)
    return (matrix, vector, level), jnp.mean(clipped.astype(dtype))


def _solve(
    matrix: Float[Array, "size size"],
    vector: Float[Array, "features rank"],
    level: Float[Array, ""],
) -> Float[Array, "features rank"]:
    values, vectors = jnp.linalg.eigh(matrix)
    along = jnp.matmul(vectors.T, vector.reshape(-1), precision=HIGHEST)
    floor = jnp.maximum(level, float(jnp.finfo(values.dtype).tiny))
    solution = jnp.matmul(vectors, along / jnp.maximum(values, floor), precision=HIGHEST)
    return solution.reshape(vector.shape)
