"""A server that judges what nodes send and hands each its own: a strategy of Flower."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from .. import _validate
from ..adapters import HandOut, State, check_options, choose, from_states, hand_out, refine, state
from ._client import LOSS, LOSS_OWN
from ._received import SECURE, averaged, claimed, read_replies, sound
from ._records import arrays as recorded
from ._records import plain, tensors, with_config
from ._rounds import Round, read, write


LEAST = 3  # nodes, for a majority to be defined
GLOBAL = "global"
log = getLogger("flwr").log


class ClairStrategy(FedAvg):
    """Flower's rounds with CLAIR on the server, for LoRA adapters: FlowerTune's messages work unchanged.

    A node sends PEFT's state dictionary as its one ArrayRecord. The server judges all of them as `clairjax refine`
    does, and nobody says how many nodes are bad. Whoever is excluded goes on with its own adapter; whose adapter
    cannot be used starts from the members' median. What members get depends on what is known, as for folders: `blend`;
    or the losses of `measured`; or what the adapters show. Where nothing shows that sharing helps, a member goes on
    with its own. `start(…)` returns the members' median at the rank of `adapter_config`.

    Nothing that a node sends stops a run: NaN, other shapes, other keys, an error, silence. With fewer than three
    usable adapters nothing is shared in that round, and each goes on with its own.

    **Args:**

    - `adapter_config`: what adapter_config.json says, of `initial_arrays` and of nodes that send none of their own.
      Nodes may have other ranks and alphas; `reply` sends them.
    - `personal`: whether each node gets its own adapter at its own rank and scale, or all the members' median.
    - `blend`, `shared`, `shared_rank`, `shrink`: as in `clairjax.adapters.save` and `refine`. With `personal=False`
      no blend is taken.
    - `samples`: whether what nodes say of `num-examples` weighs the median. These are claims: nobody's weight is over
      a third, and who makes none, or a false one, counts as the middle one. False: all count alike.
    - Others: of `FedAvg`. `min_available_nodes` is 3: with "all", one that drops out hangs a run. Metrics are averaged
      over members.

    - `rounds`: a `Round` each; `save` and `load` keep them.

    **Raises:** `ValueError` for arguments out of range; `start` for a configuration whose update is not scale · B · A,
    and for initial arrays that are not of it.

    **Cost:** a round as `clairjax.adapters.refine` and `hand_out`. Memory of all nodes' adapters, three times.

    >>> from clairjax.flower import ClairStrategy
    >>> ClairStrategy({"peft_type": "LORA", "r": 8, "lora_alpha": 16}, blend=0.0).min_available_nodes
    3
    """

    def __init__(
        self,
        adapter_config: Mapping[str, Any],
        *,
        personal: bool = True,
        blend: float | None = None,
        shared: str = "auto",
        shared_rank: int | None = None,
        shrink: bool = False,
        samples: bool = True,
        min_train_nodes: int = LEAST,
        min_evaluate_nodes: int = LEAST,
        min_available_nodes: int = LEAST,
        **options: Any,
    ) -> None:
        nodes = {"min_train_nodes": min_train_nodes, "min_evaluate_nodes": min_evaluate_nodes}
        super().__init__(**nodes, min_available_nodes=min_available_nodes, **options)
        _validate.flag(personal, "personal")
        _validate.flag(samples, "samples")
        check_options(blend=blend, shared=shared, shared_rank=shared_rank, shrink=shrink)
        if blend and not personal:
            raise _validate.fail("blend", "None where all get the median, personal=False", blend)
        self.adapter_config, self.personal, self.blend = plain(adapter_config), personal, blend
        self._how: dict[str, Any] = {"shared": shared, "shared_rank": shared_rank, "shrink": shrink}
        self.samples, self.rounds = samples, list[Round]()
        self._like: State | None = None  # the latest for everyone
        self._mine: dict[int, State] = {}  # each node's latest, at its own rank
        self._out: HandOut | None = None
        self._offered: dict[tuple[int, float], State] = {}  # by node and t
        self._asked: list[int] = []
        self._online: set[int] = set()
        self._known: set[int] = set()  # since this process began

    def summary(self) -> None:
        log(INFO, "\t├──> CLAIR: personal=%s, blend=%s, %s", self.personal, self.blend, self._how)
        super().summary()

    # What goes out ------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._settle()
        self._like = state(tensors(arrays), self.adapter_config)
        self._check_shared_rank(self._like)
        self._online = set(grid.get_node_ids())
        return super().configure_train(server_round, arrays, config, grid)

    def _check_shared_rank(self, like: State) -> None:
        side = min(min(place.matrix) for place in like.modules.values())
        if (rank := self._how["shared_rank"]) is not None and rank > side:
            raise _validate.fail("shared_rank", f"at most {side}, the smallest side of a module", rank)

    def _construct_messages(self, record: RecordDict, node_ids: list[int], message_type: str) -> Iterable[Message]:
        """Of each node its own; FedAvg's are of one object for all."""
        if message_type == MessageType.TRAIN:
            self._asked = sorted(node_ids)
        return [self._message(node, record, message_type) for node in sorted(node_ids)]

    def _message(self, node: int, record: RecordDict, message_type: str) -> Message:
        config, mine = record[self.configrecord_key], self._for(node, message_type == MessageType.TRAIN)
        arrays = record[self.arrayrecord_key] if mine is None else recorded(mine.held)
        fields = self.adapter_config if mine is None else mine.settings.fields
        content = {self.arrayrecord_key: arrays, self.configrecord_key: with_config(config, fields)}
        number = str(config["server-round"])
        return Message(RecordDict(content), dst_node_id=node, message_type=message_type, group_id=number)

    def _for(self, node: int, training: bool) -> State | None:
        """None is what everyone gets. To be evaluated is what a node would get, if it turns out to help."""
        if not self.personal:
            return None
        if training or self._out is None:
            return self._mine.get(node)
        return self._given(node, self._candidate)

    @property
    def _candidate(self) -> float:
        return 0.0 if self._out is None or self._out.t is None else self._out.t

    def _given(self, node: int, t: float) -> State | None:
        mine, out = self._mine.get(node), self._out
        if out is None or mine is None or str(node) not in out.refinement.members:
            return mine
        try:
            if (node, t) not in self._offered:  # what is evaluated is mostly what is given
                self._offered[node, t] = replace(mine, held=out.client(str(node), t))
            return self._offered[node, t]
        except ValueError as error:  # numbers that do not fit its type
            log(WARNING, "node %d goes on with its own: %s", node, error)
            return mine

    def _settle(self) -> None:
        """What members of the last round get, when all is known of it."""
        if self._out is None or not self.rounds:
            return
        if (t := self.rounds[-1].t) is None:
            log(WARNING, "CLAIR: each goes on with its own: %s", self.rounds[-1].why)
        elif self.personal:
            self._mine |= {node: given for node in self.rounds[-1].members if (given := self._given(node, t))}
        self._out, self._offered = None, {}

    # What comes in ------------------------------------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        started = time.perf_counter()
        # Flower's own check ends the whole run where one reply has other keys.
        contents, errors = self._check_and_log_replies(list(replies), is_train=True, validate=False)
        contents.sort(key=lambda reply: reply.metadata.src_node_id)
        assert self._like is not None
        received, excluded, failed = read_replies([*contents, *errors], self._asked, self._like)
        self._mine |= received
        for node in excluded:
            self._mine.pop(node, None)
        gone = {node: "gone, and not asked" for node in sorted(self._known - self._online - {*self._asked})}
        self._known |= {*self._asked}
        one = Round(server_round, excluded=excluded, failed=failed | gone)
        arrays = None
        if len(received) < LEAST:
            one = replace(one, why=f"{len(received)} usable adapters, fewer than {LEAST}: nothing is shared")
        else:
            try:
                arrays, one = self._judge(received, one, claimed(contents, received, self.weighted_by_key))
            except ValueError as error:  # of zeros, for one
                one = replace(one, why=f"nothing is shared: {error}")
        if arrays is not None:
            self._like = replace(self._like, held=tensors(arrays))
        self.rounds.append(replace(one, seconds=time.perf_counter() - started))
        self._tell(self.rounds[-1])
        members = [each.content for each in contents if each.metadata.src_node_id in one.members]
        counts = {"members": len(one.members), "excluded": len(one.excluded), "failed": len(one.failed)}
        return arrays, MetricRecord({**averaged(self.train_metrics_aggr_fn, members, self.weighted_by_key), **counts})

    def _judge(self, received: dict[int, State], one: Round, claims: dict[int, float]) -> tuple[ArrayRecord, Round]:
        assert self._like is not None
        found = refine(from_states({str(node): each for node, each in received.items()}), **self._how)
        samples = {str(node): count for node, count in claims.items()} if self.samples else None
        out = hand_out(found, samples=samples, blend=self.blend if self.personal else 0.0)
        verdicts = {int(name): each for name, each in found.verdicts.items()}
        members = tuple(node for node in verdicts if str(node) in found.members)
        others = {node: f"{each.verdict}: {each.reason}" for node, each in verdicts.items() if node not in members}
        arrays, self._out, self._offered = recorded(out.everyone(self._like)), out, {}
        return arrays, replace(
            one,
            members=members,
            verdicts=verdicts,
            excluded=one.excluded | others,
            truncation={node: out.truncation(str(node)) for node in members},
            t=out.t,
            why=out.sharing.why,
            notices=found.notices,
        )

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        contents, _ = self._check_and_log_replies(list(replies), is_train=False, validate=False)
        contents.sort(key=lambda reply: reply.metadata.src_node_id)
        if self.rounds:
            losses = {each.metadata.src_node_id: mine for each in contents if (mine := self._losses(each))}
            self.rounds[-1] = self._chosen(replace(self.rounds[-1], losses=losses))
        whole = [each.content for each in contents]
        return averaged(self.evaluate_metrics_aggr_fn, whole, self.weighted_by_key) or None

    def _losses(self, reply: Message) -> dict[float, float]:
        """Of what a node was sent, by its t, and of its own."""
        found: dict[float, float] = {}
        if sound([reply.content], self.weighted_by_key):
            (record,) = reply.content.metric_records.values()
            node = reply.metadata.src_node_id
            own = self.personal and node in self._mine and node not in self.rounds[-1].members
            for name, t in ((LOSS, 1.0 if own else self._candidate), (LOSS_OWN, 1.0)):
                if name in record:
                    found[t] = float(record[name])
        return found

    def _chosen(self, one: Round) -> Round:
        """With the t that serves members best, where they say so."""
        both = {str(node): one.losses[node] for node in one.members if {*one.losses.get(node, ())} > {1.0}}
        if self._out is None or self.blend is not None or not self.personal or len(both) < LEAST:
            return one
        t = choose(both)
        return replace(one, t=t, why=f"by {len(both)} nodes' validation t = {t:g}")

    def _tell(self, one: Round) -> None:
        log(
            INFO,
            "\t└──> CLAIR: %d members, %d excluded, %d failed",
            *map(len, (one.members, one.excluded, one.failed)),
        )
        for node, why in {**one.excluded, **one.failed}.items():
            log(INFO, "\t\t> node %d: %s", node, why)
        if not one.members:
            log(WARNING, "CLAIR: %s", one.why)

    # What stays ---------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `rounds`, each node's adapter and everyone's to one file, which is there whole or as it was.

        A ServerApp's own state is not kept by Flower: without this the rounds are lost when it ends.
        """
        self._settle()
        states = {str(node): each for node, each in self._mine.items()}
        write(Path(path), self.rounds, states if self._like is None else {**states, GLOBAL: self._like})

    def load(self, path: str | os.PathLike[str]) -> ArrayRecord | None:
        """Go on from what `save` wrote.

        A node that has another number since, as all have after a SuperLink without authentication was started again,
        is new, and starts from everyone's.

        **Returns:** everyone's arrays, for `start`; None if no round was begun.

        **Raises:** `ValueError` for another file.
        """
        self.rounds, states = read(Path(path))
        self._like, self._out = states.pop(GLOBAL, None), None
        self._mine = {int(name): each for name, each in states.items()}
        return None if self._like is None else recorded(self._like.held)

    def initialize_parameters(self, *_: Any, **__: Any) -> None:
        """Asked for by the workflows of secure aggregation alone.

        **Raises:** `ValueError`.
        """
        raise ValueError(f"{SECURE}.")
