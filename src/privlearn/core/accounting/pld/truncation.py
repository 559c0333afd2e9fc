"""Truncated Poisson sampling keeps a fixed number of rows of a Poisson batch at most, whatever they
hold.

Which rows are cut depends on how many were drawn, so an example's presence changes who else is
kept. Zero-out neighbours have the same rows drawn, so let T be what is kept besides one example. It
is drawn alike for both neighbours, and given T, the example is kept with the probability

    q                      if T has fewer than B - 1 rows, as nothing is cut then, with or without
    the example; k q / (k q + 1 - q)    if T has B - 1, where k = P(X >= B) / P(X = B), X from
    Binomial(n, q); 0                      if T has B.

Telling T as well can only help, so a step is dominated by a mixture: with a public probability,
that of the second case, the example is drawn at the larger rate, and else at q.
docs/decisions/proofs-of-prices.md has the proof. (Chua et al. 2024 add T (1 + e^epsilon) P(X > B)
to the delta of T steps of Poisson sampling, which is useless where cuts are not rare.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from privlearn._checks import count
from privlearn.core.accounting.events import Event, Mechanism, kind
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.accounting.pld.pairs import Pair, PairBuilder
from privlearn.core.accounting.pld.rounding import TINY, UNIT, Array, rounded_up
from privlearn.core.accounting.searches import largest
from privlearn.errors import BadInput, UnsupportedEvent

#: How often a batch is cut, at most, with the usual maximum.
RARE = 1e-15
#: Below this probability, what happens then counts as wholly distinguishable: masses would
#: underflow.
_NEVER = 1e-60
#: Terms of the tail that are added one by one; a bound on the rest follows.
_MOST_TERMS = 1_000_000


@kind("truncated_poisson_sampled")
@final
@dataclass(frozen=True, slots=True)
class TruncatedPoissonSampled(Mechanism):
    """One release on a batch into which each of at most `examples` rows fell independently with
    probability `sampling_rate`, and of which `maximum` rows were kept at most: each set of that
    size equally likely.

    For zero-out neighbours: the number of rows is public, and an empty example is drawn, and cut,
    as any other. Groups are priced as one example where nothing can be cut, and else as wholly
    distinguishable.
    """

    sampling_rate: float
    examples: int
    maximum: int
    event: Gaussian

    adjacencies = frozenset({Adjacency.ZERO_OUT})
    phrase = "truncated Poisson sampling"

    def __post_init__(self) -> None:
        PoissonSampled(self.sampling_rate, self.event)
        require_maximum(self.sampling_rate, self.examples, self.maximum)

    @property
    def noise_level(self) -> float:
        return self.event.noise_multiplier

    @property
    def inclusion(self) -> float:
        return self.sampling_rate

    @property
    def most_rows(self) -> int:  # type: ignore[override]
        return self.maximum

    @property
    def worth(self) -> Mechanism:
        """What dominates it: Poisson sampling, and now and then at a larger rate."""
        usual = PoissonSampled(self.sampling_rate, self.event)
        if self.maximum >= self.examples:
            return usual
        chance, rate = more_often(self.sampling_rate, self.examples, self.maximum)
        return Mixture(usual, PoissonSampled(rate, self.event), chance)

    def zcdp(self) -> float:
        # which says that there is none
        return PoissonSampled(self.sampling_rate, self.event).zcdp()

    def renyi(self, orders: Array) -> Array:
        return self.worth.renyi(orders)

    def pair(self) -> PairBuilder:
        return self.worth.pair()

    def dominating(self) -> Mechanism:
        return self.worth.dominating()

    def grouped(self, k: int) -> Event | None:
        usual = PoissonSampled(self.sampling_rate, self.event).grouped(k)
        if self.maximum >= self.examples:
            return usual
        # Where fewer than B - k others are kept, nothing is cut, whichever of the group are drawn.
        if self.maximum - k < least_maximum(self.sampling_rate, self.examples) or not isinstance(
            usual, Mechanism
        ):
            return None
        return Mixture(usual, None, cut_chance(self.sampling_rate, self.examples, self.maximum - k))

    def coarsened(self, noise_multiplier: float) -> TruncatedPoissonSampled:
        event = self.event.coarsened(noise_multiplier)
        return TruncatedPoissonSampled(self.sampling_rate, self.examples, self.maximum, event)


@final
@dataclass(frozen=True, slots=True)
class Mixture(Mechanism):
    """`usual`, or with a probability of at most `chance` `rare`: which of the two does not depend
    on the example.

    For accountants alone, as a bound: it is never charged and never stored. `rare` costs no less
    than `usual`, at every delta and order; None tells everything.
    """

    usual: Mechanism
    rare: Mechanism | None
    chance: float

    adjacencies = frozenset({Adjacency.ZERO_OUT})

    @property
    def noise_level(self) -> float:
        return self.usual.noise_level

    def renyi(self, orders: Array) -> Array:
        if self.rare is None:
            return np.full_like(orders, math.inf)
        usual, rare = ((orders - 1) * part.renyi(orders) for part in (self.usual, self.rare))
        # ln E R^(a - 1) under the mixture: of small moments, their excess over 1 has the digits.
        small = rare < 1
        excess = (1 - self.chance) * np.expm1(np.where(small, usual, 0.0))
        excess += self.chance * np.expm1(np.where(small, rare, 0.0))
        large = np.logaddexp(
            math.log1p(-min(self.chance, 1 - UNIT)) + usual, math.log(self.chance) + rare
        )
        return np.asarray(np.where(small, np.log1p(excess), large) / (orders - 1), dtype=np.float64)

    def pair(self) -> PairBuilder:
        usual = self.usual.pair()
        if self.rare is None or self.chance < _NEVER:
            return PairBuilder(
                lambda h, tail: _mix(usual.build(h, tail), None, self.chance),
                usual.spread,
                usual.width,
            )
        rare = self.rare.pair()
        spread = math.sqrt((1 - self.chance) * usual.spread**2 + self.chance * rare.spread**2)

        def build(h: float, tail: float) -> Pair:
            return _mix(usual.build(h, tail), rare.build(h, tail), self.chance)

        return PairBuilder(build, spread, max(usual.width, rare.width))


def _mix(usual: Pair, rare: Pair | None, chance: float) -> Pair:
    """The pair of both, on the grid of both, no mass below its exact value; `rare` is None where
    all is told.
    """
    share = rounded_up(1 - chance, 2)
    if rare is None:
        q0, p_inf = (rounded_up(share * mass + chance, 4) for mass in (usual.q0, usual.p_inf))
        return Pair(usual.h, usual.lo, usual.q * rounded_up(share, 2), q0, p_inf)
    low = min(usual.lo, rare.lo)
    q = np.zeros(max(usual.lo + len(usual.q), rare.lo + len(rare.q)) - low)
    q[usual.lo - low : usual.lo - low + len(usual.q)] = share * usual.q
    q[rare.lo - low : rare.lo - low + len(rare.q)] += chance * rare.q
    q0 = rounded_up(share * usual.q0 + chance * rare.q0, 4)
    return Pair(
        usual.h,
        low,
        q * rounded_up(1.0, 4),
        q0,
        rounded_up(share * usual.p_inf + chance * rare.p_inf, 4),
    )


def least_maximum(rate: float, examples: int) -> int:
    """The least maximum that is priced: above the expected number of rows by 1. Tails fall
    geometrically from there.
    """
    return min(examples, math.floor(rate * examples) + 2)


def require_maximum(rate: float, examples: int, maximum: int) -> None:
    """Raise `BadInput` unless batches at this rate may be cut at `maximum` of so many
    `examples`.
    """
    count("examples", examples)
    least = least_maximum(rate, examples)
    if count("maximum", maximum) < least:
        raise BadInput(
            f"the maximum is {maximum}, and batches of {rate * examples:.6g} rows are expected: "
            f"expected at least {least}, or most batches would be cut. Give a larger maximum, or "
            "leave it to the rule"
        )


def usual_maximum(rate: float, examples: int) -> int:
    """The least maximum at which a batch is cut with a probability of at most `RARE`, from public
    numbers alone.
    """
    least = least_maximum(rate, examples)
    cut = largest(
        lambda size: size < least or cut_chance(rate, examples, size + 1) > RARE, examples - 1
    )
    return cut + 1 if rate < 1 else examples


def cut_chance(rate: float, examples: int, size: int) -> float:
    """A bound on P(X >= size) for X from Binomial(examples, rate), for sizes from `least_maximum`
    on.
    """
    if size > examples:
        return 0.0
    chance, ratio = _tail(rate, examples, size)
    return min(1.0, rounded_up(chance * ratio, 2))


def more_often(rate: float, examples: int, maximum: int) -> tuple[float, float]:
    """Bounds on how likely one row less than the maximum is kept besides an example, and on its
    rate in that case.

    The former is B/n P(X = B) (k + (1 - q) / q), with k = P(X >= B) / P(X = B): the example is kept
    beside B - 1 others in one of n/B of the batches that have B rows left, and if it is not drawn,
    B - 1 others were.
    """
    chance, ratio = _tail(rate, examples, maximum)
    odds = rounded_up(ratio * rate / (1 - rate), 6)
    both = rounded_up(maximum / examples * chance * (ratio + (1 - rate) / rate), 12)
    return min(1.0, both), min(1.0, rounded_up(odds / (1 + odds), 8))


@lru_cache(maxsize=1024)
def _tail(rate: float, examples: int, size: int) -> tuple[float, float]:
    """Bounds on P(X = size), and on P(X >= size) over it, for X from Binomial(examples, rate)."""
    if not least_maximum(rate, examples) <= size <= examples or rate >= 1:
        raise UnsupportedEvent(
            f"{size} of {examples} rows at rate {rate:g} are not in the upper tail"
        )
    n, left = examples, examples - size
    # P(X = m + 1) / P(X = m) falls with m, and is below 1.
    terms = min(left, _MOST_TERMS, 64 + 10 * math.ceil(math.sqrt(n * rate)))
    m = np.arange(size, size + terms)
    products = np.cumprod((n - m) / (m + 1) * (rate / (1 - rate)))
    ratio = 1.0 + float(products.sum())
    if terms < left:
        after = (left - terms) / (size + terms + 1) * (rate / (1 - rate))
        ratio += float(products[-1]) * after / (1 - after) * 1.01
    if not left:
        return rounded_up(rate**n, 64 * n), ratio
    # Stirling, from above (Robbins 1955): sqrt(n / (2 pi m (n - m))) e^(-n KL(m/n || q)).
    parts = size * math.log(size / (n * rate)), left * (math.log1p(-size / n) - math.log1p(-rate))
    off = 8 * UNIT * (size * (2 + abs(math.log(size / (n * rate)))) + sum(map(abs, parts)))
    exact = math.sqrt(n / (2 * math.pi * size * left)) * math.exp(min(0.0, off - sum(parts)))
    return min(1.0, rounded_up(exact, 16) + TINY), rounded_up(ratio, 6 * terms + 32)
