"""A sample is a drawn batch, good for one release; it says what is charged for it: a batch, or an
epoch at its first batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from privlearn.core.accounting.account import Account
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency, require_same
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import PrivlearnError, SampleReused, UnsupportedEvent

Indices = NDArray[np.int64]

#: Between looking whether a sample is unused and using it up nothing may come.
_ONE_AT_A_TIME = threading.RLock()


class EpochCharge:
    """What is charged at once: a batch, or an epoch at its first batch. Samplers make one for each
    `Sample` or epoch.

    Args:
        event: what is charged, of the mechanism that batches are released through.
        adjacencies: the kinds of neighbour that the sampler is priced for, where these are fewer
            than the event's: how batches are drawn may depend on the number of rows, of which an
            event knows nothing.
    """

    def __init__(
        self, event: Callable[[Gaussian], Event], adjacencies: Sequence[Adjacency] | None = None
    ) -> None:
        self._event, self._adjacencies = event, adjacencies
        self._charged: tuple[Gaussian, Adjacency, Account] | None = None

    def charge(self, mechanism: Gaussian, adjacency: Adjacency, account: Account) -> None:
        """Charge the unit unless it is paid; what is paid is good for the same mechanism,
        neighbours and account.
        """
        if self._charged is None:
            require_covered("these batches", adjacency, self._adjacencies)
            account.charge(self._event(mechanism), adjacency)
            self._charged = (mechanism, adjacency, account)
            return
        paid, neighbours, payer = self._charged
        if payer is not account:
            raise PrivlearnError(
                "an earlier batch of this epoch was charged to another ledger: use one for the "
                "whole epoch"
            )
        require_same(neighbours, adjacency, "this epoch")
        if paid != mechanism:
            raise PrivlearnError(
                f"this epoch was charged at noise multiplier {paid.noise_multiplier:g}, and a "
                f"later batch of it asks for {mechanism.noise_multiplier:g}. Where the epoch is "
                "the unit of accounting, all its batches need the same noise",
                charged=paid,
                given=mechanism,
            )


def require_covered(what: str, adjacency: Adjacency, covered: Sequence[Adjacency] | None) -> None:
    """Raise `UnsupportedEvent` unless batches are priced for such neighbours."""
    if covered is not None and adjacency not in covered:
        raise UnsupportedEvent(
            f"{what} have no sound accounting for {adjacency.value} neighbours: they are covered "
            f"for {', '.join(sorted(covered))}. Choose one of these adjacencies, or another way to "
            "draw batches",
            adjacency=adjacency,
        )


@final
class Sample:
    """One drawn batch, good for one release.

    Attributes:
        indices: the rows that were drawn; private, like the data.
        unit: what pays for it.
    """

    def __init__(self, indices: Indices, unit: EpochCharge) -> None:
        self.indices = indices
        self.unit = unit
        self._used = False

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def used(self) -> bool:
        """Whether it was released: it is good for one release."""
        return self._used

    def spend(self, mechanism: Gaussian, adjacency: Adjacency, account: Account) -> None:
        """Charge `account` for releasing `mechanism` on this sample, and use the sample up.

        Raises:
            SampleReused: the sample was released already.
            BudgetExceeded: by the account; the sample stays as it was.
            PrivlearnError: a later batch of an epoch departs from what the epoch was charged for.
        """
        with _ONE_AT_A_TIME:
            if self._used:
                raise SampleReused(
                    "this sample was released before. A sample is amplified for one release: "
                    "release several quantities of one batch jointly, in one call of release(), or "
                    "draw another batch"
                )
            self.unit.charge(mechanism, adjacency, account)
            self._used = True

    def __copy__(self) -> Sample:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Sample:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Sample cannot be pickled: a copy could be released again")
