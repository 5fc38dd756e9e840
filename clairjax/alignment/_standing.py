"""Where each client of a fleet stands: by direction, by row space and by size, all relative to the fleet itself."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from ._evidence import Either, Evidence, Numbers, divisor
from ._median import median, smallest
from ._own import own_parts


VERDICTS = ("member", "rescaled", "sign-flipped", "unrelated", "other rows", "undecided", "absent")
MEMBER, RESCALED, FLIPPED, UNRELATED, OTHER_ROWS, UNDECIDED, ABSENT = range(len(VERDICTS))

RATIO = 0.5  # of the usual agreement; who is below it can be low
FEW = 0.3  # so low that half the distance is enough
LEAST = 0.1  # agreement that unrelated adapters of one base model can have
FLOOR = 0.1  # the least spread: of the usual agreement, and of logarithms of sizes
ALIKE = 0.3  # of the usual agreement; where clients spread further, one who differs is no news
SIZE = 2.0  # times the usual size, or one part in it
QUANTILE = 2.33  # of a normal law, one in a hundred
PAIRS = 10  # of so many pairs of members one agrees less than honest clients need to
STRONG = 0.25  # of the median component of the leading direction; below it a sign is noise
ROUNDS = 5


class Verdict(eqx.Module):
    """What `pool` says of each client, in NumPy arrays unless traced.

    - `kind`: a place in `clairjax.alignment.VERDICTS`; `words` spells it out.
    - `members`: who agrees with the others as is usual, or has of its own as much as they, or agrees with one of them
      as members do. A member may be `rescaled`.
    - `agreement`: the cosine with the middle one of the others, over what the overlap of row spaces allows.
    - `usual`, `spread`: the middle client's agreement, and how far others are from it; `decided`: whether they agree
      enough, and alike enough, for directions to tell who is odd.
    - `relative`: agreement over the usual one, the larger of corrected and plain cosine; `surprise`: how many spreads
      it is from the usual one, of both the larger.
    - `size`: over the usual size. `rows`: agreement of row spaces over the usual one, whole or of what is
      a client's own, whichever is less.
    - `copies`: pairs that sent one matrix up to its scale, or nearly, in most layers.
    - `together`: pairs of unrelated clients that agree with each other; and of a member that agrees little with most,
      the members that vouch for it.
    - `overlap`: of the row spaces of two clients, the usual one; near 1 where all started from one A.
    - `layer_agreement`, `layer_size`: the same in each layer; NaN where a client is absent.
    """

    kind: Int[Numbers, " clients"]
    members: Bool[Numbers, " clients"]
    agreement: Float[Numbers, " clients"]
    relative: Float[Numbers, " clients"]
    surprise: Float[Numbers, " clients"]
    size: Float[Numbers, " clients"]
    rows: Float[Numbers, " clients"]
    copies: Bool[Numbers, "clients clients"]
    together: Bool[Numbers, "clients clients"]
    usual: Float[Numbers, ""]
    spread: Float[Numbers, ""]
    decided: Bool[Numbers, ""]
    overlap: Float[Numbers, ""]
    layer_agreement: Float[Numbers, "layers clients"]
    layer_size: Float[Numbers, "layers clients"]

    @property
    def words(self) -> list[str]:
        return [VERDICTS[place] for place in np.asarray(self.kind).tolist()]


class _Level(NamedTuple):
    """One kind of agreement: each client's with the core, the core's usual one, and its spread."""

    mine: Either
    usual: Either
    spread: Either

    @property
    def relative(self) -> Either:
        return self.mine / _or_infinite(self.usual)

    @property
    def surprise(self) -> Either:
        return (self.mine - self.usual) / _or_infinite(self.spread)


class _Fleet(NamedTuple):
    """Tables over pairs, by all layers that both are in; who has a vote, and which pairs are compared."""

    corrected: Either
    plain: Either
    rows: Either
    apart: Either
    overlap: Either
    chance: Either  # standard deviation of the corrected agreement of unrelated clients
    copies: Either
    present: Either
    voters: Either
    compared: Either


class _Directions(NamedTuple):
    low: Either
    corrected: _Level
    plain: _Level
    relative: Either
    surprise: Either
    decided: Either


def standing(layers: Evidence) -> Verdict:
    """By all layers of `layers`, which has their axis in front. Nothing is compiled where these are NumPy's."""
    with jax.default_matmul_precision("highest"), jax.numpy_rank_promotion("allow"):
        return _standing(layers)


