"""The server's requests to its nodes: waiting for nodes to connect, and for their replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from privlearn.errors import BadInput

#: Called with (replies that have arrived, nodes in all).
Progress = Callable[[int, int], None]

#: Seconds between two looks at what has arrived.
_PAUSE = 0.1


def await_nodes(grid: Grid, count: int, timeout: float) -> list[int]:
    """The nodes that are connected, in order, once all are or the time is up.

    Args:
        grid: what Flower gives to the server app.
        count: how many nodes the federation is said to have.
        timeout: seconds to wait.

    Raises:
        BadInput: more nodes than `count` are connected; nothing was asked or charged.
    """
    until = time.monotonic() + timeout
    while True:
        nodes = sorted(set(grid.get_node_ids()))  # one that is named twice is asked once
        if len(nodes) > count:
            raise BadInput(
                f"{len(nodes)} nodes are connected, and the federation is said to have "
                f"{count} sites: the noise follows from that number. Nothing was asked "
                f"or charged. Use a plan of {len(nodes)} teachers and count={len(nodes)}"
            )
        if len(nodes) == count or time.monotonic() >= until:
            return nodes
        time.sleep(_PAUSE)


def collect_replies(
    grid: Grid, requests: Sequence[Message], timeout: float, progress: Progress | None = None
) -> list[Message | None]:
    """Send requests, and wait for the first reply to each.

    Args:
        grid: what Flower gives to the server app.
        requests: at most one for each node.
        timeout: seconds to wait.
        progress: called as replies arrive.

    Returns:
        The replies in the order of the requests; None where none came in time.
    """
    identifiers = list(grid.push_messages(requests))
    asked_nodes = {
        identifier: request.metadata.dst_node_id
        for identifier, request in zip(identifiers, requests, strict=True)
    }
    replies: dict[str, Message] = {}
    until = time.monotonic() + timeout
    while True:
        waiting = [each for each in identifiers if each not in replies]
        arrived = list(grid.pull_messages(waiting)) if waiting else []
        for reply in arrived:
            asked = reply.metadata.reply_to_message_id
            # a node answers for itself alone: one that fills in for another moves two answers
            if asked_nodes.get(asked) == reply.metadata.src_node_id:
                replies.setdefault(asked, reply)
        if progress and arrived:
            progress(len(replies), len(requests))
        if len(replies) == len(identifiers) or time.monotonic() >= until:
            return [replies.get(each) for each in identifiers]
        time.sleep(_PAUSE)
