"""Mechanisms are the leaves of event trees, and each class has all that is known of its mechanism.

A new one is one class: its numbers and their ranges, the prices that it has (`Mechanism` says which
there are, and refuses the others by name), what it is for several examples together, and its name
in JSON.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from privlearn._checks import between, count, positive
from privlearn.core.accounting import rdp
from privlearn.core.accounting.events import Event, Mechanism, Repeated, kind
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.pld import partition
from privlearn.core.accounting.pld.pairs import (
    ATOMS,
    PairBuilder,
    group_pair,
    laplace_pair,
    poisson_pair,
    pure_pair,
    randomised_response_pair,
    ratio_range,
    sketch,
)
from privlearn.core.accounting.pld.rounding import Array
from privlearn.errors import UnsupportedEvent

#: Where the number of examples may differ, or one of them be empty; and where their number is
#: public.
_ASSIGNED = frozenset({Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT})
_COUNTED = frozenset({Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE})
#: Numbers beyond these mean nothing in practice, and would overflow.
_NOISE, _EPSILON, RHO = (1e-6, 1e12), (1e-12, 1e6), (1e-24, 1e12)


@kind("gaussian")
@final
@dataclass(frozen=True, slots=True)
class Gaussian(Mechanism):
    """One Gaussian release on all the data: noise of standard deviation `noise_multiplier` x L2
    sensitivity.
    """

    noise_multiplier: float

    gaussian = True

    def __post_init__(self) -> None:
        between("noise_multiplier", self.noise_multiplier, *_NOISE)

    @property
    def noise_level(self) -> float:
        return self.noise_multiplier

    def zcdp(self) -> float:
        return 0.5 / self.noise_multiplier**2

    def mu_squared(self, times: int = 1) -> float:
        return times / self.noise_multiplier**2

    def renyi(self, orders: Array) -> Array:
        return orders / (2 * self.noise_multiplier**2)

    def pair(self) -> PairBuilder:
        sigma = self.noise_multiplier
        return PairBuilder(
            lambda h, tail: poisson_pair(1.0, sigma, h, tail), 1 / sigma, ratio_range(1.0, sigma)
        )

    def grouped(self, k: int) -> Gaussian:
        return Gaussian(self.noise_multiplier / k)

    def coarsened(self, noise_multiplier: float) -> Gaussian:
        return Gaussian(min(noise_multiplier, self.noise_multiplier))


@kind("poisson_sampled")
@final
@dataclass(frozen=True, slots=True)
class PoissonSampled(Mechanism):
    """One release on a batch into which each example fell independently with probability
    `sampling_rate`.
    """

    sampling_rate: float
    event: Gaussian

    adjacencies = _ASSIGNED
    phrase = "Poisson sampling"
    poisson = True

    def __post_init__(self) -> None:
        between("sampling_rate", self.sampling_rate, 1e-12, 1.0)
        _require_gaussian(self)

    @property
    def noise_level(self) -> float:
        return self.event.noise_multiplier

    @property
    def inclusion(self) -> float:
        return self.sampling_rate

    def zcdp(self) -> float:
        raise UnsupportedEvent(
            "Poisson sampling has no amplified zCDP guarantee: its Renyi divergence grows without "
            "the sampling rate at high orders. Give a target epsilon and delta instead of rho, or "
            "use partition, shuffle or full sampling",
            event=self,
        )

    def renyi(self, orders: Array) -> Array:
        return rdp.sampled_gaussian(self.sampling_rate, self.event.noise_multiplier, orders)

    def pair(self) -> PairBuilder:
        rate, sigma = self.sampling_rate, self.event.noise_multiplier
        # ln(1 + Var R), which is exact for the plain Gaussian
        variance = math.log1p(rate**2 * math.expm1(min(sigma**-2, 700.0)))
        width = ratio_range(rate, sigma)
        return PairBuilder(
            lambda h, tail: poisson_pair(rate, sigma, h, tail), math.sqrt(variance), width
        )

    def dominating(self) -> Mechanism:
        return self.event if self.sampling_rate == 1 else self

    def grouped(self, k: int) -> Event:
        if self.sampling_rate == 1:
            return self.event.grouped(k)
        return GroupSampled(self.sampling_rate, k, self.event)

    def coarsened(self, noise_multiplier: float) -> PoissonSampled:
        return PoissonSampled(self.sampling_rate, self.event.coarsened(noise_multiplier))


@final
@dataclass(frozen=True, slots=True)
class GroupSampled(Mechanism):
    """One release on a Poisson batch, for a person with `group_size` of the examples, each drawn
    independently.

    For accountants alone: it is never charged and never stored, because group sizes are no part of
    what happened. Dominated, in both directions, by sum_j Binomial(k, q)(j) N(j, sigma^2) against
    N(0, sigma^2): docs/decisions/proofs-of-prices.md has the proof (for Poisson sampling: Ganesh
    2024).
    """

    sampling_rate: float
    group_size: int
    event: Gaussian

    adjacencies = _ASSIGNED

    @property
    def noise_level(self) -> float:
        return self.event.noise_multiplier

    def renyi(self, orders: Array) -> Array:
        return rdp.sampled_group(
            self.sampling_rate, self.group_size, self.event.noise_multiplier, orders
        )

    def pair(self) -> PairBuilder:
        rate, sigma, k = self.sampling_rate, self.event.noise_multiplier, self.group_size
        return PairBuilder(
            lambda h, tail: group_pair(rate, sigma, k, h, tail), *sketch(rate, sigma, k)
        )

    def coarsened(self, noise_multiplier: float) -> GroupSampled:
        return GroupSampled(
            self.sampling_rate, self.group_size, self.event.coarsened(noise_multiplier)
        )


@kind("partitioned")
@final
@dataclass(frozen=True, slots=True)
class Partitioned(Mechanism):
    """One epoch: each example falls into one of `batches` independently and uniformly; `event` on
    each batch.

    The partition is drawn afresh for every epoch and is secret (balls in bins). Groups have no form
    here: their dominating pair is known, and no way to compute with it is.
    """

    batches: int
    event: Gaussian

    adjacencies = _ASSIGNED
    phrase = "random partition"
    gaussian = True
    stated_before = 9e-4  # coarser grids

    def __post_init__(self) -> None:
        count("batches", self.batches)
        _require_gaussian(self)

    @property
    def noise_level(self) -> float:
        return self.event.noise_multiplier

    @property
    def inclusion(self) -> float:
        return 1 / self.batches

    def zcdp(self) -> float:
        return self.event.zcdp()  # parallel composition (Yu et al. 2019, Thm 2)

    def renyi(self, orders: Array) -> Array:
        return self.event.renyi(orders)  # over disjoint batches one example meets one release

    def pair(self) -> PairBuilder:
        batches, sigma = self.batches, self.event.noise_multiplier
        spread = partition.spread(batches, sigma)
        width = ratio_range(1 / batches, sigma) + 16 * spread
        return PairBuilder(
            lambda h, tail: partition.partition_pair(batches, sigma, h, tail),
            spread,
            width,
            (partition.Epochs(batches), sigma),
        )

    def dominating(self) -> Mechanism:
        if self.batches == 1:
            return self.event
        batches, sigma = partition.within_reach(self.batches, self.event.noise_multiplier)
        return Partitioned(batches, Gaussian(sigma))

    def coarsened(self, noise_multiplier: float) -> Partitioned:
        return Partitioned(self.batches, self.event.coarsened(noise_multiplier))


@kind("fixed_batches")
@final
@dataclass(frozen=True, slots=True)
class FixedBatches(Mechanism):
    """One epoch over disjoint batches of fixed sizes, in fixed or shuffled order; `event` on each
    batch.

    Covered where the number of examples is public. Removing an example would shift or refill other
    batches, so add/remove is not (Yu et al. 2019, Thm 2, needs examples that are assigned
    independently).
    """

    event: Gaussian

    adjacencies = _COUNTED
    phrase = "shuffling (or any fixed batches)"
    gaussian = True

    def __post_init__(self) -> None:
        _require_gaussian(self)

    def zcdp(self) -> float:
        return self.event.zcdp()

    def mu_squared(self, times: int = 1) -> float:
        return self.event.mu_squared(times)

    def renyi(self, orders: Array) -> Array:
        return self.event.renyi(orders)

    def dominating(self) -> Mechanism:
        # One example meets one batch of the epoch; averaging over the batches cannot raise the
        # curve.
        return self.event

    def grouped(self, k: int) -> FixedBatches:
        # Wherever the k examples fall: n_b of them in batch b is a Gaussian of sensitivity sqrt(sum
        # n_b^2) <= k.
        return FixedBatches(self.event.grouped(k))


@kind("laplace")
@final
@dataclass(frozen=True, slots=True)
class Laplace(Mechanism):
    """One Laplace release on all the data: scale `noise_multiplier` x L1 sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        between("noise_multiplier", self.noise_multiplier, *_NOISE)

    @property
    def noise_level(self) -> float:
        return self.noise_multiplier

    def zcdp(self) -> float:
        return 0.5 / self.noise_multiplier**2

    def renyi(self, orders: Array) -> Array:
        b = self.noise_multiplier
        shares = np.log(orders / (2 * orders - 1)), np.log((orders - 1) / (2 * orders - 1))
        moment = np.logaddexp(shares[0] + (orders - 1) / b, shares[1] - orders / b)
        return np.asarray(moment / (orders - 1), dtype=np.float64)

    def pure(self, times: int = 1) -> Fraction:
        return times / Fraction(self.noise_multiplier)

    def pair(self) -> PairBuilder:
        b = self.noise_multiplier
        return PairBuilder(lambda h, tail: laplace_pair(b, h), ATOMS / b, 2 / b)

    def grouped(self, k: int) -> Laplace:
        return Laplace(self.noise_multiplier / k)


