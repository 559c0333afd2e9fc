"""A Flower grid without processes: it calls a client app in this one, and can lose, delay, repeat
and change what is sent.

It logs every reply that reaches the server, so that tests can say what the server saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

#: What a fault makes of one reply: the replies that arrive, none of them where it is lost.
Fault = Callable[[Message, Message], Sequence[Message]]

_CLIENT_FAILED = 0
_RUN = 1


class LocalGrid(Grid):
    """A server's side of a federation whose clients are called here, one after another.

    Args:
        client_app: the app of all clients, or one for each.
        node_configs: for each client what its node is configured with (`context.node_config`).
        before: called with each request before the client sees it; False loses the request.
        after: makes of (request, reply) the replies that arrive.
        run_config: what the run is configured with.
    """

    def __init__(
        self,
        client_app: ClientApp | Sequence[ClientApp],
        node_configs: Sequence[dict[str, Any]],
        *,
        before: Callable[[Message], bool] | None = None,
        after: Fault | None = None,
        run_config: dict[str, Any] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _RUN, 0, 0
        nodes = range(1, len(node_configs) + 1)
        apps = [client_app] * len(node_configs) if isinstance(client_app, ClientApp) else client_app
        self._apps = dict(zip(nodes, apps, strict=True))
        self.contexts = {
            node: Context(_RUN, node, config, RecordDict(), run_config or {})
            for node, config in zip(nodes, node_configs, strict=True)
        }
        self._before, self._after = before, after
        self._waiting: dict[str, list[Message]] = {}
        #: Requests that were sent, and replies that arrived, in order.
        self.requests: list[Message] = []
        self.received: list[Message] = []

    def set_run(self, run: Any) -> None:
        """Nothing: there is one run."""

    @property
    def run(self) -> Any:
        """There is none to speak of."""
        return None

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str | None = None,
        ttl: float | None = None,
    ) -> Message:
        """A message, as Flower's own grids make it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All clients."""
        return list(self._apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let each client answer now."""
        ids = []
        for number, message in enumerate(messages, len(self.requests)):
            message.metadata.__dict__["_message_id"] = f"message-{number}"
            self.requests.append(message)
            ids.append(message.metadata.message_id)
            self._waiting[ids[-1]] = self._answer(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """What has arrived in reply to these messages."""
        arrived = [reply for each in message_ids for reply in self._waiting.pop(each, [])]
        self.received += arrived
        return arrived

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies to these messages, as far as there are any."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> list[Message]:
        if self._before is not None and not self._before(message):
            return []
        node = message.metadata.dst_node_id
        try:
            reply = self._apps[node](message, self.contexts[node])
        except Exception as error:
            reply = Message(Error(_CLIENT_FAILED, str(error)), reply_to=message)
        return [reply] if self._after is None else list(self._after(message, reply))
