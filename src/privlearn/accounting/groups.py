"""Group privacy: what a guarantee for one example is worth for somebody with up to k of them.

Mechanisms that scale exactly are priced as what they are for k examples together (`group_events`): Gaussian releases at k
times the sensitivity, Poisson sampling by its mixture of Gaussians. For the rest, k steps of one example each lead from one
data set to its group neighbour, which turns delta(e) into the curve delta_k(k e) <= delta(e) (1 + g + ... + g^{k-1}) at
g = e^e.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from privlearn.accounting import pld, rdp
from privlearn.accounting.blocks import alternatives
from privlearn.accounting.events import Event
from privlearn.accounting.group_events import as_one
from privlearn.errors import UnsupportedEvent


def by_pld(event: Event, delta: float, k: int) -> float:
    """epsilon at `delta` for groups of `k`, from the group's own privacy loss distribution, or else in k steps."""
    group = as_one(event, k)
    if group is not None:
        try:
            found = max(pld.epsilon(met, delta) for met in alternatives(group))
        except UnsupportedEvent:
            found = math.inf
        if math.isfinite(found) or k == 1:
            return found
    return pld_in_steps(event, delta, k)


def pld_in_steps(event: Event, delta: float, k: int) -> float:
    """epsilon at `delta` for groups of `k` of any mechanism, from the privacy loss distribution of one example."""
    # Every (e, d) of one example gives (k e, d (e^{k e} - 1) / (e^e - 1)); look for the least e that is good enough.
    composed = pld.compose_event(event, negligible=1e-6 * pld.within_reach(delta))

    def good(one: float) -> bool:
        spent = max(composed.deltas(one))
        return spent <= 0 or math.log(spent) + log_growth(one, k) <= math.log(delta)

    return k * _least(good)


def by_rdp(event: Event, delta: float, k: int) -> float:
    """epsilon at `delta` for groups of `k`: from the group's Renyi curve or in k steps, whichever is less."""
    group = as_one(event, k)
    whole = math.inf if group is None else rdp.epsilon(group, delta)
    return whole if k == 1 else min(whole, rdp_in_steps(event, delta, k))


def rdp_in_steps(event: Event, delta: float, k: int) -> float:
    """epsilon at `delta` for groups of `k` of any mechanism, from the Renyi curve of one example."""
    divergences = rdp.curve(event)

    def good(one: float) -> bool:
        # delta(e) from the curve (Canonne et al. 2020, Prop 12), at the best order
        logs = (rdp.ORDERS - 1) * (divergences - one + np.log1p(-1 / rdp.ORDERS)) - np.log(rdp.ORDERS)
        return float(logs.min()) + log_growth(one, k) <= math.log(delta)

    return k * _least(good)


def log_growth(epsilon: float, k: int) -> float:
    """ln(1 + g + ... + g^{k-1}) at g = e^epsilon."""
    steps = epsilon * np.arange(k)
    return float(steps[-1] + math.log(float(np.exp(steps - steps[-1]).sum())))


def _least(good: Callable[[float], bool]) -> float:
    """The least epsilon >= 0 found with good(epsilon), to a relative 1e-6, on the safe side; infinite if there is none."""
    high = 1e-3
    while not good(high):
        high *= 2
        if high > 1e6:
            return math.inf
    low = 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high
