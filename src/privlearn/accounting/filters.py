"""Filters: budgets for releases whose noise or number reacts to what was released before.

Composition theorems need the events fixed beforehand. A filter is opened at a limit that the ledger is charged at once, in
full; inside it releases may be chosen adaptively, and each is let through only if the sum stays within the limit. What
is claimed is the limit, never the realised spending. zCDP filters cost nothing over plain composition (Whitehouse et
al. 2023), and where only Gaussians are let through, their exact curve holds, too (Smith and Thakurta 2022). Renyi filters
hold at orders fixed beforehand (Feldman and Zrnic 2021). Other privacy loss distributions, and the best Renyi order chosen
afterwards, are not valid here, and are not offered.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from privlearn._checks import positive
from privlearn.accounting import rdp, zcdp
from privlearn.accounting.events import (
    Composed,
    Event,
    Filter,
    FixedBatches,
    Gaussian,
    GaussianFilter,
    Partitioned,
    Repeated,
    require_adjacency,
    tally,
)
from privlearn.accounting.guarantee import Adjacency, require_same
from privlearn.errors import BadInput, BudgetExceeded, PrivlearnError, UnsupportedEvent

if TYPE_CHECKING:
    from privlearn.accounting.ledger import Account

#: What a ledger is charged for a filter.
Limit = Filter | GaussianFilter

#: Relative slack when spending is compared with a limit: sums of floats must not lose the last release.
_SLACK = 1e-12


def fits(limit: Limit, event: Event) -> bool:
    """Whether releases that add up to `event` stay within `limit`.

    Raises:
        UnsupportedEvent: `event` has no price in the measure of the limit.
        BadInput: an order of the limit is not tabulated.
    """
    return share(limit, event) <= 1 + _SLACK


def share(limit: Limit, event: Event) -> float:
    """How much of `limit` releases that add up to `event` take, at the order where they take most; raises as `fits`."""
    if isinstance(limit, GaussianFilter) and not is_gaussian(event):
        raise UnsupportedEvent("a Gaussian filter lets nothing but Gaussian releases through", event=event)
    if limit.rho is not None:
        return zcdp.rho(event) / limit.rho
    return float((rdp.curve(event)[require_orders(limit.orders)] / np.array(limit.bounds)).max())


def is_gaussian(event: Event) -> bool:
    """Whether one example meets nothing but Gaussian releases: an epoch over disjoint batches is one, whichever its batch."""
    return all(isinstance(leaf, Gaussian | FixedBatches | Partitioned | GaussianFilter) for leaf in tally(event))


def opened(limit: Limit, account: Account, adjacency: Adjacency) -> ZCDPFilter | RenyiFilter:
    """Open a filter at `limit`, which `account` is charged; raises as the filters do."""
    if limit.rho is not None:
        return ZCDPFilter(account, limit.rho, adjacency, gaussian=isinstance(limit, GaussianFilter))
    return RenyiFilter(account, limit.orders, limit.bounds, adjacency)


def require_orders(orders: Sequence[float]) -> list[int]:
    """Where `orders` stand in `rdp.ORDERS`, or `BadInput` if one does not."""
    missing = [order for order in orders if not np.isclose(rdp.ORDERS, order).any()]
    if missing:
        raise BadInput(f"order {missing[0]:g} is not among the orders that are computed: choose from rdp.ORDERS")
    return [int(np.argmin(np.abs(rdp.ORDERS - order))) for order in orders]


@final
class _Spending:
    """What was let through a filter: in one place only, or the limit could be spent once in each copy.

    Copies of a filter share it, deep ones too; it can't be pickled; and a forked process is refused: it would not see what
    others spend, nor they what it does.

    Args:
        adjacency: the kind of neighbour.
    """

    def __init__(self, adjacency: Adjacency) -> None:
        self._adjacency = adjacency
        self._counts: dict[Event, int] = {}
        self._process = os.getpid()

    def total(self, *events: Event) -> Composed:
        """All of it, and `events` on top.

        Totals are computed from counts, never added up release by release: so what fits as a whole also fits in parts.

        Raises:
            PrivlearnError: this is another process than the one that opened the filter.
        """
        self._require_own_process()
        counts = tally(Composed((*(Repeated(leaf, times) for leaf, times in self._counts.items()), *events)))
        return Composed(tuple(Repeated(leaf, times) for leaf, times in counts.items()))

    def require_priced(self, event: Event, adjacency: Adjacency) -> None:
        """Raise `AdjacencyMismatch` or `UnsupportedEvent` if `event` is for other neighbours."""
        require_same(self._adjacency, adjacency, "this filter")
        require_adjacency(event, adjacency)

    def add(self, event: Event) -> None:
        """Put `event` on top."""
        self._counts = tally(self.total(event))

    def _require_own_process(self) -> None:
        if self._process != os.getpid():
            raise PrivlearnError(
                "this filter belongs to another process, which would not see the charge. Open another filter here, on a "
                "ledger that is kept in a file: Ledger.open(path)"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> _Spending:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a filter cannot be pickled: a copy would spend the same limit again")


@final
class ZCDPFilter:
    """Lets adaptively chosen releases through while their rho adds up to at most `rho`.

    Guarantee: whatever is released through it is rho-zCDP, also if noise and stopping depend on earlier releases; with
    `gaussian` it is as good as one Gaussian release of that rho. Use it in a ledger's place.

    Args:
        account: charged `Filter(rho)`, or `GaussianFilter(rho)`, at once.
        rho: the limit.
        adjacency: the kind of neighbour.
        gaussian: let Gaussian releases alone through, in batches that are disjoint or on all the data.

    Raises:
        BudgetExceeded: the account can't afford the limit.
    """

    def __init__(self, account: Account, rho: float, adjacency: Adjacency, *, gaussian: bool = False) -> None:
        self.rho, self.adjacency = positive("rho", rho), adjacency
        self._limit: Limit = GaussianFilter(rho) if gaussian else Filter(rho=rho)
        account.charge(self._limit, adjacency)
        self._spending = _Spending(adjacency)

    @property
    def left(self) -> float:
        """What may still be spent: depends on released values only, but is no part of the claim."""
        return self.rho - zcdp.rho(self._spending.total())

    def has_room(self, event: Event) -> bool:
        """Whether `event` fits on top of what was let through, as a whole: its parts then do, one by one."""
        return fits(self._limit, self._spending.total(event))

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Let `event` through, or refuse.

        Raises:
            BudgetExceeded: the sum would pass the limit; nothing is drawn.
            UnsupportedEvent: `event` has no zCDP price (Poisson sampling), or is not what the filter is for.
            AdjacencyMismatch: another kind of neighbour.
            PrivlearnError: this is another process than the one that opened the filter.
        """
        self._spending.require_priced(event, adjacency)
        if not self.has_room(event):
            total = self.rho - self.left + zcdp.rho(event)
            raise BudgetExceeded(
                f"this release would take the filter to rho {total:.6g}, past its limit of {self.rho:g}. Nothing was drawn: "
                "use more noise, or stop here",
                would_be=total,
            )
        self._spending.add(event)


