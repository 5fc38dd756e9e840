"""The linear model y = xᵀ B w_i: what the clients' data say of it, exact heads, and the result of every method."""

from collections.abc import Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .. import _validate
from .._precision import HIGHEST
from .._status import Status
from ._data import as_array, client_data


FEW = 4  # unknowns, up to which a system is solved entry by entry


class AbstractRepresentation(eqx.Module):
    """A `basis` [features, rank] and `heads` [clients, rank]: what every result of this room is."""

    basis: eqx.AbstractVar[Float[Array, "features rank"]]
    heads: eqx.AbstractVar[Float[Array, "clients rank"]]

    @property
    def coefficients(self) -> Float[Array, "clients features"]:
        """Each client's B w_i, [clients, features]."""
        return coefficients(self.basis, self.heads)

    def predict(self, inputs: ArrayLike | Sequence[Any]) -> Float[Array, "clients samples"]:
        """Each client's xᵀ B w_i for its own inputs, of any number of samples, in the dtype of the basis."""
        inputs = jnp.asarray(as_array(inputs, "inputs"), self.basis.dtype)
        clients, features = self.heads.shape[0], self.basis.shape[0]
        if inputs.ndim != 3 or inputs.shape[::2] != (clients, features):
            expected = f"of shape (clients, samples, features) = ({clients}, samples, {features})"
            raise _validate.fail("inputs", expected, f"shape {tuple(inputs.shape)}")
        return jnp.einsum("mnd,md->mn", inputs, self.coefficients, precision=HIGHEST)


class Representation(AbstractRepresentation):
    """A shared basis and a head for each client.

    - `basis` [features, rank]: B. Orthonormal, except from `flute`, whose B shares its scale with the heads;
    - `heads` [clients, rank]: w_i;
    - `errors` [rounds]: after each round the mean over clients of ‖B w_i − φ_i‖, where `true_coefficients` were given;
    - `status`. Where it is `diverged`, `nonfinite_input` or `invalid_argument`, the arrays hold NaN.
    """

    basis: Float[Array, "features rank"]
    heads: Float[Array, "clients rank"]
    errors: Float[Array, " rounds"] | None
    status: Status


class LinearClients(eqx.Module):
    """What least squares needs of the clients' data, each client's divided by its own number of samples N_i.

    - `gram` [clients, features, features]: X_iᵀX_i/N_i, where there are more samples than features;
    - `inputs` [clients, samples, features]: X_i/√N_i, where there are not, and a product with the data is cheaper;
    - `moment` [clients, features]: X_iᵀy_i/N_i;
    - `square` [clients]: ‖y_i‖²/N_i.

    Which of `gram` and `inputs` is kept (the other is None) depends on the shapes alone.
    """

    gram: Float[Array, "clients features features"] | None
    inputs: Float[Array, "clients samples features"] | None
    moment: Float[Array, "clients features"]
    square: Float[Array, " clients"]

    @classmethod
    def of(
        cls,
        inputs: Float[Array, "clients samples features"],
        targets: Float[Array, "clients samples"],
        counts: Int[Array, " clients"] | None = None,
        *,
        for_one_round: bool = False,
    ) -> "LinearClients":
        """Samples beyond a client's `counts` are not there, whatever they hold; NaN for a traced count out of range.

        Gram matrices cost more to form than they save `for_one_round` of data.
        """
        data = client_data(inputs, targets, counts)
        _, samples, features = inputs.shape
        root = jnp.sqrt(data.numbers())[:, None]
        inputs, targets = data.inputs / root[..., None], data.targets / root
        moment = jnp.einsum("mnd,mn->md", inputs, targets, precision=HIGHEST)
        square = jnp.sum(targets**2, 1)
        if for_one_round or samples <= features:
            return cls(None, inputs, moment, square)
        return cls(grams(inputs), None, moment, square)

    def weighted(self, weights: Float[Array, " clients_or_1"]) -> "LinearClients":
        """The same with a weight for each client's squared errors."""
        gram = None if self.gram is None else self.gram * weights[:, None, None]
        inputs = None if self.inputs is None else self.inputs * jnp.sqrt(weights)[:, None, None]
        return LinearClients(gram, inputs, self.moment * weights[:, None], self.square * weights)

    @jax.named_scope("clairjax.linear_gradient")
    def gradient(self, coefficients: Float[Array, "clients features"]) -> Float[Array, "clients features"]:
        """Each client's gradient of half its mean squared error: X_iᵀ(X_i θ_i − y_i)/N_i."""
        if self.gram is not None:
            return jnp.einsum("mde,me->md", self.gram, coefficients, precision=HIGHEST) - self.moment
        fitted = jnp.einsum("mnd,md->mn", self.inputs, coefficients, precision=HIGHEST)
        return jnp.einsum("mnd,mn->md", self.inputs, fitted, precision=HIGHEST) - self.moment

    def risk(self, coefficients: Float[Array, "clients features"]) -> Float[Array, " clients"]:
        """Each client's mean squared error."""
        return jnp.sum(coefficients * (self.gradient(coefficients) - self.moment), 1) + self.square

    def full_gram(self) -> Float[Array, "clients features features"]:
        """X_iᵀX_i/N_i, formed where it is not kept."""
        return grams(cast(Array, self.inputs)) if self.gram is None else self.gram

    def projected(
        self, basis: Float[Array, "features rank"]
    ) -> tuple[Float[Array, "clients rank rank"], Float[Array, "clients rank"]]:
        """Gram and moment of each client's data in the basis: of the inputs X_i B."""
        moment = jnp.einsum("md,dk->mk", self.moment, basis, precision=HIGHEST)
        if self.gram is not None:
            half = jnp.einsum("mde,ek->mdk", self.gram, basis, precision=HIGHEST)
            return jnp.einsum("dj,mdk->mjk", basis, half, precision=HIGHEST), moment
        return grams(jnp.einsum("mnd,dk->mnk", self.inputs, basis, precision=HIGHEST)), moment


