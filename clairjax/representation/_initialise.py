"""Where the iterations start: random, or from the second moment of y x."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from .._precision import HIGHEST
from .._typing import Key, ScalarLike
from ..kernels import gram, orthonormalize, right_basis
from ._data import Counts, client_data
from ._linear import LinearClients


def random_start(
    clients: int, features: int, rank: int, scale: ScalarLike, *, key: Key, dtype: DTypeLike
) -> tuple[Float[Array, "features rank"], Float[Array, "clients rank"]]:
    """A basis and heads with independent normal entries of standard deviation `scale`; FLUTE, Algorithm 1."""
    # One draw, cut up: each draw compiles a bit generator of its own.
    draw = jnp.asarray(scale, dtype) * jax.random.normal(key, (features + clients, rank), dtype)
    return draw[:features], draw[features:]


@jax.named_scope("clairjax.moment_basis")
def moment_basis(
    inputs: Float[Array, "clients samples features"],
    targets: Float[Array, "clients samples"],
    rank: int,
    *,
    counts: Counts | None = None,
) -> Float[Array, "features rank"]:
    """The method of moments: leading eigenvectors of the mean of y² x xᵀ over all samples of all clients.

    For standard normal x its mean is 2·ΦΦᵀ/M + c·I, so that the leading eigenvectors are those of the clients'
    true coefficients. Its fourth moments converge slowly: it is a start, not an estimate.

    **Args:**

    - `inputs` [M, N, d] and `targets` [M, N].
    - `rank` (static), at most d.
    - `counts` [M], integers: client i's samples are its first `counts[i]`, and what stands beyond them is not looked
      at; None: all N. Every sample weighs the same, so a client weighs as much as it has samples.

    **Returns:** orthonormal [d, rank]; NaN for a traced count out of range.

    **Raises:** `ValueError` for `counts` of another shape or dtype, or outside 1 to N (names the clients).

    **Source:** Tripuraneni, Jin and Jordan (2021), Algorithm 1; FedRep's start in Collins et al. (2021).

    **Cost:** M N d² and one d × d eigendecomposition.

    >>> import jax
    >>> from clairjax.representation import moment_basis
    >>> inputs = jax.random.normal(jax.random.key(0), (4, 500, 3))
    >>> int(abs(moment_basis(inputs, inputs[..., 1], 1)[:, 0]).argmax())
    1
    """
    data = client_data(inputs, targets, counts)
    weighted = data.inputs * data.targets[..., None]
    mean = jnp.einsum("mnd,mne->de", weighted, weighted, precision=HIGHEST) / targets.size
    return jnp.where(data.enough().all(), right_basis(mean, rank)[0], jnp.nan)


def orthonormal_start(
    inputs: Float[Array, "clients samples features"],
    targets: Float[Array, "clients samples"],
    rank: int,
    init: Literal["spectral", "random"],
    *,
    key: Key,
) -> Float[Array, "features rank"]:
    """FedRep's two starts. The random one spans what `random_start` with this key gives FLUTE."""
    if init == "spectral":
        return moment_basis(inputs, targets, rank)
    clients, _, features = inputs.shape
    return orthonormalize(random_start(clients, features, rank, 1.0, key=key, dtype=inputs.dtype)[0])


def largest_moment(clients: LinearClients) -> Float[Array, ""]:
    """The largest singular value of the clients' moments: λ₁ and the noise on it, so a step from it is safe."""
    count, features = clients.moment.shape
    tall = clients.moment if count >= features else clients.moment.T
    square = right_basis(gram(tall), 1)[1][0]
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 1)
