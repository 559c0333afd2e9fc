"""What each release of a run cost, as shares of the whole: for people, and no guarantee of its
own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, final

import numpy as np

from privlearn.core.accounting import rdp
from privlearn.core.accounting.events import Composed, Event, Repeated, compose, to_json, walk
from privlearn.errors import UnsupportedEvent

#: Releases that differ in nothing but their noise are put together, where there would be more than
#: this.
_MOST = 12
#: What a reader is told of a mechanism, by the name that it is stored under; of others its own
#: name.
_WORDS = {
    "gaussian": "A sum over all examples, with Gaussian noise",
    "poisson_sampled": "Sums over random batches, with Gaussian noise",
    "partitioned": "Epochs over random batches that share no example, with Gaussian noise",
    "fixed_batches": "Epochs over shuffled batches that share no example, with Gaussian noise",
    "laplace": "Counts or sums with Laplace noise",
    "randomised_response": "Labels, each randomised by itself",
    "selection": "A choice among candidates by noisy scores",
    "filter": "All training, up to a limit that was set beforehand",
    "gaussian_filter": "All training, up to a limit that was set beforehand",
    "parallel": "Releases on disjoint parts of the data, of which one example meets one",
    "one_of": "One of several trainings",
    "repeat_and_select": "Several trainings, a random number of them, of which the best was kept",
}


@final
@dataclass(frozen=True)
class Cost:
    """Some releases, one after the other.

    Attributes:
        what: what they are.
        times: how many.
        noise: the least and the largest noise multiplier; None where they have none.
        share: of the whole, from 0 to 1; None where it is not known.
    """

    what: str
    times: int
    noise: tuple[float, float] | None
    share: float | None


def costs(event: Event, delta: float) -> list[Cost]:
    """What the releases of `event` cost, in their order.

    Shares are of the Renyi divergence at the order that gives epsilon at `delta`: there costs add
    up, which epsilons do not.
    """
    groups = list(_group(event))
    shares: list[float | None] = [None] * len(groups)
    try:  # the same conversion as of `rdp.epsilon`, but for what does not move the order
        curves = [rdp.curve(Composed(tuple(group))) for group in groups]
    except UnsupportedEvent:
        curves = []
    total = np.sum(curves, axis=0) if curves else np.array([math.inf])
    best = int((total + math.log(1 / delta) / (rdp.ORDERS[: len(total)] - 1)).argmin())
    if 0 < total[best] < math.inf:
        shares = [float(curve[best] / total[best]) for curve in curves]
    return [_describe(group, share) for group, share in zip(groups, shares, strict=True)]


def _group(event: Event) -> Iterator[list[Event]]:
    """The releases in their order, equal neighbours together; and those alike, if there would be
    too many.
    """
    parts = compose([event]).events
    if len(parts) <= _MOST:
        yield from ([part] for part in parts)
        return
    alike = [list(same) for _, same in groupby(parts, lambda part: _kind(part)[0])]
    room = max(1, _MOST - len(alike) + 1)
    for same in alike:
        size = math.ceil(len(same) / max(1, round(room * len(same) / len(parts))))
        yield from (same[start : start + size] for start in range(0, len(same), size))


def _kind(part: Event) -> tuple[str, dict[str, Any]]:
    """The name that a release is stored under, and its values."""
    stored = to_json(part.event if isinstance(part, Repeated) else part)
    return stored["kind"], stored


def _describe(group: list[Event], share: float | None) -> Cost:
    kind, stored = _kind(group[0])
    rate = stored.get("sampling_rate")
    drawn = (
        f" (each example is in one with probability {rate:.3g})" if isinstance(rate, float) else ""
    )
    noises = [noise for noise in (_noise(_kind(part)[1]) for part in group) if noise is not None]
    return Cost(
        _WORDS.get(kind, kind.replace("_", " ").capitalize()) + drawn,
        sum(times for part in group for _, times in walk(part)),
        (min(noises), max(noises)) if noises else None,
        share,
    )


def _noise(stored: dict[str, Any]) -> float | None:
    """The noise multiplier of a stored mechanism, or of the one inside."""
    inside = stored.get("event")
    multiplier = stored.get(
        "noise_multiplier", inside.get("noise_multiplier") if isinstance(inside, dict) else None
    )
    return float(multiplier) if isinstance(multiplier, int | float) else None
