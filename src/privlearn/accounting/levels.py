"""Very many noise levels, put together on few: less noise is an upper bound, so each is rounded down."""

from __future__ import annotations

import math

from privlearn.accounting.events import (
    Event,
    Gaussian,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
)
from privlearn.accounting.group_events import GroupSampled

#: Distinct mechanisms beyond which noise levels are put together.
_MOST = 400


def on_few_levels(counts: dict[Event, int]) -> dict[Event, int]:
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
