"""Penalties and a first row space from the data alone."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._precision import HIGHEST
from .._typing import ScalarLike
from ._clients import Clients
from ._contrasts import low_quantile, pair_squared_distances, pair_variances
from ._factored import at_rest, initial_factor, step
from ._majority import majority_reach, votes_needed
from ._program import Penalty, Start, leading


# λ_L as a share of the smallest value that makes the low-rank part vanish. From dense to sparse: a column of the
# factor that has shrunk to zero does not come back.
PATH = (0.45, 0.53, 0.62, 0.72, 0.85)
# With 4, contaminated clients among clients of mixed ranks become members where the noise is high.
STEPS_A_PENALTY = 12
# Huber threshold as a share of the contrasts within a majority: small, so that contaminated pairs pull little.
THRESHOLD_SHARE = 0.1


class Tuned(NamedTuple):
    penalty: Penalty
    basis: Float[Array, " in max_rank"]  # for the first vote, zeros beyond rank; refitting finds the final one
    rank: Int[Array, ""]
    start: Start  # for `Factored` at this penalty


@jax.named_scope("clairjax.tune")
def tune(
    clients: Clients,
    pair_weights: Float[Array, "clients clients"],
    max_rank: int,
    rank: int | None,
    vote_share: ScalarLike,
    variances: Float[Array, " clients"],
) -> Tuned:
    """Walk a path of λ_L at fixed λ_S; keep the penalty whose row space leaves a majority closest together.

    λ_S is a tenth of the weighted contrasts within a majority, of `majority_reach`. The median over pairs would be set
    by contaminated clients that are more than 29 %. The loss is then close to Σ‖D_g − L_g‖_F, and the path needs no
    noise level: L = 0 is optimal from λ_L = λ_S ‖stack of D_g/‖D_g‖‖_op on. The path is a fixed set of shares of that.
    Each penalty gets `STEPS_A_PENALTY` steps from where the penalty before it ended.

    Each λ_L and each number r of leading directions has a score. Let m_k be the off-subspace distance from client k to
    its h-th nearest, with squares over the noise variance of their pair. The score is the log of the (h + 1)-th
    smallest m_k² per degree of freedom, q(p − r). No minority can lower this least trimmed squares criterion. More
    directions lower it a little by fitting noise. So the smallest r is taken whose score is within two standard
    deviations of the best, and for it the largest λ_L within one. `_select` sees to noise far from white. r is at most
    half of p: the rest must show the noise.
    """
    count, _, in_ = clients.shape
    distances = pair_squared_distances(clients.inner_products())
    dtype = distances.dtype
    needed = votes_needed(count, vote_share)
    noise = pair_variances(variances)
    contrasts = jnp.sqrt(distances) * pair_weights
    scale = majority_reach(contrasts, needed)
    scale = jnp.where(scale > 0, scale, jnp.max(contrasts))
    sparse = jnp.maximum(jnp.asarray(THRESHOLD_SHARE, dtype) * scale, jnp.finfo(dtype).tiny ** 0.5)
    vanishing = sparse * _unit_stack_norm(clients, distances)
    vanishing = jnp.where(vanishing > 0, vanishing, sparse)
    freedom = clients.freedom(1 + jnp.arange(max_rank)).astype(dtype)  # of r = 1 … max_rank

    def at_penalty(start: Start, share: Array) -> tuple[Start, tuple[tuple[Array, Start, Array], Array]]:
        low_rank = share * vanishing
        penalty = Penalty(low_rank, sparse)
        state = jax.lax.fori_loop(
            0,
            STEPS_A_PENALTY,
            lambda _, state: step(clients, distances, penalty, pair_weights, state),
            at_rest(start),
        )
        start = Start(state.factor, state.weights)
        directions = _unit_columns(start.factor)
        return start, ((low_rank, start, directions), _log_spread(clients, distances, directions, noise, needed))

    first = Start(initial_factor(clients, distances, max_rank), pair_weights)
    _, (path, spreads) = jax.lax.scan(at_penalty, first, jnp.asarray(PATH, dtype))
    usable = jnp.arange(max_rank) < max(1, in_ // 2)
    scores = jnp.where(usable[None], spreads - jnp.log(jnp.maximum(freedom, 1))[None], jnp.inf)  # [path, rank]
    floor = jnp.finfo(dtype).tiny
    none = jnp.log((majority_reach(distances / noise, needed) + floor) / clients.freedom(jnp.asarray(0)).astype(dtype))
    place, chosen_rank = _select(none, scores, freedom, rank)
    low_rank, start, directions = jax.tree.map(lambda leaf: jnp.take(leaf, place, axis=0), path)
    return Tuned(Penalty(low_rank, sparse), leading(directions, chosen_rank), chosen_rank, start)


def _select(
    none: Float[Array, ""], scores: Float[Array, "path max_rank"], freedom: Float[Array, " max_rank"], rank: int | None
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The smallest rank, and for it the largest penalty, that noise cannot tell from the best score.

    A rank above half of those tried says that the noise has fewer dimensions than white noise, as that of trained LoRA
    factors. Then every direction lowers the score, and shared directions do so most.
    """
    variance = 2 / jnp.maximum(freedom, 1)  # of the log of a mean square
    if rank is None:
        best = jnp.min(scores, axis=0)
        winner = jnp.argmin(best)
        deviation = jnp.sqrt(variance + variance[winner])
        column = jnp.argmax(best <= best[winner] + 2 * deviation)
        tried = jnp.sum(jnp.isfinite(best), dtype=column.dtype)
        column = jnp.where(2 * column >= tried, _elbow(none, best, jnp.sqrt(variance)), column)
    else:
        column = jnp.asarray(rank - 1)
    path = scores[:, column]
    within = path <= jnp.min(path) + jnp.sqrt(variance[column])
    place = scores.shape[0] - 1 - jnp.argmax(within[::-1])
    return place, (column + 1).astype(jnp.int32)