def grams(inputs: Float[Array, "clients samples features"]) -> Float[Array, "clients features features"]:
    return jnp.einsum("mnd,mne->mde", inputs, inputs, precision=HIGHEST)


def coefficients(
    basis: Float[Array, "features rank"], heads: Float[Array, "clients rank"]
) -> Float[Array, "clients features"]:
    return jnp.einsum("mk,dk->md", heads, basis, precision=HIGHEST)


@jax.named_scope("clairjax.least_squares_heads")
def least_squares_heads(clients: LinearClients, basis: Float[Array, "features rank"]) -> Float[Array, "clients rank"]:
    """Each client's head that minimises its own squared error in a given basis."""
    return solve_positive(*clients.projected(basis))


def solve_positive(
    matrix: Float[Array, "problems size size"], right: Float[Array, "problems size"]
) -> Float[Array, "problems size"]:
    """Solutions of many symmetric positive systems, by Cholesky.

    Every matrix gets a ridge of 4 · size · eps · its trace, which a regular matrix does not notice. A singular matrix
    has a factor with it: the solution is then finite and not unique. A zero matrix gives zero.
    """
    size, limits = matrix.shape[1], jnp.finfo(matrix.dtype)
    trace = jnp.trace(matrix, axis1=1, axis2=2)
    ridge = jnp.maximum(4 * size * float(limits.eps) * trace, float(limits.tiny))
    eye = jnp.eye(size, dtype=matrix.dtype)
    regular = matrix + ridge[:, None, None] * eye[None]
    if size <= FEW:
        return _solve_few(regular, right)
    factor = jnp.linalg.cholesky(regular)
    return jax.scipy.linalg.cho_solve((factor, True), right[..., None])[..., 0]


def _solve_few(
    matrix: Float[Array, "problems size size"], right: Float[Array, "problems size"]
) -> Float[Array, "problems size"]:
    """Cholesky written out, entry by entry over all problems: LAPACK takes them one by one."""
    size = matrix.shape[1]
    factor: dict[tuple[int, int], Array] = {}
    for j in range(size):
        for i in range(j, size):
            rest = matrix[:, i, j] - sum(factor[i, m] * factor[j, m] for m in range(j))
            factor[i, j] = jnp.sqrt(rest) if i == j else rest / factor[j, j]
    values = [right[:, i] for i in range(size)]
    for i in range(size):
        values[i] = (values[i] - sum(factor[i, m] * values[m] for m in range(i))) / factor[i, i]
    for i in reversed(range(size)):
        values[i] = (values[i] - sum(factor[m, i] * values[m] for m in range(i + 1, size))) / factor[i, i]
    return jnp.stack(values, axis=1)


def mean_distance(
    coefficients: Float[Array, "clients features"], truth: Float[Array, "clients features"]
) -> Float[Array, ""]:
    """The mean over clients of ‖θ_i − φ_i‖, the error of the models and of their histories.

    **Args:** `coefficients` [M, d] and `truth` [M, d], of one dtype.

    **Returns:** a scalar ≥ 0.

    **Source:** FLUTE, section 7.1: what its figures plot.

    **Cost:** M d.

    >>> import jax.numpy as jnp
    >>> from clairjax.representation import mean_distance
    >>> mean_distance(jnp.array([[3.0, 4.0], [1.0, 0.0]]), jnp.zeros((2, 2))).item()
    3.0
    """
    return jnp.mean(jnp.sqrt(jnp.sum((coefficients - truth) ** 2, 1)))


def input_status(clients: LinearClients) -> Status:
    """Squares that overflow count as infinite, too."""
    total = jnp.sum(clients.square) + jnp.sum(clients.moment**2)
    data = [leaf for leaf in (clients.gram, clients.inputs) if leaf is not None]
    total = total + jnp.sum(data[0] ** 2)
    return Status.where(jnp.isfinite(total), Status.converged, Status.nonfinite_input)


def argument_status(in_range: Bool[Array, ""] | bool) -> Status:
    """What the guards could not look at, because it is traced, as a status."""
    return Status.where(in_range, Status.converged, Status.invalid_argument)
