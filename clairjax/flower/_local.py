"""A Flower grid without a network: the server and all nodes are in one process, for trying out and for tests."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity


RAISED = 6  # Flower's code of an app that raised


class LocalGrid(Grid):
    """Messages go through Flower's own serialisation to a ClientApp and back, one node after another.

    **Args:**

    - `app`: the ClientApp, or any callable of a message and a context.
    - `nodes`: each node's `node_config`, by its number.
    - `silent`: of a node and a round, whether it answers nothing then, as one that was killed.

    >>> from clairjax.flower import LocalGrid
    >>> LocalGrid(lambda message, context: message, {7: {"rank": 4}}).get_node_ids()
    [7]
    """

    def __init__(
        self,
        app: Callable[[Message, Context], Message],
        nodes: Mapping[int, Mapping[str, Any]],
        silent: Callable[[int, int], bool] = lambda node, number: False,
    ) -> None:
        self._app, self.silent = app, silent
        self.contexts = {node: Context(1, node, dict(config), RecordDict(), {}) for node, config in nodes.items()}
        # A message outside of a run is refused by Flower unless somebody says whose it is.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        answers = []
        for place, message in enumerate(messages):
            node, number = message.metadata.dst_node_id, int(message.metadata.group_id or 0)
            message.metadata.__dict__["_message_id"] = f"{node}-{place}"  # which a SuperLink gives
            if node not in self.contexts or self.silent(node, number):
                continue
            arrived = _through(message)
            try:
                answer = _through(self._app(arrived, self.contexts[node]))
            except Exception as error:  # as a SuperNode does, also of what cannot be sent
                answer = _through(Message(Error(code=RAISED, reason=repr(error)), reply_to=arrived))
            answers.append(answer)
        return answers

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def _through(message: Message) -> Message:
    """What arrives on the other side."""
    contents = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    return inflate_object_from_contents(message.object_id, contents)
