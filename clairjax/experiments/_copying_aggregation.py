"""The server of the copying experiment: each attention matrix aggregated by itself, one verdict on each client."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._blend import CANDIDATES, one_t
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
CLIP, STEPS = 1.5, 200  # of a layer's usual size, the most of a client in the median; and Weiszfeld's steps


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

    The paper does not combine layers. Here a client's votes are averaged over layers. It is a member if the mean is at
    least α = 1/2: this is (8) over the pairs of all layers.
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
    """Refined updates by `clair` on the adapters' factors, nothing given, for shared rows and for shared columns.

    All adapters start from one A and B = 0, so their row spaces are near one another before any task is seen. What a
    client has learned is in its columns, which `shared="columns"` aligns. The verdict is `pool`'s, by all layers
    together; then each layer's row space, or column space, is refitted on the members.
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


def blends(
    own: Float[Array, "layers clients out in"],
    updates: Float[Array, "layers clients out in"],
    members: Bool[Array, " clients"],
) -> Float[Array, "t layers clients out in"]:
    """t · own + (1 − t) · the members' median, at each candidate t; who has no company keeps its own."""
    towards = members_median(updates, members)[:, None] - updates
    company = (members & (members.sum() > 1))[None, :, None, None]
    return jnp.stack([own + (1 - t) * jnp.where(company, towards, 0) for t in CANDIDATES])


def members_median(
    updates: Float[Array, "layers clients out in"], members: Bool[Array, " clients"]
) -> Float[Array, "layers out in"]:
    """Their geometric median over all layers together, each layer of a client clipped: what `adapters.save` shares."""
    sizes = jnp.sqrt(jnp.square(updates).sum((2, 3)))
    usual = jnp.nanmedian(jnp.where(members, sizes, jnp.nan), axis=1, keepdims=True)
    clipped = jnp.minimum(1, CLIP * usual / jnp.where(sizes > 0, sizes, 1))[..., None, None] * updates
    inner = jnp.einsum("lkij,lmij->km", clipped, clipped)
    counted = members.astype(updates.dtype)

    def step(_: Int[Array, ""], weights: Float[Array, " clients"]) -> Float[Array, " clients"]:
        squares = jnp.diag(inner) - 2 * inner @ weights + weights @ inner @ weights
        least = 1e-12 * jnp.diag(inner).max()
        new = counted / jnp.sqrt(jnp.maximum(squares, least))
        return new / jnp.maximum(new.sum(), least)

    weights = jax.lax.fori_loop(0, STEPS, step, counted / jnp.maximum(counted.sum(), 1))
    return jnp.einsum("k,lkij->lij", weights, jnp.nan_to_num(clipped))


def chosen(losses: Float[Array, "t clients"], members: Bool[Array, " clients"]) -> Int[Array, ""]:
    """The place of the t that serves the members' own losses best, one for all."""
    return one_t(jnp.where(members[:, None], losses.T, jnp.nan))
