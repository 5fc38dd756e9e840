"""The server of the copying experiment: each attention matrix aggregated by itself, one verdict on each client."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..alignment import (
    Evidence,
    LowRankMatrices,
    Penalty,
    clair,
    elect,
    evidence,
    fedavg,
    oracle_fedavg,
    pool,
    refine,
)
from ..alignment import Verdict as Pooled
from ._copying_clients import Cell, Fleet
from ._status_number import status_number


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
    """What CLAIR says of every client by all layers together, and of every layer by itself."""

    members: Bool[Array, " clients"]
    layers: Bool[Array, "layers clients"]  # each layer's own members
    ranks: Int[Array, " layers"]
    status: Int[Array, " layers"]


def aggregate(
    cell: Cell, fleet: Fleet, frozen: Float[Array, "layers out in"]
) -> tuple[dict[str, Float[Array, "layers clients out in"]], dict[str, Verdict], Pooled]:
    """Every method's matrices, the verdicts of CLAIR as published and as it tunes itself, and `pool`'s.

    `frozen` are the backbone's matrices, which the adapters update. CLAIR runs in the default float of the process;
    the models are float32.
    """
    benign = jnp.arange(cell.clients) < cell.benign
    wide, up, down = (array.astype(float) for array in (fleet.attention, fleet.up, fleet.down))
    methods = {
        "local": wide,
        "fedavg": jax.vmap(fedavg)(wide),
        "oracle_fedavg": jax.vmap(lambda weights: oracle_fedavg(weights, benign))(wide),
    }
    methods["published"], published = as_published(wide, PUBLISHED[cell.regime])
    updates, verdicts, pooled = by_factors(up, down, cell.scale)
    methods |= {name: frozen.astype(float)[:, None] + update for name, update in updates.items()}
    narrow = {name: matrices.astype(fleet.attention.dtype) for name, matrices in methods.items()}
    return narrow, {"published": published, **verdicts}, pooled


def as_published(
    attention: Float[Array, "layers clients out in"], settings: Published
) -> tuple[Float[Array, "layers clients out in"], Verdict]:
    """Refined matrices by the paper's procedure on merged matrices, and its verdict.

    The paper does not combine layers. Here a client's votes are averaged over them, and it is a member if the mean is
    at least α = 1/2: (8) read over the pairs of all layers.
    """

    def layer(weights: Float[Array, "clients out in"]) -> tuple[Array, ...]:
        found = clair(weights, **settings._asdict(), vote_share=VOTE_SHARE, refit=False)
        return found.votes, found.basis, found.members, found.rank, status_number(found.status)

    votes, bases, *layers = jax.lax.map(layer, attention)
    members = votes.mean(0) >= VOTE_SHARE

    def keep(weights: Float[Array, "clients out in"], basis: Float[Array, " in max_rank"]) -> Array:
        return refine(weights, members, basis=basis)

    return jax.vmap(keep)(attention, bases), Verdict(members, *layers)


def by_factors(
    up: Float[Array, "layers clients out rank"], down: Float[Array, "layers clients rank in"], scale: float
) -> tuple[dict[str, Float[Array, "layers clients out in"]], dict[str, Verdict], Pooled]:
    """Refined updates by `clair` on the adapters' factors, nothing given, for a shared row space and its dual.

    All adapters start from one A and B = 0, so their row spaces are near one another before any task is seen; what a
    client has learned is in its columns, which the dual aligns. The verdict is `pool`'s, by all layers together; then
    each layer's row space, or column space, is refitted on the members.
    """
    sides = {"auto": "rows", "dual": "columns"}

    def vote(factors: tuple[Array, Array]) -> tuple[Evidence, dict[str, tuple[Array, ...]]]:
        matrices = LowRankMatrices(*factors, scale)
        found = {name: elect(matrices, shared=side) for name, side in sides.items()}
        return evidence(matrices), {
            name: (each.members, each.rank, status_number(each.status)) for name, each in found.items()
        }

    seen, found = jax.lax.map(vote, (up, down))
    pooled = pool(seen)
    members = jnp.asarray(pooled.members)

    def layer(factors: tuple[Array, Array]) -> dict[str, Array]:
        refined = {}
        for name, side in sides.items():
            for shrink, title in ((False, name), (True, f"{name}_shrink")):
                matrices = LowRankMatrices(*factors, scale)
                refined[title] = refine(matrices, members, shared=side, shrink=shrink).dense()
        return refined

    verdicts = {name: Verdict(members, *each) for name, each in found.items()}
    return jax.lax.map(layer, (up, down)), verdicts, pooled
