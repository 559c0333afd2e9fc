"""An ensemble of teachers at the sites of a Flower federation, as the server sees it."""

from __future__ import annotations

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
from privlearn.flower.requests import await_nodes, collect_replies
from privlearn.methods.pate.ensemble import PredictedElsewhere, Progress
from privlearn.methods.pate.sums import Shapes


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
        nodes = await_nodes(self._grid, self._count, self._timeout)
        content = np.ascontiguousarray(inputs.numpy())
        requests = [
            Message(pack_inputs(content), dst_node_id=node, message_type=ASK) for node in nodes
        ]
        replies = collect_replies(self._grid, requests, self._timeout, progress)
        absent = self._count - len(nodes)
        yield from (_read(reply) for reply in replies)
        yield from [None] * absent


def _read(reply: Message | None) -> Tensor | None:
    """What a site answered; None for anything that is no array. Nothing says so."""
    if reply is None or reply.has_error():
        return None
    try:
        return torch.from_numpy(np.array(unpack_answers(reply.content)))
    except Exception:
        return None
