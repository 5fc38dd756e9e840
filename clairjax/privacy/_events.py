"""What an algorithm released: the description that an accountant turns into ε."""

from typing import Literal

import equinox as eqx

from .. import _validate
from .._typing import ScalarLike


Sampling = Literal["poisson", "without replacement"]


class GaussianRounds(eqx.Module):
    """Rounds that each release one sum over users, every user clipped to norm ζ, plus noise N(0, (σζ)² I).

    Written by the algorithm that draws the noise and the users, so that what is accounted for is what was done.
    It stays in a run's result under `jit` and `vmap`; ε is asked for afterwards, from the `Ledger` that holds it.
    It says that noise was drawn afresh in every round, from a key that is secret, unguessable and used once
    (`privacy.secret_key`), and does not check it.

    **Args:**

    - `noise_multiplier`: σ ≥ 0, standard deviation of the noise over the clip norm ζ (not over the sensitivity,
      which depends on the adjacency and is the accountant's business). The only one that may be traced.
    - `rounds`: T ≥ 1, every release counted: the steps of all trials, where there are trials.
    - `sampling_rate`: q in (0, 1], a user's chance to be in a round; 1 is everyone in every round.
    - `sampling`: how users come into a round. `"poisson"`: each by an independent coin. `"without replacement"`:
      a uniformly random set of exactly q · `clients` users. The two do not have the same ε.
    - `clients`: the number of users, if known; needed without replacement.
    - `label`: what this part of the run was, such as `"initialisation"` or `"rounds"`.

    **Raises:** `ValueError` for values outside these ranges.

    **Source:** CENTAUR, section 2 and Algorithm 1.

    >>> from clairjax import privacy
    >>> start = privacy.GaussianRounds(5.0, 10, label="initialisation")
    >>> run = privacy.Ledger((start, privacy.GaussianRounds(20.0, 200)))
    >>> round(run.epsilon(delta=1e-5, adjacency="add-or-remove-one"), 3)
    4.119
    """

    noise_multiplier: ScalarLike
    rounds: int = eqx.field(static=True)
    sampling_rate: float = eqx.field(static=True, default=1.0)
    sampling: Sampling = eqx.field(static=True, default="poisson")
    clients: int | None = eqx.field(static=True, default=None)
    label: str = eqx.field(static=True, default="rounds")

    def __check_init__(self):
        _validate.at_least(self.rounds, "rounds", 1)
        if not 0 < self.sampling_rate <= 1:
            raise _validate.fail("sampling_rate", "in (0, 1]", self.sampling_rate)
        if self.clients is not None:
            _validate.at_least(self.clients, "clients", 1)
        if self.sampling == "without replacement":
            self._check_sample_size()

    def _check_sample_size(self) -> None:
        if self.clients is None:
            raise _validate.fail("clients", "given for sampling without replacement", None)
        if abs(self.sampling_rate * self.clients - self.sample_size) > 1e-6 or self.sample_size < 1:
            must_be = f"a whole number of clients over clients = {self.clients} for sampling without replacement"
            raise _validate.fail("sampling_rate", must_be, self.sampling_rate)

    @property
    def everyone(self) -> bool:
        """Every user is in every round: no randomness hides who took part."""
        return self.sampling_rate == 1

    @property
    def sample_size(self) -> int:
        """Users in a round, without replacement."""
        assert self.clients is not None
        return round(self.sampling_rate * self.clients)
