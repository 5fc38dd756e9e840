"""One verdict on each client from many layers."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _validate
from ._evidence import Evidence, evidence, of_factors
from ._low_rank import LowRankMatrices, client_factors
from ._standing import Verdict, standing


def pool(layers: Iterable[Any], clients: Iterable[Sequence[int]] | None = None) -> Verdict:
    """Say of each client, by all layers together, how it stands to the others: by direction, size and row space.

    A pair's agreement is the sum over layers of cosines, ⟨W_j, W_k⟩ / ‖W_j‖‖W_k‖, over the sum of overlaps of row
    spaces, tr(P_j P_k) / √(r_j r_k). Two adapters of different A can have no larger cosine. A client's agreement is
    what it reaches with half of the others. It is compared with what is usual and its spread, a median and a median
    deviation over the clients that are not low. That is done by the agreement and by the plain cosine, and the better
    counts. Nothing but the fleet itself sets what is usual.

    - *unrelated*: agrees less than half as much as is usual, by more than the spread explains. Nor does it agree with
      a member as members do, the lowest tenth of their pairs left out. Nor has it of its own what members have: the
      size of what the members' updates do not explain, where these have more in common than of their own.
    - *sign-flipped*: agrees as much, with the other sign.
    - *other rows*: WᵀW agrees less than half as much as is usual, where directions do not tell or are undiminished.
    - *rescaled*: over twice the usual size, or under half of it, beyond the spread. Its direction may be a member's.
    - *member*: none of these, and agrees at least half as much as is usual, or has such company or such an own part.
    - *undecided*: none of these. So are most where clients have little in common.
    - *absent*: in no layer, or with zeros in all.

    Clients that sent one matrix up to its scale, or nearly, in most layers have one vote together. If half of the
    fleet agrees on something, that is what is usual.

    **Args:**

    - `layers`: of each the matrices of three or more clients, [clients, out, in] or `LowRankMatrices`, float32 or
      float64, or their `Evidence`. Shapes may differ between layers. An iterator is read one layer at a time. Or
      one `Evidence` with an axis of layers in front, as of `jax.lax.map(clairjax.alignment.evidence, …)`.
    - `clients`: of each layer the places of its clients in the fleet, from 0; None if all are in every layer.

    **Returns:** `Verdict`, over the fleet, in NumPy arrays of float64. Inside a trace, in the layers' type.

    **Raises:** `ValueError` for no layer, and for layers and places that do not fit. Likewise for a layer of fewer
    than three clients, or with values that are not finite.

    **Source:** not in CLAIR, which votes on each matrix alone. Off-subspace distances of adapters that were trained
    tell contaminated clients from members no better than a coin; these agreements do.

    **Cost:** of factors K²r²(out + in) a layer, of others K·in³; memory of one layer and K² a layer. Nothing is
    compiled outside a trace.

    >>> import numpy as np
    >>> import clairjax as cj
    >>> draw = np.random.default_rng(0).normal
    >>> task, layers = draw(size=(4, 1, 9, 8)), draw(size=(4, 6, 9, 8))
    >>> layers = task + 0.5 * layers
    >>> layers[:, 4] *= -1
    >>> layers[:, 5] *= 7
    >>> cj.alignment.pool(layers).words
    ['member', 'member', 'member', 'member', 'sign-flipped', 'rescaled']
    """
    if isinstance(layers, Evidence):
        return standing(layers)
    found: list[tuple[Evidence, list[int]]] = []
    places = iter(()) if clients is None else iter(clients)
    for number, weights in enumerate(layers):
        name = f"layers[{number}]"
        seen = _evidence(weights, name)
        count = seen.size.shape[0]
        mine = list(range(count)) if clients is None else _places(next(places, None), count, number)
        if clients is None and found and count != len(found[0][1]):
            raise _validate.fail(name, f"from {len(found[0][1])} clients, as layers[0] is, if clients is None", count)
        found.append((seen, mine))
    if not found:
        raise _validate.fail("layers", "at least one layer", "none")
    if clients is not None and next(places, None) is not None:
        raise _validate.fail("clients", f"of as many layers as layers, {len(found)}", "more")
    count = 1 + max(max(mine) for _, mine in found)
    return standing(stacked([seen for seen, _ in found], [mine for _, mine in found], count))


def stacked(layers: Sequence[Evidence], places: Sequence[Sequence[int]], count: int) -> Evidence:
    """Layers of some clients each, as layers of all `count`."""

    def spread(table: Any, mine: Sequence[int]) -> Any:
        if list(mine) == list(range(count)):
            return table
        at = (np.array(mine),) if table.ndim == 1 else np.ix_(mine, mine)
        if isinstance(table, jax.Array):
            return jnp.zeros((count,) * table.ndim, table.dtype).at[at].set(table)
        whole = np.zeros((count,) * table.ndim, table.dtype)
        whole[at] = table
        return whole

    number = jnp if isinstance(layers[0].size, jax.Array) else np
    whole = [[spread(table, mine) for table in seen] for seen, mine in zip(layers, places, strict=True)]
    return Evidence(*(number.stack(tables) for tables in zip(*whole, strict=True)))


def _evidence(weights: Any, name: str) -> Evidence:
    if isinstance(weights, Evidence):
        return weights
    if isinstance(weights, LowRankMatrices):
        weights = client_factors(weights, name)
        parts = (weights.up, weights.down, weights.scale)
        if not all(map(_validate.concrete, parts)):
            return evidence(weights)
        up, down, scale = (np.asarray(part, np.float64) for part in parts)
        return of_factors(up, scale[:, None, None] * down)
    weights = _validate.client_matrices(weights, name)
    return evidence(np.asarray(weights, np.float64) if _validate.concrete(weights) else weights)


def _places(places: Any, count: int, number: int) -> list[int]:
    name = f"clients[{number}]"
    if places is None:
        raise _validate.fail("clients", "of as many layers as layers", number)
    mine = np.asarray(places)
    if mine.shape != (count,) or not np.issubdtype(mine.dtype, np.integer):
        raise _validate.fail(name, f"{count} integers, the places of the clients of layers[{number}]", places)
    if mine.min() < 0 or len(set(mine.tolist())) < count:
        raise _validate.fail(name, "different places, from 0", places)
    return mine.tolist()
