"""A filter is a budget for releases whose noise or number reacts to what was released before.

Composition theorems need the events fixed beforehand. A filter is opened at a limit that the ledger
is charged at once, in full; inside it releases may be chosen adaptively, and each is let through
only if the sum stays within the limit. What is claimed is the limit, never the realised spending.
zCDP filters cost nothing over plain composition (Whitehouse et al. 2023), and where only Gaussians
are let through, their exact curve holds, too (Smith and Thakurta 2022). Renyi filters hold at
orders fixed beforehand (Feldman and Zrnic 2021). Other privacy loss distributions, and the best
Renyi order chosen afterwards, are not valid here, and are not offered.

`largest_filter` and `of_ledger` give the widest limit that a budget allows: for a run that reacts
to its own releases, and for runs chosen one after another.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from privlearn._checks import between
from privlearn.core.accounting import accountant, rdp, zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import (
    Composed,
    Event,
    Mechanism,
    Repeated,
    compose,
    require_adjacency,
    tally,
)
from privlearn.core.accounting.guarantee import Adjacency, require_same
from privlearn.core.accounting.searches import bisect, bracket, to_safe_side
from privlearn.core.accounting.trees import Filter, GaussianFilter
from privlearn.errors import BadInput, BudgetExceeded, PrivlearnError, UnsupportedEvent

if TYPE_CHECKING:
    from privlearn.core.accounting.account import Account

#: What a ledger is charged for a filter.
Limit = Filter | GaussianFilter

#: Relative slack when spending is compared with a limit: sums of floats must not lose the last
#: release.
_SLACK = 1e-12

#: What the runs of a ledger are counted by: "gaussian", "zcdp", "renyi" or a Renyi order; None: as
#: suits its first run.
Measure = str | float | None
_LEAST_RHO = 1e-24
_NOTHING = Composed(())


def fits(limit: Limit, event: Event) -> bool:
    """Whether releases that add up to `event` stay within `limit`.

    Raises:
        UnsupportedEvent: `event` has no price in the measure of the limit.
        BadInput: an order of the limit is not tabulated.
    """
    return within(share(limit, event))


def within(taken: float) -> bool:
    """Whether this share of a limit is within it."""
    return taken <= 1 + _SLACK


def share(limit: Limit, event: Event) -> float:
    """How much of `limit` releases that add up to `event` take, at the order where they take most;
    raises as `fits`.
    """
    if limit.gaussian and not is_gaussian(event):
        raise UnsupportedEvent(
            "a Gaussian filter lets nothing but Gaussian releases through", event=event
        )
    if limit.rho is not None:
        return zcdp.rho(event) / limit.rho
    return float((rdp.curve(event)[require_orders(limit.orders)] / np.array(limit.bounds)).max())


def is_gaussian(event: Event) -> bool:
    """Whether one example meets nothing but Gaussian releases: an epoch over disjoint batches is
    one.
    """
    return all(leaf.gaussian for leaf in tally(event))


def require_orders(orders: Sequence[float]) -> list[int]:
    """Where `orders` stand in `rdp.ORDERS`, or `BadInput` if one does not."""
    missing = [order for order in orders if not np.isclose(rdp.ORDERS, order).any()]
    if missing:
        raise BadInput(
            f"order {missing[0]:g} is not among the orders that are computed: choose from "
            "rdp.ORDERS"
        )
    return [int(np.argmin(np.abs(rdp.ORDERS - order))) for order in orders]


@final
class PrivacyFilter:
    """Lets adaptively chosen releases through while they stay within `limit` together; used in a
    ledger's place.

    Guarantee: whatever is released through it costs at most its limit, also if noise and stopping
    depend on earlier releases: for `Filter(rho)` it is rho-zCDP, for `GaussianFilter(rho)` as good
    as one Gaussian release of that rho, and for `Filter(None, orders, bounds)` it has at each order
    at most the bound given for it. It stops as soon as any one is reached; fewer orders waste less.

    What was let through is in one place, or the limit could be spent once in each copy: a copy of a
    filter is the filter, it can't be pickled, and a forked process is refused.

    Args:
        account: charged `limit` at once.
        limit: a zCDP filter, one for Gaussian releases alone, or one at Renyi orders out of
            `rdp.ORDERS`.
        adjacency: the kind of neighbour.

    Raises:
        BadInput: no limit, or a Renyi order that is not tabulated.
        BudgetExceeded: the account can't afford the limit.
    """

    def __init__(self, account: Account, limit: Limit, adjacency: Adjacency) -> None:
        if not isinstance(limit, Limit):
            raise BadInput(
                f"limit is {str(limit)[:60]}: expected Filter(rho=...), GaussianFilter(rho), or "
                "orders"
            )
        require_orders(() if limit.rho is not None else limit.orders)
        account.charge(limit, adjacency)
        self.limit, self.adjacency = limit, adjacency
        self._counts: dict[Mechanism, int] = {}
        self._process = os.getpid()
        self._one_at_a_time = threading.RLock()

    def spent(self, *more: Event) -> Composed:
        """All that was let through, and `more` on top: no part of the claim, which is the limit.

        Totals are computed from counts, never added up release by release: so what fits as a whole
        also fits in parts.

        Raises:
            PrivlearnError: this is another process than the one that opened the filter.
        """
        if self._process != os.getpid():
            raise PrivlearnError(
                "this filter belongs to another process, which would not see the charge. Open "
                "another filter here, on a ledger that is kept in a file: Ledger.open(path)"
            )
        counts = tally(
            Composed((*(Repeated(leaf, times) for leaf, times in self._counts.items()), *more))
        )
        return Composed(tuple(Repeated(leaf, times) for leaf, times in counts.items()))

    def has_room(self, event: Event) -> bool:
        """Whether `event` fits on top of what was let through, as a whole: its parts then do, one
        by one.
        """
        return fits(self.limit, self.spent(event))

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Let `event` through, or refuse.

        Raises:
            BudgetExceeded: the sum would pass the limit; nothing is drawn.
            UnsupportedEvent: `event` has no price in the filter's measure (Poisson sampling has
                none in zCDP).
            AdjacencyMismatch: another kind of neighbour.
            PrivlearnError: this is another process than the one that opened the filter.
        """
        self.spent()  # refuses in another process, which must not wait for a thread of this one
        require_same(self.adjacency, adjacency, "this filter")
        require_adjacency(event, adjacency)
        with self._one_at_a_time:
            if not self.has_room(event):
                after = share(self.limit, self.spent(event))
                raise BudgetExceeded(
                    f"this release would take the filter past its limit, {described(self.limit)}, "
                    f"to {after:.6g} times of it. Nothing was drawn: use more noise, or stop here",
                    would_be=after,
                )
            self._counts = tally(self.spent(event))

    def __copy__(self) -> PrivacyFilter:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyFilter:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a filter cannot be pickled: a copy would spend the same limit again")


