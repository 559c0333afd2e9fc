"""What was done to the data, as frozen values: the one thing that accountants read and certificates carry.

An event is a tree. Its leaves are mechanisms (`Gaussian`), its inner nodes say how the data reached them
(`PoissonSampled`, `Partitioned`, `FixedBatches`) and how often (`Repeated`, `Composed`). Events hold public numbers
only; noise multipliers are relative to the sensitivity under the adjacency of the ledger that they stand in.

Noise for private selection, from a zCDP budget (Durfee and Rogers 2019; Cesar and Rogers 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

from privlearn._checks import between, count, positive
from privlearn.accounting.guarantee import Adjacency
from privlearn.errors import BadInput, UnsupportedEvent

_ALL = frozenset(Adjacency)
#: Numbers beyond these mean nothing in practice, and would overflow.
_NOISE, _EPSILON, _RHO = (1e-6, 1e12), (1e-12, 1e6), (1e-24, 1e12)
#: That of a Gaussian release with the least noise.
_GAUSSIAN_RHO = (_RHO[0], 5e11)


class Event:
    """Anything that a ledger can be charged with. Final subclasses are frozen values that compare by content."""

    __slots__ = ()

    #: The kinds of neighbour under which a sound price is known.
    adjacencies: frozenset[Adjacency] = _ALL


@final
@dataclass(frozen=True, slots=True)
class Gaussian(Event):
    """One Gaussian release on all the data: noise of standard deviation `noise_multiplier` x sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        between("noise_multiplier", self.noise_multiplier, *_NOISE)


@final
@dataclass(frozen=True, slots=True)
class PoissonSampled(Event):
    """One release on a batch into which each example fell independently with probability `sampling_rate`."""

    sampling_rate: float
    event: Gaussian

    adjacencies = frozenset({Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT})

    def __post_init__(self) -> None:
        between("sampling_rate", self.sampling_rate, 1e-12, 1.0)
        _require_gaussian(self)


@final
@dataclass(frozen=True, slots=True)
class Partitioned(Event):
    """One epoch: each example falls into one of `batches` independently and uniformly; `event` on each batch.

    The partition is drawn afresh for every epoch and is secret (balls in bins).
    """

    batches: int
    event: Gaussian

    adjacencies = frozenset({Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT})

    def __post_init__(self) -> None:
        count("batches", self.batches)
        _require_gaussian(self)


@final
@dataclass(frozen=True, slots=True)
class FixedBatches(Event):
    """One epoch over disjoint batches of fixed sizes, in fixed or shuffled order; `event` on each batch.

    Covered where the number of examples is public. Removing an example would shift or refill other batches, so
    add/remove is not (Yu et al. 2019, Thm 2, needs examples that are assigned independently).
    """

    event: Gaussian

    adjacencies = frozenset({Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE})

    def __post_init__(self) -> None:
        _require_gaussian(self)