@final
class RenyiFilter:
    """Lets adaptively chosen releases through while their Renyi divergences stay within `bounds` at fixed `orders`.

    Guarantee: what is released through it has at each of `orders` at most the bound given for it. It stops as soon as any one
    is reached; fewer orders waste less.

    Args:
        account: charged `Filter(orders, bounds)` at once.
        orders: fixed beforehand, out of `rdp.ORDERS`.
        bounds: the limits at these orders.
        adjacency: the kind of neighbour.

    Raises:
        BadInput: an order that is not tabulated, or unequal numbers of orders and bounds.
        BudgetExceeded: the account can't afford the limit.
    """

    def __init__(
        self, account: Account, orders: Sequence[float], bounds: Sequence[float], adjacency: Adjacency
    ) -> None:
        self.limit = Filter(None, tuple(float(order) for order in orders), tuple(float(bound) for bound in bounds))
        require_orders(self.limit.orders)
        self.adjacency = adjacency
        account.charge(self.limit, adjacency)
        self._spending = _Spending(adjacency)

    def has_room(self, event: Event) -> bool:
        """Whether `event` fits on top of what was let through, as a whole: its parts then do, one by one."""
        return fits(self.limit, self._spending.total(event))

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Let `event` through, or refuse.

        Raises:
            BudgetExceeded: a limit would be passed; nothing is drawn.
            AdjacencyMismatch: another kind of neighbour.
            PrivlearnError: this is another process than the one that opened the filter.
        """
        self._spending.require_priced(event, adjacency)
        if not self.has_room(event):
            raise BudgetExceeded(
                "this release would pass the filter's limit at one of its Renyi orders. Nothing was drawn: use more noise, "
                "or stop here",
                would_be=share(self.limit, self._spending.total(event)),
            )
        self._spending.add(event)
