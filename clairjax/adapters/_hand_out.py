"""What `save` writes, in memory and for those who go on training: each at the rank and scale that it came with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from .. import _validate
from ._client import at_scale, blended
from ._folder import State, read_state
from ._names import GLOBAL
from ._options import check_options
from ._pool import Pool, Samples, pool
from ._refine import OWN, Refinement
from ._shared import Shared, median_tensors
from ._sharing import Sharing, find_sharing, share, undecided
from ._store import InMemory


Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class HandOut:
    """What the members of a `Refinement` share.

    - `sharing`: which t is theirs, None if nothing shows that sharing helps, and why; `t`: the same t.
    - `pool`: the geometric median's weights, None without a module that two members have; `errors`: of the median,
      relative, by module, at the largest rank.
    """

    refinement: Refinement
    sharing: Sharing
    pool: Pool | None = None
    shared: Shared | None = None
    errors: dict[str, float] = field(default_factory=dict)

    @property
    def t(self) -> float | None:
        return self.sharing.t

    def client(self, name: str, t: float) -> Tensors:
        """A member's t · own + (1 − t) · shared, its own tensors in every module that it does not share.

        **Raises:** `ValueError` for a client that is no member, and where the result does not fit the client's type.
        """
        if self.shared is None or name not in self.refinement.members:
            raise _validate.fail("name", "of a member who shares a module", repr(name))
        return blended(self.shared, name, t).at_own_scale()

    def truncation(self, name: str) -> float:
        """The largest relative error, over modules, of the members' median at the ranks of a member."""
        worst = 0.0
        for module in [] if self.shared is None else self.shared.places:
            if self.shared is not None and name in self.shared.places[module]:
                theirs = self.shared.template.modules[module]
                up, down = self.shared.store.get(GLOBAL, [theirs.up_key, theirs.down_key])
                squares = np.square(np.linalg.norm(up, axis=0) * np.linalg.norm(down, axis=1))
                lost = float(squares[self.refinement.rank_of(name, module) :].sum())
                kept = float(squares.sum()) / (1 - self.errors[module] ** 2)
                worst = max(worst, math.sqrt(lost / kept + self.errors[module] ** 2) if kept > 0 else 0.0)
        return worst

    def everyone(self, like: State) -> Tensors:
        """The members' median in the keys, ranks, scales and types of `like`, whose other tensors stay.

        **Raises:** `ValueError` where it does not fit a type.
        """
        tensors = dict(like.held)
        for module, theirs in {} if self.shared is None else self.shared.template.modules.items():
            if self.shared is None or (place := like.modules.get(module)) is None:
                continue
            up, down = self.shared.store.get(GLOBAL, [theirs.up_key, theirs.down_key])
            missing = max(0, place.rank - up.shape[1])
            up = np.pad(up[:, : place.rank], ((0, 0), (0, missing)))
            down = np.pad(down[: place.rank], ((0, missing), (0, 0)))
            pair = at_scale((up, down), like.settings.scale(module), GLOBAL, module, place.kind)
            tensors |= dict(zip((place.up_key, place.down_key), pair, strict=True))
        return tensors


def hand_out(refinement: Refinement, *, samples: Samples | None = None, blend: float | None = None) -> HandOut:
    """What the members share, as `save` finds it, without a file: for adapters of `from_states`.

    **Args:** `refinement`, of `refine`, whatever rank it was told. `samples`, `blend`: as in `save`.

    **Returns:** `HandOut`, whose adapters have the bits of what `save` writes with the same rank, over their scale.

    **Raises:** `ValueError` for arguments out of range, and for a median that does not fit the clients' type.

    **Cost:** as `save`. Memory of what is shared.

    >>> import clairjax as cj
    >>> cj.adapters.hand_out(refinement).client("hospital-2", 0.0)  # doctest: +SKIP
    """
    check_options(blend=blend)
    refinement = replace(refinement, rank=OWN)
    common = pool(refinement, samples)
    if not common.modules:
        return HandOut(refinement, undecided(refinement))
    median, tensors = median_tensors(refinement, common, None)
    store = InMemory({GLOBAL: tensors})
    shared, seen = share(refinement, common, median, store, None)
    return HandOut(refinement, find_sharing(shared, seen, blend, None, None), common, shared, median.errors)


def state(tensors: Mapping[str, np.ndarray], fields: object, name: str = "initial") -> State:
    """One adapter in memory, as PEFT's `get_peft_model_state_dict` and `adapter_config.json` have it.

    **Raises:** `ValueError` for what is not scale · B · A, naming the client, the module or the field.

    **Cost:** looks at no number.

    >>> import numpy as np
    >>> import clairjax as cj
    >>> sides = {"lora_A": np.zeros((2, 6), "float32"), "lora_B": np.zeros((5, 2), "float32")}
    >>> tensors = {f"base_model.model.layer.{side}.weight": one for side, one in sides.items()}
    >>> cj.adapters.state(tensors, {"peft_type": "LORA", "r": 2, "lora_alpha": 4}).modules["layer"].matrix
    (5, 6)
    """
    return read_state(tensors, fields, name)