@final
@dataclass(frozen=True, slots=True)
class Laplace(Event):
    """One Laplace release on all the data: scale `noise_multiplier` x L1 sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        between("noise_multiplier", self.noise_multiplier, *_NOISE)


@final
@dataclass(frozen=True, slots=True)
class PureDP(Event):
    """Any mechanism that is epsilon-DP with delta 0."""

    epsilon: float

    def __post_init__(self) -> None:
        between("epsilon", self.epsilon, *_EPSILON)


@final
@dataclass(frozen=True, slots=True)
class ZCDP(Event):
    """Any mechanism that is rho-zCDP."""

    rho: float

    def __post_init__(self) -> None:
        between("rho", self.rho, *_RHO)


@final
@dataclass(frozen=True, slots=True)
class RandomisedResponse(Event):
    """Each example reports one of `categories`, its own with e^epsilon times the probability of each other."""

    epsilon: float
    categories: int

    adjacencies = frozenset({Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE})

    def __post_init__(self) -> None:
        between("epsilon", self.epsilon, *_EPSILON)
        count("categories", self.categories, least=2)


@final
@dataclass(frozen=True, slots=True)
class Selection(Event):
    """One draw of the exponential mechanism whose privacy loss has a range of at most `epsilon`.

    With scores of sensitivity 1, probabilities proportional to exp(epsilon score / 2), or exp(epsilon score) where all
    scores move in one direction between neighbours. One-shot Gumbel top-m is m of these (Durfee and Rogers 2019).
    """

    epsilon: float

    def __post_init__(self) -> None:
        between("epsilon", self.epsilon, *_EPSILON)


@final
@dataclass(frozen=True, slots=True)
class RepeatAndSelect(Event):
    """`event` run a random number of times, and only the best outcome shown (Papernot and Steinke 2022).

    The number of runs has mean `mean` and a truncated negative binomial law of this `shape` (0: logarithmic,
    1: geometric, infinity: Poisson).
    """

    event: Event
    mean: float
    shape: float

    def __post_init__(self) -> None:
        _require_event(self.event)
        between("mean", self.mean, 1.0, 1e9)
        if isinstance(self.shape, bool) or not isinstance(self.shape, int | float) or not self.shape >= 0:
            raise BadInput(f"shape is {self.shape!r}: expected a number of at least 0, or infinity")


@final
@dataclass(frozen=True, slots=True)
class Parallel(Event):
    """`events` on disjoint blocks of the data, to which examples were assigned independently of each other.

    One example meets one block, so the whole costs the maximum (Yu et al. 2019, Thm 2).
    """

    events: tuple[Event, ...]

    adjacencies = frozenset({Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT})

    def __post_init__(self) -> None:
        _require_events(self.events)
        if not self.events:
            raise BadInput("events is empty: expected at least one block's event")


@final
@dataclass(frozen=True, slots=True)
class OneOf(Event):
    """One of `events` takes place: drawn at random, or chosen by what was released before.

    Whichever it is, the whole costs their maximum, Renyi order by Renyi order. A choice that looks at the data is no such
    event: it has to be a release of its own.
    """

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        _require_events(self.events)
        if not self.events:
            raise BadInput("events is empty: expected at least one event to choose from")


@final
@dataclass(frozen=True, slots=True)
class Filter(Event):
    """Releases chosen adaptively under a filter that was fixed beforehand; what is claimed is its limit.

    Either `rho` (a zCDP filter), or Renyi divergences at most `bounds[i]` at `orders[i]` (a Renyi filter).
    """

    rho: float | None
    orders: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.rho is None) == (not self.orders) or len(self.orders) != len(self.bounds):
            raise BadInput("a filter needs either rho, or orders and as many bounds: give exactly one of the two")
        count("the number of orders", len(self.orders), least=0, most=10_000)
        if self.rho is not None:
            between("rho", self.rho, *_RHO)
        for order, bound in zip(self.orders, self.bounds, strict=True):
            positive("a Renyi order minus 1", positive("a Renyi order", order) - 1)
            positive("a bound at a Renyi order", bound)
            between("a Renyi order", order, 1.0, _RHO[1])
            between("a bound at a Renyi order", bound, 0.0, _RHO[1])


@final
@dataclass(frozen=True, slots=True)
class GaussianFilter(Event):
    """Gaussian releases alone, chosen adaptively under a filter that was fixed beforehand: their rho adds up to at most `rho`.

    They are all together no worse than one Gaussian release of that rho, exactly (Smith and Thakurta 2022).
    """

    rho: float

    def __post_init__(self) -> None:
        between("rho", self.rho, *_GAUSSIAN_RHO)

    @property
    def worth(self) -> Gaussian:
        """The one release that dominates everything that the filter lets through."""
        return Gaussian(math.sqrt(0.5 / self.rho))


@final
@dataclass(frozen=True, slots=True)
class NonPrivate(Event):
    """Something without any guarantee; a ledger that holds one can't be published."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class Repeated(Event):
    """`event`, `count` times, adaptively. The only place where a count stands."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        count("count", self.count, least=0)
        _require_event(self.event)


@final
@dataclass(frozen=True, slots=True)
class Composed(Event):
    """All of `events`, one after the other, adaptively."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        _require_events(self.events)


