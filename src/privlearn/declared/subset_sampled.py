"""What a random subset of a fixed size costs where an example is replaced or emptied.

A release of such a batch has, in both directions and at every e^epsilon of at least 1, at most the
hockey-stick divergence of a Poisson-sampled release in which one example moves the sum by two
clipping norms (advanced joint convexity: Balle, Barthe and Gaboardi 2018). Below 1 that bound
follows from the other direction. The laws of the Poisson sample alone are no bound for several
releases (Lebeda et al. 2024): those here are symmetric (Zhu et al. 2022, Theorem 11).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from privlearn.core.accounting.events import Mechanism
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.accounting.pld.pairs import Pair, PairBuilder
from privlearn.core.accounting.pld.rounding import UNIT


@final
@dataclass(frozen=True, slots=True)
class SubsetSampled(Mechanism):
    """One release on a random subset of a fixed size, for accountants alone: it is never stored.

    Attributes:
        sampling_rate: the size of the subset over the number of examples.
        event: the release, its noise over two clipping norms.
    """

    sampling_rate: float
    event: Gaussian

    adjacencies = frozenset({Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE})
    phrase = "random subsets of a fixed size"

    @property
    def noise_level(self) -> float:
        """The noise over two clipping norms."""
        return self.event.noise_multiplier

    def pair(self) -> PairBuilder:
        """The symmetric laws of the Poisson sample."""
        sampled = PoissonSampled(self.sampling_rate, self.event).pair()
        return PairBuilder(
            lambda h, tail: make_symmetric(sampled.build(h, tail)),
            sampled.spread,
            2 * sampled.width,
        )


def make_symmetric(pair: Pair) -> Pair:
    """The pair of laws whose divergence is that of `pair` at e^epsilon of at least 1, in both
    directions.
    """
    losses = pair.losses
    above = losses > 0
    count = round(losses[above].max() / pair.h) if above.any() else 0
    q = np.zeros(2 * count + 1)
    places = np.arange(pair.lo, pair.lo + len(pair.q))[above]
    q[count + places] = pair.q[above]
    # the P-mass of a ratio is the Q-mass of its inverse
    share = 1 + 8 * UNIT * (1 + losses[above])
    q[count - places] = pair.q[above] * np.exp(losses[above]) * share
    q[count] = max(0.0, 1 - float(q.sum()) - pair.p_inf)
    return Pair(pair.h, -count, q, pair.p_inf, pair.p_inf)