def _elbow(
    none: Float[Array, ""], best: Float[Array, " max_rank"], deviation: Float[Array, " max_rank"]
) -> Int[Array, ""]:
    """The column whose drop in the score is the largest multiple of any later drop."""
    drops = -jnp.diff(jnp.concatenate([none[None], best]))
    drops = jnp.maximum(jnp.where(jnp.isfinite(drops), drops, 0), deviation)
    later = jnp.append(jax.lax.cummax(drops, reverse=True)[1:], jnp.max(drops))  # the last is no elbow
    return jnp.argmax(drops / later)


def _unit_stack_norm(clients: Clients, distances: Float[Array, "clients clients"]) -> Float[Array, ""]:
    """Spectral norm of the stack of D_g/‖D_g‖_F; pairs that coincide are left out."""
    apart = distances > jnp.finfo(distances.dtype).eps * low_quantile(distances)
    weights = jnp.where(apart, 1 / jnp.where(apart, distances, 1), 0)

    return jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(clients.scatter(weights))[-1], 0))


def _log_spread(
    clients: Clients,
    distances: Float[Array, "clients clients"],
    directions: Float[Array, " in max_rank"],
    noise: Float[Array, "clients clients"],
    needed: Int[Array, ""],
) -> Float[Array, " max_rank"]:
    """Log of the (h + 1)-th smallest m_k² off the r leading directions, for r = 1 … max_rank."""
    rows = clients.times(directions)
    along = jax.vmap(pair_squared_distances)(jnp.einsum("jqr,kqr->rjk", rows, rows, precision=HIGHEST))
    floor = jnp.finfo(distances.dtype).eps * low_quantile(distances) + jnp.finfo(distances.dtype).tiny
    left = jnp.maximum(distances[None] - jnp.cumsum(along, axis=0), 0)  # [max_rank, K, K]
    return jnp.log(majority_reach(left / noise[None], needed) + floor)


def _unit_columns(factor: Float[Array, " in max_rank"]) -> Float[Array, " in max_rank"]:
    """The principal directions of a factor that `step` made, largest first; a vanished column stays zero."""
    lengths = jnp.linalg.norm(factor, axis=0, keepdims=True)
    return factor / jnp.where(lengths > 0, lengths, 1)
