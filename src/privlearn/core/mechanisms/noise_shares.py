"""Noise by shares: each of several parties charges a ledger of its own and adds a share of the
noise to its own integers, and who adds the integers up adds none.

The counterpart of `release`, on both sides: `release_share` charges before a share is drawn, and
`NoisySum.receive` charges before a sum is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import count
from privlearn.core.accounting.account import Account
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.mechanisms.discrete_gaussian import draw_discrete_gaussian
from privlearn.core.streams import NoiseStream
from privlearn.errors import BadInput, UnsoundExtension


def release_share(
    integers: NDArray[np.int64],
    *,
    sigma: float,
    reach: int,
    event: Event,
    adjacency: Adjacency,
    ledger: Account,
    stream: NoiseStream,
) -> NDArray[np.int64] | None:
    """Charge a party's ledger, and add its share of the noise to its integers.

    Guarantee: with the shares of other parties `event`, as it was priced for their sum
    (`discrete_gaussian.price_sum`). It is charged first; if the ledger refuses, nothing is drawn.

    Args:
        integers: what the party adds to the sum, bounded; int64, one dimension.
        sigma: the parameter of its share.
        reach: the largest draw that may be sent: many times sigma, so that numbers do not overflow.
        event: what the sum costs.
        adjacency: the kind of neighbour.
        ledger: the party's own.
        stream: the party's own noise stream.

    Returns:
        New integers, or None where a draw is beyond the reach, which does not depend on `integers`.

    Raises:
        BadInput: integers of another type or shape; nothing is charged.
        UnsoundExtension: a stream that is none; nothing is charged.
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger; nothing is drawn.
    """
    if integers.dtype != np.int64 or integers.ndim != 1:
        raise BadInput(
            f"a share of noise was to be added to {integers.dtype} numbers of shape "
            f"{integers.shape}: expected int64 ones of one dimension. Nothing was charged"
        )
    if not NoiseStream.is_one(stream):
        raise UnsoundExtension(
            f"a share would be drawn from a {type(stream).__name__}, which may be anything: "
            "expected the noise stream of privlearn.Streams. Nothing was charged"
        )
    ledger.charge(event, adjacency)
    # Only from here on is anything drawn.
    with stream.drawing_for([integers]):
        share = draw_discrete_gaussian(len(integers), sigma, stream)
    if len(share) and int(np.abs(share).max()) > reach:
        return None
    return integers + share


class SharedSum(Protocol):
    """What parties sent, added up."""

    @property
    def values(self) -> NDArray[np.int64]:
        """The sum, with all the shares that are in it."""
        ...

    @property
    def nodes(self) -> tuple[int, ...]:
        """The parties whose integers are in it, each with its share."""
        ...


@final
@dataclass(frozen=True, eq=False, repr=False)
class NoisySum:
    """A sum that holds the noise of enough parties, and was charged before it was asked for: made
    by `receive` alone.

    Attributes:
        values: the noisy sum, int64; released.
    """

    values: NDArray[np.int64]
    _received: object = None

    def __post_init__(self) -> None:
        if self._received is not _RECEIVED:
            raise UnsoundExtension(
                "a noisy sum was made by hand, and nothing says that it was charged or holds "
                "noise: expected NoisySum.receive(...). Nothing was released"
            )

    @classmethod
    def receive(
        cls,
        ask: Callable[[], SharedSum],
        *,
        needed: int,
        event: Event,
        adjacency: Adjacency,
        ledger: Account,
    ) -> Self:
        """Charge the ledger of who asks, then ask, and refuse a sum with too little noise.

        Args:
            ask: asks the parties; called once, after the charge.
            needed: how many shares the price counts.
            event: what the sum costs.
            adjacency: the kind of neighbour.
            ledger: of who asks.

        Raises:
            BadInput: fewer shares than needed. What was charged stays charged, since this
                process has seen the sum.
            BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger; nothing is asked.
        """
        count("needed", needed)
        ledger.charge(event, adjacency)
        total = ask()
        if len(set(total.nodes)) < needed:
            raise BadInput(
                "the sum holds fewer shares of noise than were priced: expected those of at least "
                f"{needed} sites. Nothing is released, and the charge stays, since this server "
                "has seen the sum. Have more sites connected, or plan for a larger absent="
            )
        return cls(total.values, _RECEIVED)

    def __repr__(self) -> str:
        """Shape only."""
        return f"NoisySum(of shape {self.values.shape})"


_RECEIVED = object()
