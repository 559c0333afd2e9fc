"""A group of examples as one example: the event tree that somebody with k of the examples is confronted with.

Every mechanism that scales exactly is replaced by what it is for k examples together. What comes out is for accountants
only: it is never charged and never stored, because group sizes are no part of what happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.events import (
    ZCDP,
    Composed,
    Event,
    Filter,
    FixedBatches,
    Gaussian,
    GaussianFilter,
    Laplace,
    OneOf,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    RepeatAndSelect,
    Repeated,
    Selection,
    tally,
)
from privlearn.errors import BadInput


@final
@dataclass(frozen=True, slots=True)
class GroupSampled(Event):
    """One release on a Poisson batch, for somebody with `group_size` of the examples, each drawn independently.

    Dominated, in both directions, by sum_j Binomial(k, q)(j) N(j, sigma^2) against N(0, sigma^2); docs/accounting.md
    has the proof (for Poisson sampling: Ganesh 2024).
    """

    sampling_rate: float
    group_size: int
    event: Gaussian

    adjacencies = frozenset({Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT})


def as_one(event: Event, k: int) -> Event | None:
    """`event` as it is for `k` examples together, or None where a mechanism has no such form here.

    Partitions have none: their dominating pair is known and no way to compute with it is. Neither have
    parallel blocks (k examples may lie in several) and Renyi filters.
    """
    if k == 1:
        return event
    counts = []
    for leaf, times in tally(event).items():
        try:
            group = _leaf(leaf, k)
        except BadInput:  # out of the range of events: noise below 1e-6, say
            return None
        if group is None:
            return None
        counts.append(Repeated(group, times))
    return Composed(tuple(counts))


def _leaf(leaf: Event, k: int) -> Event | None:
    match leaf:
        case Gaussian(sigma):
            return Gaussian(sigma / k)
        case FixedBatches(Gaussian(sigma)):
            # Wherever the k examples fall: n_b of them in batch b is a Gaussian of sensitivity sqrt(sum n_b^2) <= k.
            return FixedBatches(Gaussian(sigma / k))
        case PoissonSampled(rate, step):
            return Gaussian(step.noise_multiplier / k) if rate == 1 else GroupSampled(rate, k, step)
        case Laplace(b):
            return Laplace(b / k)
        case PureDP(epsilon):
            return PureDP(k * epsilon)
        case Selection(epsilon):
            return Selection(k * epsilon)  # the range of a sum of losses is at most the sum of their ranges
        case RandomisedResponse():
            return Repeated(leaf, k)  # each example reports by itself
        case ZCDP(rho):
            return ZCDP(k**2 * rho)
        case GaussianFilter(rho):
            return GaussianFilter(k**2 * rho)
        case Filter(rho=rho) if rho is not None:
            return Filter(k**2 * rho)
        case RepeatAndSelect(event, mean, shape):
            # The price of the best run follows from that of one run, whatever the neighbours differ in.
            run = as_one(event, k)
            return None if run is None else RepeatAndSelect(run, mean, shape)
        case OneOf(events):
            runs = [as_one(event, k) for event in events]
            found = tuple(run for run in runs if run is not None)
            return OneOf(found) if len(found) == len(runs) else None
    return None