@kind("randomised_response")
@final
@dataclass(frozen=True, slots=True)
class RandomisedResponse(Mechanism):
    """Each example reports one of `categories`, its own with e^epsilon times the probability of
    each other.
    """

    epsilon: float
    categories: int

    adjacencies = _COUNTED
    phrase = "randomised response"

    def __post_init__(self) -> None:
        between("epsilon", self.epsilon, *_EPSILON)
        count("categories", self.categories, least=2)

    @property
    def noise_level(self) -> float:
        return 1 / self.epsilon

    def zcdp(self) -> float:
        return self.epsilon**2 / 2

    def renyi(self, orders: Array) -> Array:
        return rdp.randomised_response(self.epsilon, self.categories, orders)

    def pure(self, times: int = 1) -> Fraction:
        return times * Fraction(self.epsilon)

    def pair(self) -> PairBuilder:
        eps, categories = self.epsilon, self.categories
        return PairBuilder(
            lambda h, tail: randomised_response_pair(eps, categories, h), ATOMS * eps, 2 * eps
        )

    def grouped(self, k: int) -> Repeated:
        return Repeated(self, k)  # each example reports by itself


@kind("selection")
@final
@dataclass(frozen=True, slots=True)
class Selection(Mechanism):
    """One draw of the exponential mechanism whose privacy loss has a range of at most `epsilon`.

    With scores of sensitivity 1, probabilities proportional to exp(epsilon score / 2), or
    exp(epsilon score) where all scores move in one direction between neighbours. One-shot Gumbel
    top-m is m of these (Durfee and Rogers 2019).
    """

    epsilon: float

    loose_pair = True

    def __post_init__(self) -> None:
        between("epsilon", self.epsilon, *_EPSILON)

    def zcdp(self) -> float:
        return self.epsilon**2 / 8  # Cesar and Rogers 2021

    def renyi(self, orders: Array) -> Array:
        return np.minimum(
            orders * self.epsilon**2 / 8, rdp.randomised_response(self.epsilon, 2, orders)
        )

    def pure(self, times: int = 1) -> Fraction:
        return times * Fraction(self.epsilon)

    def dominating(self) -> Mechanism:
        # A loss of range epsilon is epsilon-DP; its tighter prices are in Renyi DP and zCDP.
        return PureDP(self.epsilon)

    def grouped(self, k: int) -> Selection:
        # the range of a sum of losses is at most the sum of their ranges
        return Selection(k * self.epsilon)


