"""Clair: every client gets a model of its own from those that it agrees with, and strangers are named."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from .. import _validate
from .._typing import Key
from ..alignment import LowRankMatrices, evidence, pool, refine
from ._aligned import (
    Change,
    adapters,
    aligned,
    change,
    check_layers,
    matrix,
    over_layers,
    reports,
    trained,
    with_matrices,
)
from ._local import fit
from ._local_strategy import LocalStrategy
from ._parts import Where, picked_out
from ._strategy import Client, Cohort, Update
from ._verdicts import MEMBER, UNDECIDED, Verdicts


FEWEST = 3  # for a majority to be defined


class ClairServer(NamedTuple):
    """`model`: the members' mean. `apart`: of each aligned layer what a client has beside it, clients first."""

    model: Any
    apart: list[Float[Array, "clients _out _in"]]
    verdicts: Verdicts


class Clair(LocalStrategy):
    """Clients train some layers; the server says who belongs together, and gives each of them its own layers back.

    What a round changed of a layer is a matrix for each client. `alignment.pool` judges each client by all layers
    together. `alignment.refine` then gives members their mean outside the space that they share, and their own part
    inside it. Everybody else keeps its own change, as do all in a round of fewer than three. A change that is not
    finite counts as none. `print(run.server.verdicts)` names those who mostly did not belong, and the rounds.

    - `local`: how a client trains; `epochs`: of a round.
    - `layers`: picks the aligned layers, as in `equinox.tree_at`; all adapters of the model if not given, see
      `models.adapt`. Of an adapter A and B are trained, and the product BA is the change. It joins the layer's weight,
      and the next round starts from a new A, the same for all, and B = 0. Any other layer with a weight is trained
      whole. Its bias is one more column of its matrix, and a convolution's kernel is flattened.
    - `own`: picks what a client trains besides, and keeps; nothing if not given. All other leaves stay as they are.
    - `shared`: `"rows"` or `"columns"`, `shrink`: as in `alignment.refine`. Adapters of one A share their rows
      from the start, whatever they learn: of these the columns tell.

    A client that was in no round uses the members' mean. The server sees each client's change.

    **Source:** CLAIR, section 8, has one round of it, on each matrix alone. More rounds and the verdict by all layers
    are not in the paper.

    **Cost:** the server holds the aligned layers of each client. A round costs what `alignment.pool` does: of adapters
    little, of other layers an eigendecomposition of in × in for each client.

    >>> from clairjax.federated import Clair
    >>> whole_layers = Clair(layers=lambda model: model.dense, own=lambda model: model.head)
    """

    layers: Where = eqx.field(static=True, default=adapters)
    own: Where | None = eqx.field(static=True, default=None)
    shared: str = eqx.field(static=True, default="rows")
    shrink: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        _validate.choice(self.shared, "shared", ("rows", "columns"))
        _validate.flag(self.shrink, "shrink")

    def start(self, model: Any, clients: int, *, key: Key) -> tuple[PyTree, PyTree]:
        check_layers(model, self.layers)
        both = zip(jax.tree.leaves(trained(model, self.layers)), jax.tree.leaves(self._own(model)), strict=True)
        if any(one and other for one, other in both):
            raise _validate.fail("own", "a function that picks nothing of layers", "a part of them")
        matrices = [matrix(layer) for layer in aligned(model, self.layers)]
        apart = [jnp.zeros((clients, *each.shape), each.dtype) for each in matrices]
        server = ClairServer(with_matrices(model, self.layers, matrices), apart, Verdicts.start(clients))
        return server, eqx.filter(model, self._own(model))

    def client_update(self, server: ClairServer, state: PyTree, client: Client, *, key: Key) -> Update:
        model = self.personal(server, state, client, key=key)
        own = self._own(model)
        marks = jax.tree.map(lambda one, other: one or other, trained(model, self.layers), own)
        new, loss = fit(model, marks, client, self.local, epochs=self.epochs, key=key)
        pairs = zip(aligned(model, self.layers), aligned(new, self.layers), strict=True)
        return Update([change(*pair) for pair in pairs], eqx.filter(new, own), loss)

    def server_update(self, server: ClairServer, uploads: list[Change], cohort: Cohort, *, key: Key) -> PyTree:
        finite = [jnp.isfinite(leaf).all((1, 2)) for leaf in jax.tree.leaves(uploads)]
        sound = jnp.stack(finite).all(0)[:, None, None]
        # In the widest floats of the process: spectra need the digits, and a rank may hang on the last of them.
        uploads = jax.tree.map(lambda leaf: jnp.where(sound, leaf, 0).astype(float), uploads)
        kinds = jnp.full(len(cohort.numbers), UNDECIDED, jnp.int32)
        if len(kinds) >= FEWEST:
            judged = pool(over_layers(lambda changes: evidence(reports(changes)), uploads)).kind
            kinds = jnp.where(jnp.sum(cohort.present) >= FEWEST, judged.astype(jnp.int32), kinds)
        members = (kinds == MEMBER) & cohort.present
        refined = over_layers(lambda changes: self._refined(changes, members), uploads)
        layers = zip(map(matrix, aligned(server.model, self.layers)), refined, strict=True)
        matrices = [old + mean.astype(old.dtype) for old, (mean, _) in layers]
        to = jnp.where(cohort.present, cohort.numbers, len(server.verdicts.latest))
        beside = zip(server.apart, refined, strict=True)
        apart = [old.at[to].add(own.astype(old.dtype), mode="drop") for old, (_, own) in beside]
        model = with_matrices(server.model, self.layers, matrices, key=key)
        return ClairServer(model, apart, server.verdicts.after(cohort.numbers, kinds, cohort.present))

    def personal(self, server: ClairServer, state: PyTree, client: Client, *, key: Key) -> Any:
        layers = aligned(server.model, self.layers)
        matrices = [matrix(layer) + own[client.number] for layer, own in zip(layers, server.apart, strict=True)]
        return eqx.combine(state, with_matrices(server.model, self.layers, matrices))

    def _refined(
        self, changes: Change, members: Bool[Array, " slots"]
    ) -> tuple[Float[Array, "out in"], Float[Array, "slots out in"]]:
        """The members' mean change, and what each client has beside it."""
        given = reports(changes)
        dense = given.dense() if isinstance(given, LowRankMatrices) else given
        mean = jnp.where(members[:, None, None], dense, 0).sum(0) / jnp.maximum(members.sum(), 1).astype(dense.dtype)
        if len(members) >= FEWEST:
            found = refine(given, members, shared=self.shared, shrink=self.shrink)
            dense = found if isinstance(found, jax.Array) else found.dense()
        return mean, dense - mean[None]

    def _own(self, model: Any) -> PyTree:
        """True at what a client trains and keeps."""
        return jax.tree.map(lambda _: False, model) if self.own is None else picked_out(model, self.own, "own")
