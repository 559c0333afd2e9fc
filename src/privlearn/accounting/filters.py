"""Filters: budgets for releases whose noise or number reacts to what was released before.

Composition theorems need the events fixed beforehand. A filter is opened at a limit that the ledger is charged at once, in
full; inside it releases may be chosen adaptively, and each is let through only if the sum stays within the limit. What
is claimed is the limit, never the realised spending. zCDP filters cost nothing over plain composition (Whitehouse et
al. 2023); Renyi filters hold at orders fixed beforehand (Feldman and Zrnic 2021). Privacy loss distributions, and the best
Renyi order chosen afterwards, are not valid here, and are not offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from privlearn._validate import positive
from privlearn.accounting import rdp, zcdp
from privlearn.accounting.adjacency import Adjacency, require_same
from privlearn.accounting.events import Event, Filter, require_adjacency
from privlearn.accounting.ledger import Account
from privlearn.errors import BadInput, BudgetExceeded

_SLACK = 1e-12


@final
class ZCDPFilter:
    """Lets adaptively chosen releases through while their rho adds up to at most `rho`.

    Guarantee: whatever is released through it is rho-zCDP, also if noise and stopping depend on earlier releases.
    Use it in a ledger's place.

    Args:
        account: charged `Filter(rho)` at once.
        rho: the limit.
        adjacency: the kind of neighbour.

    Raises:
        BudgetExceeded: the account can't afford the limit.
    """

    def __init__(self, account: Account, rho: float, adjacency: Adjacency) -> None:
        self.rho, self.adjacency = positive("rho", rho), adjacency
        account.charge(Filter(rho=rho), adjacency)
        self._spent = 0.0

    @property
    def left(self) -> float:
        """What may still be spent: depends on released values only, but is no part of the claim."""
        return self.rho - self._spent

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Let `event` through, or refuse.

        Raises:
            BudgetExceeded: the sum would pass the limit; nothing is drawn.
            UnsupportedEvent: `event` has no zCDP price (Poisson sampling).
            AdjacencyMismatch: another kind of neighbour.
        """
        require_same(self.adjacency, adjacency, "this filter")
        require_adjacency(event, adjacency)
        total = self._spent + zcdp.rho(event)
        if total > self.rho * (1 + _SLACK):
            raise BudgetExceeded(
                f"this release would take the filter to rho {total:.6g}, past its limit of {self.rho:g}. Nothing was drawn: "
                "use more noise, or stop here",
                would_be=total,
            )
        self._spent = total


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
        event = Filter(None, tuple(float(order) for order in orders), tuple(float(bound) for bound in bounds))
        missing = [order for order in event.orders if not np.isclose(rdp.ORDERS, order).any()]
        if missing:
            raise BadInput(f"order {missing[0]:g} is not among the orders that are computed: choose from rdp.ORDERS")
        self._at = [int(np.argmin(np.abs(rdp.ORDERS - order))) for order in event.orders]
        self._bounds = np.array(event.bounds)
        self.adjacency = adjacency
        account.charge(event, adjacency)
        self._spent = np.zeros(len(self._at))

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Let `event` through, or refuse.

        Raises:
            BudgetExceeded: a limit would be passed; nothing is drawn.
            AdjacencyMismatch: another kind of neighbour.
        """
        require_same(self.adjacency, adjacency, "this filter")
        require_adjacency(event, adjacency)
        total = self._spent + rdp.curve(event)[self._at]
        if (total > self._bounds * (1 + _SLACK)).any():
            raise BudgetExceeded(
                "this release would pass the filter's limit at one of its Renyi orders. Nothing was drawn: use more noise, "
                "or stop here",
                would_be=total.tolist(),
            )
        self._spent = total
