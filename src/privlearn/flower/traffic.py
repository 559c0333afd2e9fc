"""What passes between a server and its nodes: messages and their bytes, by question."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


@dataclass
class Traffic:
    """What passed for one question.

    Attributes:
        requests: messages from the server.
        request_bytes: of their contents, without Flower's envelopes.
        request_form: shape and type of the arrays of the last request.
        replies: messages that reached the server: how many is private.
        reply_bytes: of their contents.
        reply_form: shape and type of the arrays of the last reply.
    """

    requests: int = 0
    request_bytes: int = 0
    request_form: str = ""
    replies: int = 0
    reply_bytes: int = 0
    reply_form: str = ""


@final
class CountedGrid(Grid):
    """A grid that hands everything on, and counts what passes.

    Args:
        grid: what Flower gives to the server app.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        #: By the kind of message.
        self.traffic: dict[str, Traffic] = {}

    def set_run(self, run: Any) -> None:
        """As the grid does."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """As the grid has it."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str | None = None,
        ttl: float | None = None,
    ) -> Message:
        """As the grid does."""
        if group_id is None:
            return Message(content, dst_node_id, message_type, ttl=ttl)
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """As the grid does."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Count requests, and send them."""
        requests = list(messages)
        for request in requests:
            passed = self._of(request)
            passed.requests += 1
            passed.request_bytes += count_bytes(request)
            passed.request_form = _form(request)
        return self._grid.push_messages(requests)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """What has arrived, counted."""
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            passed = self._of(reply)
            passed.replies += 1
            passed.reply_bytes += count_bytes(reply)
            passed.reply_form = _form(reply) or passed.reply_form
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Refused: what passes would not be counted."""
        raise NotImplementedError("expected push_messages and pull_messages")

    def _of(self, message: Message) -> Traffic:
        return self.traffic.setdefault(message.metadata.message_type, Traffic())


def count_bytes(message: Message) -> int:
    """The bytes of a message's content, without Flower's envelope; 0 for one that failed."""
    if message.has_error():
        return 0
    return sum(record.count_bytes() for record in message.content.values())


def _form(message: Message) -> str:
    if message.has_error():
        return ""
    arrays = [
        array for record in message.content.array_records.values() for array in record.values()
    ]
    return ", ".join(f"{' x '.join(map(str, each.shape))} {each.dtype}" for each in arrays)
