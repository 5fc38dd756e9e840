"""The server of the copying experiment: each attention matrix aggregated by itself, one verdict on each client."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..alignment import (
    LowRankMatrices,
    Penalty,
    clair,
    fedavg,
    oracle_fedavg,
    refine,
    refine_members,
)
from ._copying_clients import Cell, Fleet
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
# Of reaches: the middle of the gap between honest clients and strangers in 26 fleets that no table is made of.
FAR = 1.67


class Verdict(NamedTuple):
    """What CLAIR says of every client by all layers together, and of every layer by itself."""

    members: Bool[Array, " clients"]
    layers: Bool[Array, "layers clients"]  # each layer's own members
    ranks: Int[Array, " layers"]
    status: Int[Array, " layers"]


def aggregate(
    cell: Cell, fleet: Fleet, frozen: Float[Array, "layers out in"]
) -> tuple[dict[str, Float[Array, "layers clients out in"]], dict[str, Verdict], Float[Array, " clients"]]:
    """Every method's matrices, the verdicts of CLAIR as published and as it tunes itself, and the latter's reaches.

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
    updates, verdicts, far = by_factors(up, down, cell.scale)
    methods |= {name: frozen.astype(float)[:, None] + update for name, update in updates.items()}
    narrow = {name: matrices.astype(fleet.attention.dtype) for name, matrices in methods.items()}
    return narrow, {"published": published, **verdicts}, far


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
    keep = lambda weights, basis, rank: refine(weights, members, basis, rank, shrink=False)
    return jax.vmap(keep)(attention, bases, layers[1]), Verdict(members, *layers)


def by_factors(
    up: Float[Array, "layers clients out rank"], down: Float[Array, "layers clients rank in"], scale: float
) -> tuple[dict[str, Float[Array, "layers clients out in"]], dict[str, Verdict], Float[Array, " clients"]]:
    """Refined updates by `clair` on the adapters' factors, nothing given, for a shared row space and its dual.

    All adapters start from one A and B = 0, so their row spaces are near one another before any task is seen; what a
    client has learned is in its columns, which the dual aligns. One verdict from both and from the contrasts as they
    are: a client is out if its reach is over `FAR`. Then each layer's row space, or column space, is refitted on the
    members.
    """
    sides = {"auto": lambda matrices: matrices, "dual": lambda matrices: matrices.mT}

    def vote(factors: tuple[Array, Array]) -> tuple[Array, dict[str, tuple[Array, ...]]]:
        matrices = LowRankMatrices(*factors, scale)
        found = {name: clair(turn(matrices)) for name, turn in sides.items()}
        return separations(matrices), {
            name: (each.off_subspace, each.members, each.rank, status_number(each.status))
            for name, each in found.items()
        }

    whole, found = jax.lax.map(vote, (up, down))
    far = reaches([whole, *(distances for distances, *_ in found.values())])
    members = far <= FAR

    def layer(factors: tuple[Array, Array]) -> dict[str, Array]:
        refined = {}
        for name, turn in sides.items():
            for shrink, title in ((False, name), (True, f"{name}_shrink")):
                result = refine_members(turn(LowRankMatrices(*factors, scale)), members, shrink=shrink)
                refined[title] = turn(result).dense()
        return refined

    verdicts = {name: Verdict(members, *each) for name, (_, *each) in found.items()}
    return jax.lax.map(layer, (up, down)), verdicts, far


def separations(weights: LowRankMatrices) -> Float[Array, "clients clients"]:
    """‖W_j − W_k‖_F."""
    dense = weights.dense()
    rows = dense.reshape(len(dense), -1)
    return jnp.linalg.norm(rows[:, None] - rows[None], axis=2)


def reaches(tables: list[Float[Array, "layers clients clients"]]) -> Float[Array, " clients"]:
    """How far each client is from the others by all layers together, the middle client's reach being 1.

    A pair's distance is its root mean square over the layers, each in units of the median pair's; a client's reach is
    the distance to as many others as a member needs votes, and of several kinds of distance the geometric mean. Votes
    of single layers, each a yes or no, are much weaker evidence: in some layers honest clients differ more than the
    stranger does.
    """
    count = tables[0].shape[-1]
    pairs = jnp.triu_indices(count, 1)

    def log_reach(distances: Float[Array, "layers clients clients"]) -> Float[Array, " clients"]:
        unit = jnp.median(distances[:, *pairs], axis=1)
        pooled = jnp.sum((distances / jnp.where(unit > 0, unit, 1)[:, None, None]) ** 2, axis=0)
        reach = jnp.sort(pooled, axis=1)[:, count // 2]  # the own zero is first
        return jnp.log(jnp.maximum(reach, jnp.finfo(reach.dtype).tiny)) / 2

    reach = jnp.stack([log_reach(table) for table in tables]).mean(0)
    return jnp.exp(reach - jnp.median(reach))
