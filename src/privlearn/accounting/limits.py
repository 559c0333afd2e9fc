"""The widest filter that a budget allows: for a run that reacts to its own releases, and for runs chosen one after another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from privlearn.accounting import accountant, rdp, zcdp
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import Composed, Event, Filter, GaussianFilter, compose
from privlearn.accounting.filters import Limit, fits, is_gaussian, require_orders
from privlearn.accounting.guarantee import Adjacency
from privlearn.errors import BadInput, UnsupportedEvent

#: What the runs of a ledger are counted by: "gaussian", "zcdp", "renyi" or a Renyi order; None: as suits its first run.
Measure = str | float | None
_LEAST_RHO = 1e-24
_NOTHING = Composed(())


def largest_filter(budget: Budget, before: Event, epoch: Event, adjacency: Adjacency) -> Limit:
    """The filter with the most room for epochs like `epoch` that meets `budget` together with `before`.

    A zCDP filter where all has a price in rho, and one for Gaussian releases alone if epochs are made of them. Else a Renyi
    filter at one order: the one at which most such epochs fit. That is settled here, from public numbers, as it must be: the
    best order chosen after the run would be no guarantee.

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
            f"{budget} leaves no room at any Renyi order, by which a schedule that reacts is accounted for under Poisson "
            "sampling: use a larger epsilon or delta, more noise before, or shuffle, partition or full sampling",
            budget=budget,
        )
    return _renyi_limit(budget, before, adjacency, place, room)


@lru_cache(maxsize=64)
def of_ledger(budget: Budget, declared: Event, adjacency: Adjacency, measure: Measure) -> Limit | None:
    """The filter that runs on a ledger are counted by once something was released, or None if the budget has no room for one.

    It follows from numbers that are known before the first release: the budget, the runs that were approved by then
    (`declared`) and the measure. A budget of rho is counted by zCDP. One of epsilon is counted by Gaussian DP if all that was
    declared is Gaussian, and else by Renyi DP at one order: that at which the declared runs take the least part of the limit.

    Raises:
        UnsupportedEvent: `declared` has no price in the measure that was asked for.
    """
    if measure == "gaussian" and not is_gaussian(declared):
        raise UnsupportedEvent(
            "this ledger counts by Gaussian DP, as it was begun, and lets nothing but Gaussian releases through. Begin one "
            "with measure='renyi' (privlearn ledger FILE --measure renyi) for runs of other kinds",
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

    A ledger without a budget has no limit that could be counted by one, and a budget of rho has no Renyi order.
    """
    if measure is None:
        return None
    kinds = ["gaussian", "zcdp"] if budget and budget.rho is not None else ["gaussian", "zcdp", "renyi"]
    if isinstance(measure, int | float) and not isinstance(measure, bool):
        require_orders([float(measure)])
        measure = float(measure)
    elif measure not in kinds:
        raise BadInput(
            f"measure is {str(measure)[:40]!r}: expected one of {', '.join(kinds)}, or a Renyi order such as 8"
        )
    if budget is None or (budget.rho is not None and isinstance(measure, float)):
        raise BadInput(
            f"measure is {measure!r}, and the budget is {budget}: a measure needs a budget, and an order one of epsilon"
        )
    return measure


def least_budget(fixed: Budget, first: Event, total: Event, adjacency: Adjacency) -> Budget:
    """The least epsilon at which a ledger whose first run is `first` lets runs through that come to `total`.

    Args:
        fixed: the budget that would do if all were fixed beforehand, of epsilon.
        first: what the first run is charged.
        total: what all runs are charged, the first included.
        adjacency: the kind of neighbour.
    """
    assert fixed.epsilon is not None

    def enough(epsilon: float) -> bool:
        limit = of_ledger(replace(fixed, epsilon=epsilon), first, adjacency, None)
        return limit is not None and fits(limit, total)

    if enough(fixed.epsilon):
        return fixed
    low = high = fixed.epsilon
    while not enough(high):
        low, high = high, 2 * high
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return replace(fixed, epsilon=high)


def described(limit: Limit) -> str:
    """`limit` for people."""
    if isinstance(limit, GaussianFilter):
        return f"Gaussian DP, at most mu {math.sqrt(2 * limit.rho):.4g}"
    if limit.rho is not None:
        return f"zCDP, at most rho {limit.rho:.4g}"
    return f"Renyi DP at order {limit.orders[0]:g}, at most {limit.bounds[0]:.4g}"


def _renyi_limit(budget: Budget, before: Event, adjacency: Adjacency, place: int, room: rdp.Array) -> Filter:
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

    if budget.rho is not None:
        found = _not_above(budget.limit, spent, _left(budget, budget.rho / budget.group_size**2 - zcdp.rho(before)))
        return at(found)
    low, high = _LEAST_RHO, 1.0
    _left(budget, low if spent(low) <= budget.limit else 0.0)
    while spent(high) <= budget.limit:
        low, high = high, 2 * high
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(middle) <= budget.limit else (low, middle)
    return at(low)


def _left(budget: Budget, rho: float) -> float:
    if rho < _LEAST_RHO:
        raise BadInput(f"the releases before training leave nothing of {budget}: raise it, or give them more noise")
    return rho


def _renyi_room(budget: Budget, before: Event) -> rdp.Array:
    """At each of `rdp.ORDERS` the largest divergence that meets `budget` on top of `before`.

    The tight conversion (Canonne et al. 2020, Prop 12), solved for the divergence; for k examples together at epsilon / k, at
    a delta less by what k steps add up to (`groups`). Divergence grows with the order: a bound holds at lower orders, too.
    """
    assert budget.epsilon is not None
    assert budget.delta is not None
    one = budget.epsilon / budget.group_size
    log_delta = math.log(budget.delta) - accountant.log_growth(one, budget.group_size)
    room = one - np.log1p(-1 / rdp.ORDERS) + (log_delta + np.log(rdp.ORDERS)) / (rdp.ORDERS - 1)
    return np.asarray(np.maximum.accumulate(room - rdp.curve(before)), dtype=np.float64)


def _not_above(limit: float, spent: Callable[[float], float], value: float) -> float:
    """`value`, or a little less: the first found at which what is spent is not above `limit`, despite all rounding."""
    step = 1e-15
    while spent(value) > limit:
        value *= 1 - step
        step *= 2
        if step > 0.5:
            raise BadInput(f"no limit of a filter meets {limit:g}: use a larger budget")
    return value
