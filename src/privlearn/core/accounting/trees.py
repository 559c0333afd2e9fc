"""Some events stand for other ones (`Parallel`, `OneOf`, `RepeatAndSelect`, filters); this file has
them, and makes trees from trees.

A group of examples as one example: the event tree for a person with k of the examples. Every
mechanism that scales exactly is replaced by what it is for k examples together. What comes out is
for accountants only: it is never charged and never stored, because group sizes are no part of what
happened.

Disjoint blocks as one example meets them: one block's events, and never another's. Let examples be
assigned to blocks independently of each other and of what they hold. Given the assignment, an
example that lies in block j takes part in block j's mechanism alone: what happens on other blocks
before it is the same for neighbours, and what happens there afterwards is post-processing. So the
run is block j's mechanism composed with whatever is done outside of the blocks, and the run as a
whole is a mixture of those over j. A hockey-stick divergence is jointly convex: that of the mixture
is at most the largest of its parts, and epsilon is at most the largest epsilon of theirs, by
whichever method that was computed. (Renyi divergences are quasi-convex, so for them the same holds
order by order.)

Repeat and select: a mechanism is run a random number of times, and only the best outcome is
released. The number of runs K has a truncated negative binomial law of shape eta > 0 (0:
logarithmic, 1: geometric),

    P(K = k) = (1 - gamma)^k / (gamma^-eta - 1) x product_{l < k} (l + eta) / (l + 1),   k = 1, 2,
    ...,

or a Poisson law (shape infinity), under which there may be no run at all. Here are its terms, to
draw K, and the Renyi divergence of the whole, for accountants, so that both speak of one law. K
itself is never released: the price is for the best outcome alone (Papernot and Steinke 2022, Thm 2
for negative binomial laws, Thm 6 for Poisson's). Both theorems ask for one run's divergence in both
directions between neighbours, which every price here bounds, and for nothing else: any event and
any kind of neighbour will do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, final

import numpy as np

from privlearn._checks import between, count, positive
from privlearn.core.accounting import rdp, zcdp
from privlearn.core.accounting.events import (
    Composed,
    Event,
    Mechanism,
    Repeated,
    compose,
    kind,
    require_event,
    require_events,
    tally,
)
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import RHO, Gaussian
from privlearn.core.accounting.rdp import Array
from privlearn.core.accounting.searches import bisect
from privlearn.errors import BadInput, UnsupportedEvent

#: The rho of a Gaussian release with the least noise.
_MOST_GAUSSIAN = 5e11


@kind("parallel")
@final
@dataclass(frozen=True, slots=True)
class Parallel(Mechanism):
    """`events` on disjoint blocks of the data, to which examples were assigned independently of
    each other.

    One example meets one block, so the whole costs the maximum (Yu et al. 2019, Thm 2). Groups have
    no form here: k examples may lie in several blocks.
    """

    events: tuple[Event, ...]

    adjacencies = frozenset({Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT})
    phrase = "parallel composition over disjoint blocks"

    def __post_init__(self) -> None:
        require_events(self.events, "block's event")

    @property
    def inside(self) -> tuple[Event, ...]:
        return self.events

    def zcdp(self) -> float:
        return max(zcdp.rho(event) for event in self.events)

    def renyi(self, orders: Array) -> Array:
        return np.asarray(
            np.max([rdp.curve(event, orders) for event in self.events], axis=0), dtype=np.float64
        )


@kind("one_of")
@final
@dataclass(frozen=True, slots=True)
class OneOf(Mechanism):
    """One of `events` takes place: drawn at random, or chosen by what was released before.

    Whichever it is, the whole costs their maximum, Renyi order by Renyi order. A choice that looks
    at the data is no such event: it has to be a release of its own.
    """

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        require_events(self.events, "event to choose from")

    @property
    def inside(self) -> tuple[Event, ...]:
        return self.events

    def zcdp(self) -> float:
        return max(zcdp.rho(event) for event in self.events)

    def renyi(self, orders: Array) -> Array:
        return np.asarray(
            np.max([rdp.curve(event, orders) for event in self.events], axis=0), dtype=np.float64
        )

    def grouped(self, k: int) -> OneOf | None:
        groups = [for_group(event, k) for event in self.events]
        known = tuple(group for group in groups if group is not None)
        return OneOf(known) if len(known) == len(groups) else None


def one_of(events: Iterable[Event]) -> Event:
    """One of `events`, or, if they are all the same, that one."""
    choices = tuple(compose([event]) for event in events)
    return (
        choices[0] if choices and all(event == choices[0] for event in choices) else OneOf(choices)
    )


@kind("repeat_and_select")
@final
@dataclass(frozen=True, slots=True)
class RepeatAndSelect(Mechanism):
    """`event` run a random number of times, and only the best outcome released (Papernot and
    Steinke 2022).

    The number of runs has mean `mean` and a truncated negative binomial law of this `shape` (0:
    logarithmic, 1: geometric, infinity: Poisson).
    """

    event: Event
    mean: float
    shape: float

    def __post_init__(self) -> None:
        require_event(self.event)
        between("mean", self.mean, 1.0, 1e9)
        if (
            isinstance(self.shape, bool)
            or not isinstance(self.shape, int | float)
            or not self.shape >= 0
        ):
            raise BadInput(f"shape is {self.shape!r}: expected a number of at least 0, or infinity")

    @property
    def inside(self) -> tuple[Event, ...]:
        return (self.event,)

    def renyi(self, orders: Array) -> Array:
        return best_of_runs(orders, rdp.curve(self.event, orders), self.mean, self.shape)

    def grouped(self, k: int) -> RepeatAndSelect | None:
        # The price of the best run follows from that of one run, whatever the neighbours differ in.
        run = for_group(self.event, k)
        return None if run is None else RepeatAndSelect(run, self.mean, self.shape)


@kind("filter")
@final
@dataclass(frozen=True, slots=True)
class Filter(Mechanism):
    """Releases chosen adaptively under a filter that was fixed beforehand; what is claimed is its
    limit.

    Either `rho` (a zCDP filter), or Renyi divergences at most `bounds[i]` at `orders[i]` (a Renyi
    filter).
    """

    rho: float | None
    orders: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.rho is None) == (not self.orders) or len(self.orders) != len(self.bounds):
            raise BadInput(
                "a filter needs either rho, or orders and as many bounds: give exactly one of the "
                "two"
            )
        count("the number of orders", len(self.orders), least=0, most=10_000)
        if self.rho is not None:
            between("rho", self.rho, *RHO)
        for order, bound in zip(self.orders, self.bounds, strict=True):
            positive("a Renyi order minus 1", positive("a Renyi order", order) - 1)
            positive("a bound at a Renyi order", bound)
            between("a Renyi order", order, 1.0, RHO[1])
            between("a bound at a Renyi order", bound, 0.0, RHO[1])

    def zcdp(self) -> float:
        return Mechanism.zcdp(self) if self.rho is None else self.rho

    def renyi(self, orders: Array) -> Array:
        if self.rho is not None:
            return orders * self.rho
        # Divergence grows with the order, so a bound holds at every smaller one too.
        holds = [
            np.where(order >= orders, bound, np.inf)
            for order, bound in zip(self.orders, self.bounds, strict=True)
        ]
        return np.asarray(np.min(holds, axis=0), dtype=np.float64)

    def grouped(self, k: int) -> Filter | None:
        return None if self.rho is None else Filter(k**2 * self.rho)


@kind("gaussian_filter")
@final
@dataclass(frozen=True, slots=True)
class GaussianFilter(Mechanism):
    """Gaussian releases alone, chosen adaptively under a filter that was fixed beforehand: their
    rho adds up to at most `rho`.

    They are all together no worse than one Gaussian release of that rho, exactly (Smith and
    Thakurta 2022).
    """

    rho: float

    gaussian = True

    def __post_init__(self) -> None:
        between("rho", self.rho, RHO[0], _MOST_GAUSSIAN)

    @property
    def worth(self) -> Gaussian:
        """The one release that dominates everything that the filter lets through."""
        return Gaussian(math.sqrt(0.5 / self.rho))

    def zcdp(self) -> float:
        return self.rho

    def mu_squared(self, times: int = 1) -> float:
        return times * 2 * self.rho

    def renyi(self, orders: Array) -> Array:
        return orders * self.rho

    def dominating(self) -> Mechanism:
        return self.worth

    def grouped(self, k: int) -> GaussianFilter:
        return GaussianFilter(k**2 * self.rho)


_BITS = 400  # of the numbers that the law is computed in


def law_of_runs(mean: float, shape: float) -> Iterator[Any]:
    """P(K = 0), P(K = 1), ... one after the other, as mpmath's numbers, exact to about 400 bits.

    The law's own mean is at most `mean`, and within a part in 1e12 of it. Both numbers are those of
    a `RepeatAndSelect`.
    """
    import mpmath  # not to plan or verify

    def ratio(k: int) -> Any:
        """P(K = k + 1) over P(K = k)."""
        return rate / (k + 1) if poisson else (1 - g) * (k + eta) / (k + 1)

    poisson = math.isinf(shape)
    with mpmath.workprec(_BITS):
        if poisson:
            rate = mpmath.mpf(mean)
            k, term = 0, mpmath.exp(-rate)
        else:
            g, eta = mpmath.mpf(gamma(mean, shape)), mpmath.mpf(shape)
            scale = mpmath.log(1 / g) if shape == 0 else mpmath.powm1(1 / g, eta) / eta
            k, term = 1, (1 - g) / scale if g < 1 else mpmath.mpf(1)
    if k == 1:
        yield mpmath.mpf(0)
    while True:
        yield term
        with mpmath.workprec(_BITS):
            term, k = term * ratio(k), k + 1


@lru_cache(maxsize=64)
def gamma(mean: float, shape: float) -> float:
    """A negative binomial law's gamma: the least found, to a part in 1e12, whose mean is at most
    `mean`; 1 for 1.
    """
    _, least = bisect(lambda g: bool(_mean(g, shape) <= mean), 0.0, 1.0, 1e-12 * min(1.0, mean - 1))
    return least


def _mean(g: float, shape: float) -> Any:
    """E K: eta (1/g - 1) / (1 - g^eta), or (1/g - 1) / ln(1/g) for shape 0."""
    import mpmath

    with mpmath.workprec(_BITS):
        x, eta = mpmath.mpf(g), mpmath.mpf(shape)
        return (
            (1 / x - 1) / mpmath.log(1 / x)
            if shape == 0
            else eta * (1 / x - 1) / -mpmath.powm1(x, eta)
        )


def best_of_runs(orders: Array, one: Array, mean: float, shape: float) -> Array:
    """A bound on the Renyi divergence of the best of K runs, at each of `orders`.

    With a Poisson law there may be no run. That outcome is covered, too: let M be one run's moment
    of order a, q and q' the chances, for neighbours, of nothing better than the outcome at hand,
    and u = a (q - 1) - (a - 1)(q' - 1), which goes from -1 to 0 and is at most (a - 1) delta on its
    way (by the delta that Thm 6 speaks of). The runs' part of the moment is the integral of m e^{m
    u} r^a dq' at likelihood ratio r, and r^a dq' >= du by Bernoulli's inequality. Split off, du
    brings 1 - e^-m, and the rest at most m e^{m (a - 1) delta} (M - 1). With e^-m for no run that
    is at most 1 + m e^{m (a - 1) delta} (M - 1), which never exceeds the theorem's m e^{m (a - 1)
    delta} M.

    Args:
        orders: Renyi orders above 1, ascending.
        one: the divergence of one run at each of them, in both directions.
        mean: the mean of K.
        shape: the shape of its law.
    """
    if math.isinf(shape):
        # Thm 6, with delta of one run at epsilon = ln(1 + 1 / (order - 1)) from its curve (Canonne
        # et al. 2020, Prop 12).
        at = np.log1p(1 / (orders - 1))[:, None]
        logs = (orders - 1) * (one - at + np.log1p(-1 / orders)) - np.log(orders)
        deltas = np.exp(np.minimum(np.nan_to_num(logs, nan=np.inf), 0.0)).min(axis=1)
        bound = one + mean * deltas + math.log(mean) / (orders - 1)
    else:
        extra = (1 + shape) * float(
            np.min((1 - 1 / orders) * one - math.log(gamma(mean, shape)) / orders)
        )
        bound = one + extra + math.log(mean) / (orders - 1)
    # Divergence grows with the order, so a bound holds at every smaller one too.
    return np.asarray(np.minimum.accumulate(bound[::-1])[::-1], dtype=np.float64)


def for_group(event: Event, k: int) -> Event | None:
    """`event` as it is for `k` examples together, or None where a mechanism has no such form
    here.
    """
    if k == 1:
        return event
    counts = []
    for leaf, times in tally(event).items():
        try:
            group = leaf.grouped(k)
        except BadInput:  # out of the range of events: noise below 1e-6, say
            return None
        if group is None:
            return None
        counts.append(Repeated(group, times))
    return Composed(tuple(counts))


_M = TypeVar("_M", bound=Mechanism)


def of_kind(event: Event, kind: type[_M]) -> dict[_M, int]:
    """The mechanisms of `event` that are of this kind, counted."""
    return {leaf: times for leaf, times in tally(event).items() if isinstance(leaf, kind)}


#: Mechanisms in all alternatives together; each takes some milliseconds.
_MOST_KINDS = 1000


def per_block(event: Event) -> list[Event]:
    """What one example may be confronted with: `event`, with one block's events in place of each
    `Parallel`.

    Raises:
        UnsupportedEvent: there are too many to price each by itself.
    """
    seen: dict[frozenset[tuple[Mechanism, int]], dict[Mechanism, int]] = {}
    todo, kinds = [tally(event)], 0
    while todo:
        counts = todo.pop()
        key = frozenset(counts.items())
        if key in seen:
            continue
        seen[key], kinds = counts, kinds + len(counts)
        if kinds > _MOST_KINDS:
            raise UnsupportedEvent(
                "so many different blocks are priced in Renyi DP only", event=event
            )
        split = next((leaf for leaf in counts if isinstance(leaf, Parallel)), None)
        if split is not None:
            blocks = {frozenset(tally(block).items()): block for block in split.events}.values()
            # Each time anew an example falls into one of them; where all are alike, all times are
            # the same.
            times = 1 if len(blocks) > 1 else counts[split]
            left = {leaf: n - times * (leaf == split) for leaf, n in counts.items()}
            todo += [tally(Composed((_tree(left), Repeated(block, times)))) for block in blocks]
    return [
        _tree(counts)
        for counts in seen.values()
        if not any(isinstance(leaf, Parallel) for leaf in counts)
    ]


def _tree(counts: dict[Mechanism, int]) -> Event:
    return Composed(tuple(Repeated(leaf, times) for leaf, times in counts.items()))
