"""Sums over the nodes of a federation of one integer vector from each.

A summation has two halves: `serve` is called at a node and registers what answers, `add_up` is
called at the server. Nodes answer the summation that they serve and no other, so a server cannot
make them send in the clear what they would send masked.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray

from privlearn.errors import BadInput
from privlearn.flower.messages import pack_answers, unpack_answers
from privlearn.flower.requests import Progress, collect_replies

_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, repr=False)
class Circle:
    """With whom a node's integers are added up before they are seen.

    Attributes:
        name: tells this adding up from all others; empty where each node's integers are seen.
        least: of how many nodes a sum that is seen has the integers, at least.
        node: the number of the node itself.
    """

    name: bytes = b""
    least: int = 1
    node: int = 0


#: Computes a node's integers (int64, one dimension) from a request and with whom they are added up,
#: or None where it has none.
Compute = Callable[[RecordDict, Context, Circle], NDArray[np.int64] | None]

#: Whether one node can have these integers.
Fits = Callable[[NDArray[np.int64]], bool]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Total:
    """A sum over nodes.

    Attributes:
        values: the sum, int64, shape (size,).
        nodes: the nodes whose integers are in it: private.
    """

    values: NDArray[np.int64]
    nodes: tuple[int, ...]


class Summation(ABC):
    """A way to add up integer vectors of the nodes of a federation."""

    #: What the server sees, in words, for the card.
    server_sees: ClassVar[str]

    @abstractmethod
    def serve(self, app: ClientApp, question: str, compute: Compute) -> None:
        """Answer requests for a sum at a node.

        Args:
            app: the node's app.
            question: what is asked: a name of letters, digits and underscores.
            compute: computes the node's integers. Whatever fails in it is logged at the node and
                counts as having none.
        """

    @abstractmethod
    def add_up(
        self,
        grid: Grid,
        nodes: Sequence[int],
        question: str,
        content: RecordDict,
        *,
        size: int,
        bound: int,
        timeout: float,
        progress: Progress | None = None,
    ) -> Total:
        """The sum of the nodes' integers, at the server.

        A node that is absent, late, fails or sends what is of no use is not in the sum, and nothing
        says so but the total's nodes.

        Args:
            grid: what Flower gives to the server app.
            nodes: whom to ask.
            question: what is asked, as at `serve`.
            content: the public request, the same for all.
            size: how many integers each node sends.
            bound: the largest absolute value of an integer that a node may send.
            timeout: seconds to wait for each round of replies.
            progress: called as replies arrive.

        Raises:
            BadInput: the sum may not fit into 64 bits; nothing was asked.
        """

    def least(self, nodes: int) -> int:
        """Of how many nodes the server sees a sum, at least.

        Args:
            nodes: how many are asked.

        Raises:
            BadInput: so many can't be added up.
        """
        return 1

    def requiring(self, fits: Fits) -> Summation:
        """The same, without nodes whose integers do not fit, where the server can read them; else
        itself.

        Args:
            fits: looks at the integers of one node, shape (size,).
        """
        return self


@final
@dataclass(frozen=True, eq=False)
class InTheClear(Summation):
    """Each node sends its integers to the server, which adds them up and can read each.

    Attributes:
        fits: whether one node can have these integers; None: all within the bound can be.
    """

    fits: Fits | None = None
    server_sees: ClassVar[str] = "each site's answers"

    def requiring(self, fits: Fits) -> InTheClear:
        """The same, without nodes whose integers do not fit."""
        return InTheClear(fits)

    def serve(self, app: ClientApp, question: str, compute: Compute) -> None:
        """Answer with the integers themselves."""

        @app.query(question)
        def answer(message: Message, context: Context) -> Message:
            integers = try_to_compute(compute, message, context)
            return Message(pack_answers(integers), reply_to=message)

    def add_up(
        self,
        grid: Grid,
        nodes: Sequence[int],
        question: str,
        content: RecordDict,
        *,
        size: int,
        bound: int,
        timeout: float,
        progress: Progress | None = None,
    ) -> Total:
        """The sum of what arrives, is within the bound and fits."""
        require_room(bound, len(nodes))
        kind = f"query.{question}"
        requests = [Message(content, dst_node_id=node, message_type=kind) for node in nodes]
        replies = collect_replies(grid, requests, timeout, progress)
        values = np.zeros(size, np.int64)
        added = []
        for node, reply in zip(nodes, replies, strict=True):
            integers = read_integers(reply, size, bound)
            if integers is not None and (self.fits is None or self.fits(integers)):
                values += integers
                added.append(node)
        return Total(values, tuple(added))


def require_room(bound: int, nodes: int) -> None:
    """Refuse sums that may not fit into 64 bits: one node could turn their sign.

    Args:
        bound: the largest absolute value of an integer of one node.
        nodes: how many there are.

    Raises:
        BadInput: they may not fit.
    """
    if not 0 <= bound * nodes < 2**63:
        raise BadInput(
            f"bound is {bound}, for {nodes} sites: expected their product to be below 2^63, so "
            "that a sum modulo 2^64 is the sum. Quantise more coarsely"
        )


def try_to_compute(
    compute: Compute, message: Message, context: Context
) -> NDArray[np.int64] | None:
    """What `compute` returns; None where it fails, and its error goes to the node's log alone."""
    try:
        return compute(message.content, context, Circle(node=context.node_id))
    except Exception:
        _log.exception("this site has no answer, and the server gets an empty reply")
        return None


def read_integers(reply: Message | None, size: int, bound: int) -> NDArray[np.int64] | None:
    """The integers of a reply; None for anything else, whatever it is."""
    if reply is None or reply.has_error():
        return None
    try:
        integers = unpack_answers(reply.content)
    except Exception:
        return None
    if integers.dtype != np.int64 or integers.shape != (size,):
        return None
    # not by abs(), which is negative for the smallest integer
    return integers if bool(((integers >= -bound) & (integers <= bound)).all()) else None