@kind("pure_dp")
@final
@dataclass(frozen=True, slots=True)
class PureDP(Mechanism):
    """Any mechanism that is epsilon-DP with delta 0."""

    epsilon: float

    def __post_init__(self) -> None:
        between("epsilon", self.epsilon, *_EPSILON)

    @property
    def noise_level(self) -> float:
        return 1 / self.epsilon

    def zcdp(self) -> float:
        return self.epsilon**2 / 2

    def renyi(self, orders: Array) -> Array:
        return rdp.randomised_response(self.epsilon, 2, orders)

    def pure(self, times: int = 1) -> Fraction:
        return times * Fraction(self.epsilon)

    def pair(self) -> PairBuilder:
        eps = self.epsilon
        return PairBuilder(lambda h, tail: pure_pair(eps, h), ATOMS * eps, 2 * eps)

    def grouped(self, k: int) -> PureDP:
        return PureDP(k * self.epsilon)


@kind("zcdp")
@final
@dataclass(frozen=True, slots=True)
class ZCDP(Mechanism):
    """Any mechanism that is rho-zCDP."""

    rho: float

    def __post_init__(self) -> None:
        between("rho", self.rho, *RHO)

    def zcdp(self) -> float:
        return self.rho

    def renyi(self, orders: Array) -> Array:
        return orders * self.rho

    def grouped(self, k: int) -> ZCDP:
        return ZCDP(k**2 * self.rho)


@kind("non_private")
@final
@dataclass(frozen=True, slots=True)
class NonPrivate(Mechanism):
    """Something without any guarantee; a ledger that holds one can't be published."""

    reason: str

    def zcdp(self) -> float:
        raise UnsupportedEvent(f"this event gives no privacy: {self.reason}", event=self)

    def require_priceable(self) -> None:
        raise UnsupportedEvent(f"there is no guarantee to give: {self.reason}", event=self)


def _require_gaussian(event: PoissonSampled | Partitioned | FixedBatches) -> None:
    if not isinstance(event.event, Gaussian):
        raise UnsupportedEvent(
            f"{type(event).__name__} of a {type(event.event).__name__}: only Gaussian releases are "
            "priced inside batches",
            event=event.event,
        )


def draw_epsilon(rho: float, draws: int = 1) -> float:
    """The range epsilon of each of `draws` selections that cost `rho` together: draws epsilon^2 / 8
    = rho.

    Noise for private selection, from a zCDP budget (Durfee and Rogers 2019; Cesar and Rogers 2021).
    """
    return math.sqrt(8 * positive("rho", rho) / count("draws", draws))


def gumbel_scale(sensitivity: float, epsilon: float) -> float:
    """The scale of Gumbel noise on scores of this `sensitivity`, for one `Selection(epsilon)` or
    one-shot top-m.
    """
    return 2 * positive("sensitivity", sensitivity) / positive("epsilon", epsilon)
