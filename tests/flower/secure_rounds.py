"""A server of secure sums that tests drive by hand: it can ask nodes for whatever it likes."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from privlearn.flower import SecureSum
from privlearn.flower.secure_stages import (
    KEYS,
    MASKED,
    RECORD,
    SHARES,
    STAGES,
    UNMASK,
    pack,
    read_bytes,
)
from privlearn.flower.summation import Circle

SIZE, BOUND, QUESTION = 40, 1000, "votes"
NODES = (1, 2, 3, 4, 5)
THRESHOLD = 3
ROUND = bytes(range(16))


def integers_of(node: int, size: int = SIZE) -> NDArray[np.int64]:
    """What a node has."""
    return np.random.default_rng(node).integers(-BOUND, BOUND + 1, size)


def arrays_of(content: RecordDict) -> list[NDArray[Any]]:
    """The arrays of a message."""
    return content.array_records[RECORD].to_numpy_ndarrays()


def as_nodes(*nodes: int) -> NDArray[np.uint64]:
    """Nodes as they are sent."""
    return np.array(nodes, np.uint64)


class CuriousServer:
    """Five honest nodes, and a server that asks them as it likes.

    Args:
        summation: what the nodes serve.
    """

    def __init__(self, summation: SecureSum | None = None) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0
        self.app, self.computed = ClientApp(), 0
        self.contexts = {
            node: Context(1, node, {}, RecordDict(), {}) for node in (*NODES, NODES[-1] + 1)
        }
        self.name = ROUND
        self.replies: dict[str, dict[int, RecordDict]] = {}
        summation = summation or SecureSum(threshold=THRESHOLD)
        summation.serve(self.app, QUESTION, self._compute)

    def _compute(self, content: RecordDict, context: Context, circle: Circle) -> NDArray[np.int64]:
        self.computed += 1
        return integers_of(context.node_id)

    def ask(self, stage: str, node: int, *arrays: NDArray[Any]) -> RecordDict:
        """A node's reply to a request of the round."""
        request = pack(read_bytes(self.name)[0], *arrays)
        message = Message(request, dst_node_id=node, message_type=f"query.{QUESTION}_{stage}")
        return self.app(message, self.contexts[node]).content

    def request(self, stage: str, node: int, *, staying: tuple[int, ...] = NODES) -> list[Any]:
        """What a server that follows the protocol asks."""
        if stage == KEYS:
            return [np.array(len(NODES), np.int64)]
        if stage == SHARES:
            keys = [arrays_of(self.replies[KEYS][each])[0] for each in NODES]
            return [as_nodes(*NODES), np.stack(keys)]
        if stage == MASKED:
            others = [each for each in NODES if each != node]
            sealed = [self.sealed(other, node) for other in others]
            return [as_nodes(*NODES), np.stack(sealed), np.array(SIZE), np.array(BOUND)]
        return [as_nodes(*staying), as_nodes(*sorted(set(NODES) - set(staying)))]

    def sealed(self, sender: int, receiver: int) -> NDArray[np.uint8]:
        """The message of one node to another."""
        receivers = [each for each in NODES if each != sender]
        rows = arrays_of(self.replies[SHARES][sender])[0]
        return rows[receivers.index(receiver)]

    def go_to(self, stage: str) -> CuriousServer:
        """Go through the stages before this one as the protocol says."""
        for before in STAGES[: STAGES.index(stage)]:
            self.replies[before] = {
                node: self.ask(before, node, *self.request(before, node)) for node in NODES
            }
            assert all(len(reply) for reply in self.replies[before].values()), before
        return self

    def refuses(self, stage: str, node: int, *arrays: NDArray[Any]) -> bool:
        """Whether a node sends nothing."""
        return not len(self.ask(stage, node, *arrays))

    def revealed(self, node: int, *, staying: tuple[int, ...], by: tuple[int, ...]) -> Any:
        """The shares of a node that others reveal, by holder, at the last stage."""
        shares = {}
        for holder in by:
            request = self.request(UNMASK, holder, staying=staying)
            rows = arrays_of(self.ask(UNMASK, holder, *request))[0]
            shares[holder] = rows[NODES.index(node)].tobytes()
        return shares
