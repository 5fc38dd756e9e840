"""All that one run released about its users, and what that adds up to."""

import warnings
from collections.abc import Sequence

import equinox as eqx

from ._compose import Accountant, Adjacency, compose, host_number
from ._events import GaussianRounds


NEIGHBOUR = {
    "replace-one": "one user's data exchanged for any other (the clipped sum moves by twice the clip norm)",
    "add-or-remove-one": "one user more or fewer, by zero-out: the user's updates are there or are zero (the clipped "
    "sum moves by the clip norm)",
}
NOT_COVERED = (
    "n, the number of users: it is public and the same for both neighbours; whether somebody is a user is not hidden",
    "the key: who can guess it takes the noise away. It must be secret, new for each run, from the system's entropy "
    "(privacy.secret_key), and used once: two runs with one key have the same noise",
    "floating point: epsilon is of noise in real numbers. The low-order bits of floats can tell the neighbours apart "
    "all the same, unless each release was made by kernels.grid_gaussian_mechanism",
    "choices made by looking at the same data: hyper-parameters, the clip norm, the best round or run by validation",
    "what stays with the users (their heads), and whatever else of the run is published: errors, shares of clipped "
    "updates, statuses",
)


class Ledger(eqx.Module):
    """The events of one run, in order. The unit is the user: all of a user's data, in all events together.

    An algorithm puts it into its result as `privacy`. Two runs on the same users, with independent keys, spend
    `first + second`. With one key they have the same noise, and the difference of their releases has none: no ε
    holds then. A ledger does not see keys: a new `privacy.secret_key()` for each run is the caller's part.

    **Source:** CENTAUR, A.4: what the initialisation spends is added to what the rounds spend.

    >>> from clairjax import privacy
    >>> start = privacy.GaussianRounds(15.0, 5, label="initialisation", clients=1000)
    >>> run = privacy.Ledger((start, privacy.GaussianRounds(20.0, 40, clients=1000)))
    >>> round(run.epsilon(delta=1e-5), 3), round(run.part("rounds").epsilon(delta=1e-5), 3)
    (2.906, 2.594)
    >>> print(run.report(delta=1e-5).splitlines()[0])
    epsilon = 2.906 at delta = 1e-05 for one user under replace-one (pld).
    """

    events: tuple[GaussianRounds, ...]

    def __add__(self, other: "Ledger") -> "Ledger":
        """What two runs with independent keys spend together, on the same users."""
        return Ledger(self.events + other.events)

    def part(self, label: str) -> "Ledger":
        """The events with this label alone."""
        return Ledger(tuple(event for event in self.events if event.label == label))

    def epsilon(self, *, delta: float, adjacency: Adjacency = "replace-one", accountant: Accountant = "pld") -> float:
        """ε of everything together, at δ, under a named adjacency; see `privacy.epsilon` for the arguments.

        Warns when δ is not below 1 / number of users, where that is known. Asked for outside `jit` and `vmap`; of
        replicates that ran with one noise multiplier together, or of one replicate.
        """
        _warn_of_large(delta, self.events)
        return compose(self.events, delta, adjacency, accountant)

    def report(self, *, delta: float, adjacency: Adjacency = "replace-one", accountant: Accountant = "pld") -> str:
        """What to print beside an ε: unit, adjacency, δ, each part's rounds, sampling and ε, what is not covered."""
        total = self.epsilon(delta=delta, adjacency=adjacency, accountant=accountant)
        alone = lambda event: compose((event,), delta, adjacency, accountant)
        lines = [f"epsilon = {total:.4g} at delta = {delta:g} for one user under {adjacency} ({accountant})."]
        lines += [f"Neighbours: {NEIGHBOUR[adjacency]}.", "Covered:"]
        lines += [f"- {_describe(event)}; alone {alone(event):.4g}" for event in self.events]
        return "\n".join([*lines, "Not covered:", *(f"- {line}" for line in self._not_covered())])

    def _not_covered(self) -> tuple[str, ...]:
        if self.part("initialisation").events:
            return NOT_COVERED
        return ("the initialisation, none being recorded: it must not depend on the users' data", *NOT_COVERED)


def _describe(event: GaussianRounds) -> str:
    users = {
        "poisson": f"each user in a round with probability q = {event.sampling_rate:g} (Poisson)",
        "without replacement": f"a fixed number of users in a round, share q = {event.sampling_rate:g}",
    }
    who = "every user in every round (q = 1)" if event.everyone else users[event.sampling]
    return f"{event.label}: T = {event.rounds}, noise multiplier {host_number(event.noise_multiplier):.6g}, {who}"


def _warn_of_large(delta: float, events: Sequence[GaussianRounds]) -> None:
    clients = min((event.clients for event in events if event.clients is not None), default=None)
    if clients is not None and delta >= 1 / clients:
        message = (
            f"delta = {delta:g} is not below 1/clients = {1 / clients:g}: publishing one user, chosen at random, in "
            "the clear would satisfy it. Take delta well below 1/clients."
        )
        warnings.warn(message, UserWarning, stacklevel=3)
