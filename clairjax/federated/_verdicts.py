"""What was said of each client over the rounds of a run."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from ..alignment import VERDICTS


MEMBER, UNDECIDED = VERDICTS.index("member"), VERDICTS.index("undecided")
ODD = ("sign-flipped", "unrelated", "other rows", "rescaled", "absent")


class Verdicts(eqx.Module):
    """The verdicts of all rounds, by client and by place in `alignment.VERDICTS`.

    - `latest` [clients]: the last one of each client, −1 before its first round.
    - `times` [clients, verdicts]: in how many rounds. `first`, `last`: in which, from 1; 0 for never.
    - `round`: how many rounds there were.

    *absent* is a client of the round whose change was zero, or not finite.

    `print` names the clients that did not belong in most of their rounds, and says in which.
    """

    latest: Int[Array, " clients"]
    times: Int[Array, "clients verdicts"]
    first: Int[Array, "clients verdicts"]
    last: Int[Array, "clients verdicts"]
    round: Int[Array, ""]

    @staticmethod
    def start(clients: int) -> "Verdicts":
        table = jnp.zeros((clients, len(VERDICTS)), jnp.int32)
        return Verdicts(jnp.full(clients, -1, jnp.int32), table, table, table, jnp.zeros((), jnp.int32))

    def after(
        self, numbers: Int[Array, " slots"], kinds: Int[Array, " slots"], present: Bool[Array, " slots"]
    ) -> "Verdicts":
        """With a round more: these clients were told these kinds, where they are present."""
        to = jnp.where(present, numbers, len(self.latest))
        now = self.round + 1
        once = jnp.where(self.first == 0, now, self.first)
        return Verdicts(
            self.latest.at[to].set(kinds.astype(jnp.int32), mode="drop"),
            self.times.at[to, kinds].add(1, mode="drop"),
            self.first.at[to, kinds].set(once[numbers, kinds], mode="drop"),
            self.last.at[to, kinds].set(now, mode="drop"),
            now,
        )

    @property
    def named(self) -> dict[int, dict[str, tuple[int, int, int]]]:
        """Of each client that did not belong in more than half of its rounds: by verdict, the number of these rounds,
        the first and the last of them. In a few rounds a client is told so by chance."""
        tables = [np.asarray(table) for table in (self.times, self.first, self.last)]
        odd = [VERDICTS.index(word) for word in ODD]
        often = np.flatnonzero(2 * tables[0][:, odd].sum(1) > tables[0].sum(1)).tolist()
        times, first, last = (table.tolist() for table in tables)
        return {
            k: {VERDICTS[kind]: (times[k][kind], first[k][kind], last[k][kind]) for kind in odd if times[k][kind]}
            for k in often
        }

    def __str__(self) -> str:
        lines = [
            f"client {client}: {word} in {times} of {int(self.times[client].sum())} rounds, from {first} to {last}"
            for client, words in self.named.items()
            for word, (times, first, last) in words.items()
        ]
        return "\n".join(lines) or "no client was named"