def largest_filter(budget: Budget, before: Event, epoch: Event, adjacency: Adjacency) -> Limit:
    """The filter with the most room for epochs like `epoch` that meets `budget` together with
    `before`.

    A zCDP filter where all has a price in rho, and one for Gaussian releases alone if epochs are
    made of them. Else a Renyi filter at one order: the one at which most such epochs fit. That is
    settled here, from public numbers, as it must be: the best order chosen after the run would be
    no guarantee.

    Raises:
        BadInput: `before` leaves no room.
        UnsupportedEvent: a budget of rho, and Poisson sampling.
    """
    if budget.rho is not None or accountant.rho(compose([before, epoch])) is not None:
        return _widest_in_rho(budget, before, adjacency, is_gaussian(epoch))
    room = _renyi_room(budget, before)
    with np.errstate(divide="ignore", invalid="ignore"):
        place = int(np.argmax(np.where(room > 0, room / rdp.curve(epoch), -np.inf)))
    if not room[place] > 0:
        raise BadInput(
            f"{budget} leaves no room at any Renyi order, by which a schedule that reacts is "
            "accounted for under Poisson sampling: use a larger epsilon or delta, more noise "
            "before, or shuffle, partition or full sampling",
            budget=budget,
        )
    return _renyi_limit(budget, before, adjacency, place, room)


@lru_cache(maxsize=64)
def of_ledger(
    budget: Budget, declared: Event, adjacency: Adjacency, measure: Measure
) -> Limit | None:
    """The filter that runs on a ledger are counted by once something was released; None if the
    budget has no room.

    It follows from numbers that are known before the first release: the budget, the runs that were
    approved by then (`declared`) and the measure. A budget of rho is counted by zCDP. One of
    epsilon is counted by Gaussian DP if all that was declared is Gaussian, and else by Renyi DP at
    one order: that at which the declared runs take the least part of the limit.

    Raises:
        UnsupportedEvent: `declared` has no price in the measure that was asked for.
    """
    if measure == "gaussian" and not is_gaussian(declared):
        raise UnsupportedEvent(
            "this ledger counts by Gaussian DP, as it was begun, and lets nothing but Gaussian "
            "releases through. Begin one with measure='renyi' for runs of other kinds",
            event=declared,
        )
    if measure == "gaussian" or (measure is None and budget.rho is None and is_gaussian(declared)):
        return _widest_gaussian(budget, adjacency)
    if measure == "zcdp" or budget.rho is not None:
        zcdp.rho(declared)
        return _widest_in_rho(budget, _NOTHING, adjacency, False)
    room, taken = _renyi_room(budget, _NOTHING), rdp.curve(declared)
    with np.errstate(divide="ignore", invalid="ignore"):
        place = int(np.argmax(np.where(room > 0, room / taken, -np.inf)))
    if isinstance(measure, float):
        place = require_orders([measure])[0]
    return _renyi_limit(budget, _NOTHING, adjacency, place, room) if room[place] > 0 else None