def _standing(layers: Evidence) -> Verdict:
    xp: Any = layers.cosine.__array_namespace__()
    fleet = _fleet(layers)
    signs = _signs(fleet)
    core = fleet.voters
    for _ in range(ROUNDS):
        without = fleet.voters & ~_directions(fleet, core, signs).low
        core = xp.where(without.sum() >= xp.maximum(3, fleet.voters.sum() // 2 + 1), without, core)
    found = _directions(fleet, core, signs)
    cut = limit_for(core.sum().astype(fleet.plain.dtype))
    layer_sizes, apart, far = _sizes(layers, core, cut)
    own = own_parts(fleet.plain, (fleet.chance * fleet.overlap) ** 2, xp.exp(apart), core)
    # Who learned little of what is common agrees little, and has of its own what others have.
    weak = own.usual & (signs > 0) & (found.relative < RATIO)
    kin = (found.low & ~own.strange)[:, None] & _kin(fleet, core, signs)
    low = found.low & ~weak & ~kin.any(1)
    decided = found.decided & (found.corrected.spread <= ALIKE * found.corrected.usual)
    agree = decided | (found.decided & own.told)
    rows, own_rows = (_level(table, fleet, core) for table in (fleet.rows, fleet.apart))
    # Who started from another A overlaps and agrees less in proportion; that is nothing to be named for.
    own_start = _level(fleet.overlap, fleet, core).relative < RATIO
    undiminished = ~found.decided | (found.plain.mine > RATIO * found.plain.usual) | ~own_start
    other_rows = undiminished & (_few(rows, cut) | _few(own_rows, cut))
    here = median(layers.cosine / divisor(layers.overlap), fleet.compared & layers.present[:, None] & core)
    members = fleet.present & agree & ((found.relative >= RATIO) | weak | kin.any(1)) & ~low & ~other_rows
    kind = xp.where(members, MEMBER, UNDECIDED)
    for name, holds in {
        RESCALED: far,
        OTHER_ROWS: other_rows,
        UNRELATED: low & decided,
        FLIPPED: low & (found.relative < -RATIO),
        ABSENT: ~fleet.present,
    }.items():
        kind = xp.where(holds, name, kind)
    return Verdict(
        kind=kind,
        members=members,
        agreement=found.corrected.mine,
        relative=found.relative,
        surprise=found.surprise,
        size=xp.exp(apart),
        rows=xp.minimum(rows.relative, own_rows.relative),
        copies=fleet.copies,
        together=_together(fleet, kind == UNRELATED, found.corrected.mine) | (kin & members[:, None]),
        usual=xp.asarray(found.corrected.usual),
        spread=xp.asarray(found.corrected.spread),
        decided=xp.asarray(decided),
        overlap=xp.asarray(median(fleet.overlap.reshape(-1), (core[:, None] & core & fleet.compared).reshape(-1))),
        layer_agreement=xp.where(layers.present, here, np.nan),
        layer_size=xp.where(layers.present, xp.exp(layer_sizes), np.nan),
    )


def _fleet(layers: Evidence) -> _Fleet:
    xp: Any = layers.cosine.__array_namespace__()
    pairs = layers.present[:, :, None] & layers.present[:, None]
    tables = (each.astype(layers.cosine.dtype) for each in (pairs, *layers[:6]))
    sums = (xp.where(pairs, each, 0).sum(0) for each in tables)
    number, cosine, overlap, chance, rows, apart, near = sums
    own = np.eye(len(number), dtype=bool)
    present = layers.present.any(0)
    copies = (2 * near > number) & ~own
    # Copies have one vote together, the first one's. Where too few are left, all have their own.
    first = present & ~(copies & np.tri(len(number), k=-1, dtype=bool)).any(1)
    once = first.sum() >= 3
    return _Fleet(
        corrected=cosine / divisor(overlap),
        plain=cosine / divisor(number),
        rows=rows / divisor(number),
        apart=apart / divisor(number),
        overlap=overlap / divisor(number),
        chance=xp.sqrt(chance) / divisor(overlap),
        copies=copies,
        present=present,
        voters=xp.where(once, first, present),
        compared=(number > 0) & ~own & ~(copies & once),
    )


def _signs(fleet: _Fleet) -> Either:
    """−1 for clients that point against most. Agreements are cut at the median one, or a tight group would lead."""
    xp: Any = fleet.plain.__array_namespace__()
    pairs = fleet.compared & fleet.voters[:, None] & fleet.voters
    unit = median(abs(fleet.corrected).reshape(-1), pairs.reshape(-1))
    leading = xp.linalg.eigh(xp.where(pairs, xp.clip(fleet.corrected, -unit, unit), 0))[1][:, -1]
    # Copies without a vote point as the voters do with whom they agree.
    leading = xp.where(fleet.voters, leading, xp.where(fleet.compared, fleet.corrected, 0) @ leading)
    strong = abs(leading) > STRONG * median(abs(leading), fleet.voters)
    forwards = (strong & fleet.voters & (leading > 0)).sum()
    leading = xp.where(2 * forwards >= (strong & fleet.voters).sum(), leading, -leading)
    return xp.where(strong & (leading < 0), -1, 1).astype(fleet.plain.dtype)


def _directions(fleet: _Fleet, core: Either, signs: Either) -> _Directions:
    """Low is who agrees less with the core than is usual, by both cosines: few directions make the corrected wrong."""
    xp: Any = fleet.plain.__array_namespace__()
    corrected, plain = (_level(table, fleet, core, signs) for table in (fleet.corrected, fleet.plain))
    relative = signs * xp.maximum(signs * corrected.relative, signs * plain.relative)
    surprises = corrected.surprise, plain.surprise
    surprise = xp.where(signs > 0, xp.maximum(*surprises), xp.minimum(*surprises))
    pairs = core[:, None] & core & fleet.compared
    chance = median(fleet.chance.reshape(-1), pairs.reshape(-1))
    decided = corrected.usual >= xp.maximum(LEAST, 3 * chance)
    cut = limit_for(core.sum().astype(fleet.plain.dtype))
    low = ((relative < RATIO) & (surprise < -cut)) | ((relative < FEW) & (surprise < -cut / 2))
    return _Directions(low & decided & fleet.present, corrected, plain, relative, surprise, decided)


def _kin(fleet: _Fleet, core: Either, signs: Either) -> Either:
    """Pairs of a client and one of the core that agree as pairs in the core do, but the lowest tenth of these.

    Where tasks differ, a client at the edge agrees with its neighbours and little with most. Clients that are low are
    not in the core, so that colluders cannot vouch for each other.
    """
    close = fleet.compared & core
    pairs = (close & core[:, None]).reshape(-1)
    for table in (fleet.corrected, fleet.plain):
        least = smallest((signs[:, None] * signs * table).reshape(-1), pairs, PAIRS)
        close = close & (signs * table >= least)
    return close


def _level(table: Either, fleet: _Fleet, core: Either, signs: Either | None = None) -> _Level:
    """A client's agreement is what it reaches with half of the core. With `signs`, what is usual is of clients turned
    the same way."""
    xp: Any = table.__array_namespace__()
    signs = xp.ones_like(table[0]) if signs is None else signs
    mine = median(signs[:, None] * signs * table, fleet.compared & core, mean=False)
    usual = median(mine, core)
    both, upwards = (median(abs(mine - usual), core & side) for side in (True, mine >= usual))
    # Contaminated clients in the core agree less, so that deviations upwards can be the better.
    return _Level(signs * mine, usual, xp.maximum(1.4826 * xp.minimum(both, upwards), FLOOR * abs(usual)))


def _sizes(layers: Evidence, core: Either, cut: Either) -> tuple[Either, Either, Either]:
    """Logarithms of each client's size over the usual one, by layer and their median; and who is far."""
    xp: Any = layers.size.__array_namespace__()
    sizes = xp.log(xp.where(layers.present, layers.size, 1))
    usual = median(sizes, layers.present & core)
    by_layer = sizes - usual[:, None]
    sizes = median(by_layer.T, layers.present.T)
    apart = sizes - median(sizes, core)
    spread = xp.maximum(1.4826 * median(abs(apart), core), FLOOR)
    return by_layer, apart, (abs(apart) > math.log(SIZE)) & (abs(apart) > cut * spread)


def _few(level: _Level, cut: Either) -> Either:
    return (level.relative < RATIO) & (level.surprise < -cut)


def _together(fleet: _Fleet, odd: Either, agreement: Either) -> Either:
    """Of unrelated clients, pairs that agree as members do, and more than either does with them."""
    xp: Any = fleet.plain.__array_namespace__()
    beyond = xp.maximum(abs(agreement)[:, None], abs(agreement))
    agree = fleet.corrected >= xp.maximum(xp.maximum(LEAST, 2 * beyond), 3 * fleet.chance)
    return odd[:, None] & odd & ((agree & fleet.compared) | fleet.copies)


def limit_for(number: Either) -> Either:
    """Spreads from the median of `number` normal values that one in a hundred reaches; simulated."""
    return QUANTILE * (1 + 4 / (number - 2))


def _or_infinite(scale: Either) -> Either:
    xp: Any = scale.__array_namespace__()
    return xp.where(scale > 0, scale, np.inf)
