"""A group of examples as one example: the event tree that somebody with k of the examples is confronted with.

Every mechanism that scales exactly is replaced by what it is for k examples together. What comes out is for accountants
only: it is never charged and never stored, because group sizes are no part of what happened.

Very many noise levels, put together on few: less noise is an upper bound, so each is rounded down.

Disjoint blocks as one example meets them: one block's events, and never another's.

Let examples be assigned to blocks independently of each other and of what they hold. Given the assignment, an example that
lies in block j takes part in block j's mechanism alone: what happens on other blocks before it is the same for neighbours,
and what happens there afterwards is post-processing. So the run is block j's mechanism composed with whatever is done
outside of the blocks, and the run as a whole is a mixture of those over j. A hockey-stick divergence is jointly convex:
that of the mixture is at most the largest of its parts, and epsilon is at most the largest epsilon of theirs, by whichever
method that was found. (Renyi divergences are quasi-convex, so for them the same holds order by order.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

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
    Parallel,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    RepeatAndSelect,
    Repeated,
    Selection,
    tally,
)
from privlearn.accounting.guarantee import Adjacency
from privlearn.errors import BadInput, UnsupportedEvent


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


def for_group(event: Event, k: int) -> Event | None:
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
            run = for_group(event, k)
            return None if run is None else RepeatAndSelect(run, mean, shape)
        case OneOf(events):
            runs = [for_group(event, k) for event in events]
            found = tuple(run for run in runs if run is not None)
            return OneOf(found) if len(found) == len(runs) else None
    return None


#: Distinct mechanisms beyond which noise levels are put together.
_MOST = 400


def coarsen(counts: dict[Event, int]) -> dict[Event, int]:
    """`counts` as it is, or with its noise multipliers on a few hundred values if it holds more mechanisms than that."""
    if len(counts) <= _MOST:
        return counts
    sigmas = [noise_level(leaf) for leaf in counts]
    least, width = min(sigmas), math.log(max(sigmas) / min(sigmas)) / (_MOST // 2)
    if width == 0:
        return counts  # they differ in something else
    merged: dict[Event, int] = {}
    for leaf, times in counts.items():
        node = least * math.exp(width * math.floor(math.log(noise_level(leaf) / least) / width))
        match leaf:
            case Gaussian():
                leaf = Gaussian(min(node, leaf.noise_multiplier))
            case PoissonSampled(rate, step):
                leaf = PoissonSampled(rate, Gaussian(min(node, step.noise_multiplier)))
            case GroupSampled(rate, k, step):
                leaf = GroupSampled(rate, k, Gaussian(min(node, step.noise_multiplier)))
            case Partitioned(batches, step):
                leaf = Partitioned(batches, Gaussian(min(node, step.noise_multiplier)))
        merged[leaf] = merged.get(leaf, 0) + times
    return merged


def noise_level(leaf: Event) -> float:
    """The noise multiplier of `leaf`, or what plays its part."""
    match leaf:
        case Gaussian(sigma) | PoissonSampled(_, Gaussian(sigma)) | Partitioned(_, Gaussian(sigma)) | Laplace(sigma):
            return sigma
        case GroupSampled(_, _, Gaussian(sigma)):
            return sigma
        case PureDP(eps) | RandomisedResponse(eps):
            return 1 / eps
    return 1.0


#: Mechanisms in all alternatives together; each takes some milliseconds.
_MOST_KINDS = 1000


def per_block(event: Event) -> list[Event]:
    """What one example may be confronted with: `event`, with one block's events in place of each `Parallel`.

    Raises:
        UnsupportedEvent: there are too many to price each by itself.
    """
    seen: dict[frozenset[tuple[Event, int]], dict[Event, int]] = {}
    todo, kinds = [tally(event)], 0
    while todo:
        counts = todo.pop()
        key = frozenset(counts.items())
        if key in seen:
            continue
        seen[key], kinds = counts, kinds + len(counts)
        if kinds > _MOST_KINDS:
            raise UnsupportedEvent("so many different blocks are priced in Renyi DP only", event=event)
        split = next((leaf for leaf in counts if isinstance(leaf, Parallel)), None)
        if split is not None:
            blocks = {frozenset(tally(block).items()): block for block in split.events}.values()
            # Each time anew an example falls into one of them; where all are alike, all times are the same.
            times = 1 if len(blocks) > 1 else counts[split]
            left = {leaf: n - times * (leaf == split) for leaf, n in counts.items()}
            todo += [tally(Composed((_tree(left), Repeated(block, times)))) for block in blocks]
    return [_tree(counts) for counts in seen.values() if not any(isinstance(leaf, Parallel) for leaf in counts)]


def _tree(counts: dict[Event, int]) -> Event:
    return Composed(tuple(Repeated(leaf, times) for leaf, times in counts.items()))
