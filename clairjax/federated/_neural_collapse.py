"""Neural collapse of heads: how far the classes' weights are from a simplex of equal angles."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .._typing import ScalarLike
from ..kernels import gram


@jax.named_scope("clairjax.neural_collapse")
def neural_collapse(
    head: Float[Array, "classes features"], mask: Bool[Array, " classes"], *, local: bool = False
) -> Float[Array, ""]:
    """Distance of a head's Gram matrix from that of a simplex: ‖HᵀH/‖HᵀH‖_F − uuᵀ ⊙ (I − 11ᵀ/m)/√(m − 1)‖_F.

    **Args:**

    - `head` [classes, features]: the weights of the last layer, Hᵀ. `mask` [classes]: u, the classes a client has.
    - `local`: m is the number of the client's own classes, not of all.

    **Returns:** the distance, in [0, 2]. Its derivative is 0 where the distance is, and where the head is 0. With all
    classes for m it cannot be 0 for a client that lacks some. At best it is 0.573 with 2 of 10, 0.313 with 5. With
    `local` and one class there is no simplex, and it is NaN.

    **Source:** FLUTE, (51); with `local` (57) and Averaged Local NC2 of C.2. Departs from print, where m is both the
    number of classes of a client and of all. Here it is all classes unless `local`, as in the authors' code.

    **Cost:** classes² · features multiplications.

    >>> import jax.numpy as jnp
    >>> from clairjax.federated import neural_collapse
    >>> triangle = jnp.array([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])
    >>> bool(neural_collapse(triangle, jnp.ones(3, bool)) < 1e-6)
    True
    """
    number = jnp.sum(mask).astype(head.dtype) if local else jnp.asarray(len(mask), head.dtype)
    several = number > 1
    products = gram(head.T)
    pairs = mask[:, None] & mask[None]
    simplex = jnp.where(pairs, jnp.eye(len(mask), dtype=head.dtype) - 1 / number, 0)
    distance = _norm(products / _norm(products, 1.0) - simplex / jnp.sqrt(jnp.where(several, number - 1, 1)))
    return jnp.where(several, distance, jnp.nan)


def neural_collapse_step(
    heads: Float[Array, "clients classes features"], masks: Bool[Array, "clients classes"], rate: ScalarLike
) -> Float[Array, "clients classes features"]:
    """The server's step: one of gradient descent on the mean of the clients' `neural_collapse`.

    A head moves by −`rate`/clients · ∇NC(H_i).

    **Source:** FLUTE, Algorithm 2, line 21. Departs from print: the mean, as in the authors' code, not the sum.

    **Cost:** a few times that of `neural_collapse`, for each client.

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.federated import neural_collapse, neural_collapse_step
    >>> heads, masks = jax.random.normal(jax.random.key(0), (2, 3, 4)), jnp.ones((2, 3), bool)
    >>> nearer = neural_collapse_step(heads, masks, 0.5)
    >>> bool((jax.vmap(neural_collapse)(nearer, masks) < jax.vmap(neural_collapse)(heads, masks)).all())
    True
    """
    mean = lambda heads: jnp.mean(jax.vmap(neural_collapse)(heads, masks))
    return heads - jnp.asarray(rate, heads.dtype) * jax.grad(mean)(heads)


def collapse_metrics(
    heads: Float[Array, "clients classes features"], masks: Bool[Array, "clients classes"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Global NC2 and Averaged Local NC2: the means over clients of both distances.

    Clients of one class have no local simplex and are left out of the second; NaN if all are. A head
    that is NaN makes both NaN.

    **Source:** FLUTE, C.2. **Cost:** that of `neural_collapse`, twice for each client.

    >>> import jax, jax.numpy as jnp
    >>> from clairjax.federated import collapse_metrics
    >>> heads, masks = jax.random.normal(jax.random.key(0), (2, 3, 4)), jnp.array([[True, True, False]] * 2)
    >>> [value.shape for value in collapse_metrics(heads, masks)]
    [(), ()]
    """
    at_large = jax.vmap(neural_collapse)(heads, masks)
    alone = jax.vmap(lambda head, mask: neural_collapse(head, mask, local=True))(heads, masks)
    several = jnp.sum(masks, 1) > 1  # not `nanmean`: a head that is NaN has to show
    return jnp.mean(at_large), jnp.mean(alone, where=several)


def _norm(matrix: Float[Array, "a b"], at_zero: ArrayLike = 0.0) -> Float[Array, ""]:
    """Frobenius norm with derivative 0 at 0, where it is `at_zero`."""
    square = jnp.sum(matrix**2)
    some = square != 0  # true of NaN: a head that is none is not at distance 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, square, 1)), jnp.asarray(at_zero, matrix.dtype))
