"""The server of the copying experiment: each attention matrix aggregated by itself, one verdict on each client."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..alignment import Penalty, clair, fedavg, oracle_fedavg, refine
from ._copying_clients import Cell
from ._replicates import status_number


class Published(NamedTuple):
    """S5's numbers."""

    penalty: Penalty
    threshold: float


PUBLISHED = {
    "homogeneous": Published(Penalty(0.5, 0.4), 0.5),
    "heterogeneous": Published(Penalty(0.5, 0.2), 0.01),
}
VOTE_SHARE = 0.5


class Verdict(NamedTuple):
    """What one CLAIR says of every layer and, together, of every client."""

    refined: Float[Array, "layers clients out in"]
    shrunk: Float[Array, "layers clients out in"]  # with shrinkage outside the row space
    smoothed: Float[Array, "layers clients out in"]  # with shrinkage over clients instead of a row space
    members: Bool[Array, " clients"]
    layers: Bool[Array, "layers clients"]  # each layer's own members
    votes: Float[Array, "layers clients"]
    ranks: Int[Array, " layers"]
    status: Int[Array, " layers"]


def aggregate(
    cell: Cell, attention: Float[Array, "layers clients out in"]
) -> tuple[dict[str, Float[Array, "layers clients out in"]], dict[str, Verdict]]:
    """Every method's matrices, and the verdicts of CLAIR as published and as it tunes itself.

    CLAIR runs in the default float of the process; the models are float32.
    """
    benign = jnp.arange(cell.clients) < cell.benign
    wide = attention.astype(float)
    published = judge_clients(wide, PUBLISHED[cell.regime], None)
    auto = judge_clients(wide, None, cell.tuning.rank)
    methods = {
        "local": wide,
        "fedavg": jax.vmap(fedavg)(wide),
        "oracle_fedavg": jax.vmap(lambda weights: oracle_fedavg(weights, benign))(wide),
        "published": published.refined,
        "auto": auto.refined,
        "shrink": auto.shrunk,
        "smooth": auto.smoothed,
    }
    narrow = {name: matrices.astype(attention.dtype) for name, matrices in methods.items()}
    return narrow, {"published": published, "auto": auto}


def judge_clients(
    attention: Float[Array, "layers clients out in"], settings: Published | None, rank: int | None
) -> Verdict:
    """Refine every layer with the clients that belong by all layers together.

    `rank` is that of the adapters, which the server knows: without it a contaminated client's own directions, that of
    a matrix of rank three, too, are found to be shared.

    The rule: a client's votes are averaged over the layers, and it is a member if the mean is at least α = 1/2. So (8)
    is read over the pairs of all layers; one layer in which benign clients differ, or in which the contaminated one
    does not, decides nothing.
    """

    def layer(weights: Float[Array, "clients out in"]) -> tuple[Array, ...]:
        if settings is None:
            found = clair(weights, rank=rank, vote_share=VOTE_SHARE)
        else:
            penalty, threshold = settings
            found = clair(weights, penalty=penalty, threshold=threshold, vote_share=VOTE_SHARE, refit=False)
        return found.members, found.votes, found.basis, found.rank, status_number(found.status)

    layers, votes, bases, ranks, status = jax.lax.map(layer, attention)
    members = votes.mean(0) >= VOTE_SHARE

    def refined(shrink: bool) -> Float[Array, "layers clients out in"]:
        return jax.vmap(lambda weights, basis, rank: refine(weights, members, basis, rank, shrink=shrink))(
            attention, bases, ranks
        )

    return Verdict(refined(False), refined(True), smooth(attention, members), members, layers, votes, ranks, status)


def smooth(
    attention: Float[Array, "layers clients out in"], members: Bool[Array, " clients"]
) -> Float[Array, "layers clients out in"]:
    """Members move towards their mean in every direction over clients that noise alone explains.

    The members' deviations from their mean, all layers of a client in one row, have as many singular values as there
    are members less one. Clients of one task differ by noise in so many dimensions that these are nearly equal; what
    their tasks make them differ in shows as a few larger ones. Each direction is kept by the share
    (1 − median λ / λ)₊ of its square λ, the Wiener filter at the median's noise. Equal tasks so give oracle FedAvg
    and unequal ones the local matrices, less noise. Not in the paper.
    """
    mean = jnp.where(members[None, :, None, None], attention, 0).sum(1, keepdims=True)
    mean = mean / jnp.maximum(members.sum(), 1).astype(attention.dtype)
    deviations = jnp.where(members[None, :, None, None], attention - mean, 0)
    gram = jnp.einsum("ljqp,lkqp->jk", deviations, deviations, precision=jax.lax.Precision.HIGHEST)
    squares, directions = jnp.linalg.eigh(gram)
    clients = len(members)
    # Zero by construction: one for each client that is no member, and one for the mean.
    empty = clients + 1 - members.sum(dtype=jnp.int32)
    others = clients - empty
    middle = jnp.clip(jnp.stack([empty + (others - 1) // 2, empty + others // 2]), 0, clients - 1)
    noise = squares[middle].mean()
    kept = jnp.where(
        jnp.arange(clients, dtype=jnp.int32) >= empty, 1 - noise / jnp.where(squares > noise, squares, noise), 0
    )
    kept = jnp.where(noise > 0, kept, 0)
    filter = jnp.matmul(directions * kept[None], directions.T, precision=jax.lax.Precision.HIGHEST)
    moved = mean + jnp.einsum("jk,lkqp->ljqp", filter, deviations, precision=jax.lax.Precision.HIGHEST)
    return jnp.where(members[None, :, None, None], moved, attention)
