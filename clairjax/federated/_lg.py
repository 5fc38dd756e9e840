"""LG-FedAvg: a shared head over personal bodies."""

from typing import Any

import equinox as eqx

from ._fedper import FedPer
from ._parts import Where


def below_the_last_two(model: Any) -> Any:
    """All of a `models.Network` but its last two dense layers."""
    return (*model.blocks, *model.dense[:-1])


class LGFedAvg(FedPer):
    """Every client has a representation of its own, and the layers above it are averaged: FedPer upside down.

    - `head`: picks what is personal, here the layers below; all but the last two dense layers of a `models.Network` if
      not given, as in FLUTE's code. The others: as in `FedPer`.

    **Source:** Liang et al. 2020; FLUTE, 7.2 (Fed-LG).

    >>> from clairjax.federated import LGFedAvg
    >>> one_layer_shared = LGFedAvg(head=lambda model: (*model.blocks, *model.dense))
    """

    head: Where = eqx.field(static=True, default=below_the_last_two)
