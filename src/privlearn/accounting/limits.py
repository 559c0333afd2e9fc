"""The widest filter that a budget allows beside earlier releases: what a run that reacts to its own releases may come to."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from privlearn.accounting import accountant, groups, rdp, zcdp
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import Event, Filter, GaussianFilter, compose
from privlearn.accounting.filters import Limit, is_gaussian
from privlearn.errors import BadInput

_LEAST_RHO = 1e-24


def widest(budget: Budget, before: Event, epoch: Event, adjacency: Adjacency) -> Limit:
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
    order = float(rdp.ORDERS[place])

    def spent(bound: float) -> float:
        return budget.spent(compose([before, Filter(None, (order,), (bound,))]), adjacency)

    return Filter(None, (order,), (_not_above(budget.limit, spent, float(room[place])),))


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
    log_delta = math.log(budget.delta) - groups.log_growth(one, budget.group_size)
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
