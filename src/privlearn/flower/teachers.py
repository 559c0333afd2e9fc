"""An ensemble of teachers at the sites of a Flower federation, as the server sees it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import final

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from privlearn._checks import count as whole_number
from privlearn._checks import positive
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.flower.messages import ASK, pack_inputs, unpack_answers
from privlearn.methods.pate.ensemble import PredictedElsewhere, Progress
from privlearn.methods.pate.sums import Shapes

#: Seconds between two looks at what has arrived.
_PAUSE = 0.1


@final
class FlowerTeachers(PredictedElsewhere):
    """The teachers of a Flower federation: one at each site, asked through the server's `grid`.

    A site that is not connected, fails, answers late or sends what is of no use counts as a teacher
    without an answer: nothing says so but the curator's private diagnostics. Of several replies to
    one request the first counts.

    The server reads each site's answers before noise is added, so it has to be trusted with them.
    That each record is at one site, and that each node is another site, is the publisher's word.

    Args:
        grid: what Flower gives to the server app.
        count: how many sites there are; public, and the plan's number of teachers.
        timeout: seconds to wait for the sites to connect, and again for their answers.

    Raises:
        BadInput: a number out of range.
    """

    def __init__(self, grid: Grid, count: int, *, timeout: float = 600.0) -> None:
        self._grid = grid
        self._count = whole_number("count", count)
        self._timeout = positive("timeout", timeout)

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    def determined(self, inputs: Tensor) -> dict[str, str]:
        """Refuse kept keys: sites may answer otherwise when they are asked again, and the same
        noise would be added to other answers.

        Raises:
            BadInput: always; it is asked only where keys are kept.
        """
        raise BadInput(
            "the noise has a secret that is kept, and sites may answer otherwise when they are "
            "asked again: expected streams of new keys. Leave streams out"
        )

    def answers(
        self,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
        shapes: Shapes | None = None,
    ) -> Iterator[Tensor | None]:
        """Each site's answers, in the order of node numbers; None for one that has none.

        Raises:
            BadInput: more sites are connected than the federation is said to have; nothing was
                asked or charged.
        """
        nodes = self._await_nodes()
        content = np.ascontiguousarray(inputs.numpy())
        requests = [
            Message(pack_inputs(content), dst_node_id=node, message_type=ASK) for node in nodes
        ]
        replies = self._collect(requests, progress)
        absent = self._count - len(nodes)
        yield from (_read(reply) for reply in replies)
        yield from [None] * absent

    def _await_nodes(self) -> list[int]:
        """The nodes that are connected, once all are or the time is up."""
        until = time.monotonic() + self._timeout
        while True:
            nodes = sorted(self._grid.get_node_ids())
            if len(nodes) > self._count:
                raise BadInput(
                    f"{len(nodes)} nodes are connected, and the federation is said to have "
                    f"{self._count} sites: the noise follows from that number. Nothing was asked "
                    f"or charged. Use a plan of {len(nodes)} teachers and count={len(nodes)}"
                )
            if len(nodes) == self._count or time.monotonic() >= until:
                return nodes
            time.sleep(_PAUSE)

    def _collect(self, requests: list[Message], progress: Progress | None) -> list[Message | None]:
        """The first reply to each request, in their order; None where there was none in time."""
        identifiers = list(self._grid.push_messages(requests))
        asked_nodes = {
            identifier: request.metadata.dst_node_id
            for identifier, request in zip(identifiers, requests, strict=True)
        }
        replies: dict[str, Message] = {}
        until = time.monotonic() + self._timeout
        while True:
            waiting = [each for each in identifiers if each not in replies]
            arrived = list(self._grid.pull_messages(waiting)) if waiting else []
            for reply in arrived:
                asked = reply.metadata.reply_to_message_id
                # a site answers for itself alone: one that fills in for another moves two answers
                if asked_nodes.get(asked) == reply.metadata.src_node_id:
                    replies.setdefault(asked, reply)
            if progress and arrived:
                progress(len(replies), self._count)
            if len(replies) == len(identifiers) or time.monotonic() >= until:
                return [replies.get(each) for each in identifiers]
            time.sleep(_PAUSE)


def _read(reply: Message | None) -> Tensor | None:
    """What a site answered; None for anything that is no array. Nothing says so."""
    if reply is None or reply.has_error():
        return None
    try:
        return torch.from_numpy(np.array(unpack_answers(reply.content)))
    except Exception:
        return None
