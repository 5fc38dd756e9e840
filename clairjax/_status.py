"""The one enumeration of outcomes: what happened, and what to try."""

from typing import Any

import equinox as eqx


# The metaclass turns each sentence into a member: typed Any, because a checker sees a string.
class Status(eqx.Enumeration):
    """Outcome of a computation. Failures inside a trace are data: compare `result.status == Status.converged`.

    `Status[result.status]` gives the sentence (outside a trace, for one result).
    """

    converged: Any = "Converged: the optimality measure is at or below rtol."
    max_steps_reached: Any = (
        "The step limit was reached before the optimality measure fell to rtol: raise max_steps or rtol."
    )
    nonfinite_input: Any = "The input holds NaN or infinite values: remove the clients that reported them."
    no_majority: Any = (
        "No majority of mutually consistent clients was identified, so no client is a member and nothing was refined: "
        "pass threshold or a smaller vote_share if you know more than the data tells."
    )
    rank_at_bound: Any = (
        "The rank found equals the solver's max_rank, so directions may be missing: raise max_rank of the solver."
    )
    rank_by_gap: Any = (
        "The members' noise has no flat floor, so the rank is that before the widest gap in their spectrum: "
        "pass rank if you know it."
    )
    too_small: Any = (
        "Outside the row space found too few numbers are left to tell members from others, so nobody is a member and "
        "nothing was refined: take larger matrices or a smaller rank, or pass threshold if you know it."
    )
    unequal_noise: Any = (
        "The noise of some members is far below that of the members' mean, so they keep what they reported: "
        "pass samples, the number that each client learned from."
    )
    diverged: Any = "The iterates grew without bound or past what the dtype holds: lower the step, or scale the data."
    invalid_argument: Any = (
        "A traced argument is out of its range, not a number or not symmetric: call the function outside jit, or see "
        "its docstring; outside a trace the error names the argument."
    )


def worst(first: Status, second: Status) -> Status:
    """The first status unless it is `converged`, then the second."""
    return Status.where(first == Status.converged, second, first)