def compose(events: Iterable[Event]) -> Composed:
    """Compose `events` into the canonical tree: flat, with equal neighbours run-length coded.

    Two compositions of the same leaves in the same order are equal, however they were nested.

    >>> a = Gaussian(2.0)
    >>> compose([Repeated(a, 2), Composed((a,))])
    Composed(events=(Repeated(event=Gaussian(noise_multiplier=2.0), count=3),))
    """
    runs: list[tuple[Event, int]] = []
    for leaf, times in walk(Composed(tuple(events))):
        if runs and runs[-1][0] == leaf:
            runs[-1] = (leaf, runs[-1][1] + times)
        else:
            runs.append((leaf, times))
    return Composed(tuple(leaf if times == 1 else Repeated(leaf, times) for leaf, times in runs))


def one_of(events: Iterable[Event]) -> Event:
    """One of `events`, or, if they are all the same, that one."""
    found = tuple(compose([event]) for event in events)
    return found[0] if found and all(event == found[0] for event in found) else OneOf(found)


def walk(event: Event) -> Iterator[tuple[Event, int]]:
    """Yield the mechanisms of `event` in order, each with how often it runs there; never with a count of 0."""
    match event:
        case Composed(events):
            for part in events:
                yield from walk(part)
        case Repeated(Composed(events), times) if len(events) > 1 and times > 1:
            # Order matters to the ledger, so a repeated sequence is spelled out.
            for _ in range(times):
                yield from walk(Composed(events))
        case Repeated(part, times):
            yield from ((leaf, inner * times) for leaf, inner in walk(part) if times)
        case _:
            yield event, 1


def tally(event: Event) -> dict[Event, int]:
    """Count every mechanism of `event`. Prices depend on the tally alone: composition is order-free."""
    match event:
        case Composed(events):
            total: dict[Event, int] = {}
            for part in events:
                for leaf, times in tally(part).items():
                    total[leaf] = total.get(leaf, 0) + times
            return total
        case Repeated(part, times):
            return {leaf: inner * times for leaf, inner in tally(part).items() if times}
        case _:
            return {event: 1}


def require_adjacency(event: Event, adjacency: Adjacency) -> None:
    """Raise `UnsupportedEvent` if a mechanism of `event` has no sound price under `adjacency`."""
    for leaf in tally(event):
        match leaf:
            case Parallel(events) | OneOf(events):
                require_adjacency(Composed(events), adjacency)
            case RepeatAndSelect(inner):
                require_adjacency(inner, adjacency)
        if adjacency not in leaf.adjacencies:
            covered = ", ".join(sorted(leaf.adjacencies))
            what = _PHRASES.get(type(leaf), type(leaf).__name__)
            raise UnsupportedEvent(
                f"{what} has no sound accounting for {adjacency.value} neighbours: it is covered for {covered}. Choose one "
                "of these adjacencies, or another way to draw batches",
                event=leaf,
                adjacency=adjacency,
            )


_PHRASES: dict[type[Event], str] = {
    PoissonSampled: "Poisson sampling",
    Partitioned: "random partition",
    FixedBatches: "shuffling (or any fixed batches)",
    RandomisedResponse: "randomised response",
    Parallel: "parallel composition over disjoint blocks",
}


def _require_event(event: object) -> None:
    if not isinstance(event, Event):
        raise BadInput(f"{event!r} is a {type(event).__name__}: expected an event")


def _require_events(events: object) -> None:
    if not isinstance(events, tuple):
        raise BadInput(f"events is a {type(events).__name__}: expected a tuple of events")
    for event in events:
        _require_event(event)


def _require_gaussian(event: PoissonSampled | Partitioned | FixedBatches) -> None:
    if not isinstance(event.event, Gaussian):
        raise UnsupportedEvent(
            f"{type(event).__name__} of a {type(event.event).__name__}: only Gaussian releases are priced inside "
            "batches",
            event=event.event,
        )


def draw_epsilon(rho: float, draws: int = 1) -> float:
    """The range epsilon of each of `draws` selections that cost `rho` together: draws epsilon^2 / 8 = rho."""
    return math.sqrt(8 * positive("rho", rho) / count("draws", draws))


def gumbel_scale(sensitivity: float, epsilon: float) -> float:
    """The scale of Gumbel noise on scores of this `sensitivity`, for one `Selection(epsilon)` or one-shot top-m of them."""
    return 2 * positive("sensitivity", sensitivity) / positive("epsilon", epsilon)
