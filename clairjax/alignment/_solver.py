"""What the drivers ask of a solver of the convex programs."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Bool, Float

from .. import _validate
from .._typing import ScalarLike
from ._clients import Clients
from ._program import Decomposition, Penalty, Start


class Solver(eqx.Module):
    """Options of an algorithm. `max_steps` (static) bounds its steps, `rtol` is the certificate to stop at."""

    max_steps: eqx.AbstractVar[int]
    rtol: eqx.AbstractVar[ScalarLike | None]

    def __check_init__(self):
        _validate.at_least(self.max_steps, "max_steps", 1)

    @abstractmethod
    def solve(
        self,
        clients: Clients,
        penalty: Penalty,
        pair_weights: Float[Array, "clients clients"],
        start: Start | None = None,
    ) -> Decomposition:
        """Solve the program for the clients, from `start` if the algorithm can use it."""

    def rank_bound(self, in_: int) -> int:
        """Columns of the basis that it gives."""
        return in_

    def check(self) -> Bool[Array, ""] | bool:
        """Refuses options out of range by name; whether those inside a trace are in range."""
        if self.rtol is not None:
            _validate.not_negative(self.rtol, "solver.rtol")
        return _validate.traced_in_range(not_negative=[self.rtol])