def require_measure(measure: Measure, budget: Budget | None) -> Measure:
    """`measure` as it is kept, or `BadInput`.

    A ledger without a budget has no limit that could be counted by one, and a budget of rho has no
    Renyi order.
    """
    if measure is None:
        return None
    kinds = (
        ["gaussian", "zcdp"] if budget and budget.rho is not None else ["gaussian", "zcdp", "renyi"]
    )
    if isinstance(measure, int | float) and not isinstance(measure, bool):
        measure = between("measure", measure, 1.0, math.inf)
        require_orders([measure])
    elif measure not in kinds:
        raise BadInput(
            f"measure is {str(measure)[:40]!r}: expected one of {', '.join(kinds)}, or a Renyi "
            "order such as 8"
        )
    if budget is None or (budget.rho is not None and isinstance(measure, float)):
        raise BadInput(
            f"measure is {measure!r}, and the budget is {budget}: a measure needs a budget, and an "
            "order one of epsilon"
        )
    return measure


def described(limit: Limit) -> str:
    """`limit` for people."""
    if limit.rho is None:
        listed = (
            f"order {order:g}, at most {bound:.4g}"
            for order, bound in zip(limit.orders, limit.bounds, strict=True)
        )
        return f"Renyi DP at {', '.join(listed)}"
    if limit.gaussian:
        return f"Gaussian DP, at most mu {math.sqrt(2 * limit.rho):.4g}"
    return f"zCDP, at most rho {limit.rho:.4g}"


def _renyi_limit(
    budget: Budget, before: Event, adjacency: Adjacency, place: int, room: rdp.Array
) -> Filter:
    """The widest filter at the order in that place of `rdp.ORDERS`."""
    order = float(rdp.ORDERS[place])

    def spent(bound: float) -> float:
        return budget.spent(compose([before, Filter(None, (order,), (bound,))]), adjacency)

    return Filter(None, (order,), (_not_above(budget.limit, spent, float(room[place])),))


def _widest_gaussian(budget: Budget, adjacency: Adjacency) -> GaussianFilter:
    """The filter for Gaussian releases alone that meets `budget`, by the exact curve."""
    if budget.rho is not None:
        rho = budget.rho
    else:
        assert budget.epsilon is not None
        assert budget.delta is not None
        rho = zcdp.gaussian_mu_for(budget.epsilon, budget.delta) ** 2 / 2

    def spent(limit: float) -> float:
        return budget.spent(GaussianFilter(limit), adjacency)

    return GaussianFilter(_not_above(budget.limit, spent, rho / budget.group_size**2))


@lru_cache(maxsize=64)
def _widest_in_rho(budget: Budget, before: Event, adjacency: Adjacency, gaussian: bool) -> Limit:
    """The filter of the largest rho that meets `budget` together with `before`."""

    def at(rho: float) -> Limit:
        return GaussianFilter(rho) if gaussian else Filter(rho=rho)

    def spent(rho: float) -> float:
        return budget.spent(compose([before, at(rho)]), adjacency)

    def too_much(rho: float) -> bool:
        return spent(rho) > budget.limit

    if budget.rho is not None:
        return at(
            _not_above(
                budget.limit,
                spent,
                _require_remainder(budget, budget.rho / budget.group_size**2 - zcdp.rho(before)),
            )
        )
    _require_remainder(budget, 0.0 if too_much(_LEAST_RHO) else _LEAST_RHO)
    low, high = bracket(too_much, 1.0, low=_LEAST_RHO)
    return at(bisect(too_much, low, high, 1e-9, geometric=True)[0])


def _require_remainder(budget: Budget, rho: float) -> float:
    if rho < _LEAST_RHO:
        raise BadInput(
            f"the releases before training leave nothing of {budget}: raise it, or give them more "
            "noise"
        )
    return rho


def _renyi_room(budget: Budget, before: Event) -> rdp.Array:
    """At each of `rdp.ORDERS` the largest divergence that meets `budget` on top of `before`.

    The tight conversion (Canonne et al. 2020, Prop 12), solved for the divergence; for k examples
    together at epsilon / k, at a delta less by what k steps add up to (`accountant`). Divergence
    grows with the order: a bound holds at lower orders, too.
    """
    assert budget.epsilon is not None
    assert budget.delta is not None
    one = budget.epsilon / budget.group_size
    log_delta = math.log(budget.delta) - accountant.log_growth(one, budget.group_size)
    room = one - np.log1p(-1 / rdp.ORDERS) + (log_delta + np.log(rdp.ORDERS)) / (rdp.ORDERS - 1)
    return np.asarray(np.maximum.accumulate(room - rdp.curve(before)), dtype=np.float64)


def _not_above(limit: float, spent: Callable[[float], float], value: float) -> float:
    """`value`, or a little less: the first tried at which what is spent is not above `limit`,
    despite all rounding.
    """
    return to_safe_side(lambda tried: spent(tried) <= limit, value, -1e-15, growth=2.0)
