"""An event is a frozen value that says what was done to the data: it is the one thing that
accountants read and certificates carry.

An event is a tree. Its leaves are mechanisms, each of which knows its own prices (`mechanisms`;
`trees` has those made of other events); its inner nodes say how often they ran (`Repeated`) and in
which order (`Composed`). Events hold public numbers only; noise multipliers are relative to the
sensitivity under the adjacency of the ledger that they stand in.

As JSON, events are written and read by a closed, versioned table of kinds. Nothing else can be read
back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar, final

from privlearn._checks import count
from privlearn._public import with_own_form
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import BadInput, UnsupportedEvent

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    from privlearn.core.accounting.pld.pairs import PairBuilder


class Event:
    """Anything that a ledger can be charged with. Final subclasses are frozen values that compare
    by content.
    """

    __slots__ = ()


class Mechanism(Event):
    """A leaf of an event tree, with everything that accountants know of it: what is not defined
    here has no price.

    To add one, define a final frozen dataclass with the prices that it has and register its name
    with `kind`. Every price is an upper bound for both directions between neighbours of each kind
    in `adjacencies`.
    """

    __slots__ = ()

    #: The kinds of neighbour under which the prices are sound.
    adjacencies: frozenset[Adjacency] = frozenset(Adjacency)
    #: What messages call it; by default its class.
    phrase: str = ""
    #: Whether one example meets nothing but one Gaussian release of this rho, so that a Gaussian
    #: filter lets it through.
    gaussian: bool = False
    #: Whether batches are Poisson samples, which the moments accountant of 2016 is for.
    poisson: bool = False
    #: Whether `pair` stands for a larger class of mechanisms, so that zCDP may give a smaller
    #: epsilon.
    loose_pair: bool = False
    #: Of what is released on batches: how many rows one of them has at most; None: any number.
    most_rows: int | None = None
    #: By how much more, relatively, earlier versions stated of several of these with different
    #: noise.
    stated_before: float = 0.0

    @property
    def inside(self) -> tuple[Event, ...]:
        """The events that it is made of, if it is."""
        return ()

    @property
    def noise_level(self) -> float:
        """The noise multiplier, or what plays its part; 1 if nothing does."""
        return 1.0

    @property
    def inclusion(self) -> float:
        """Of what is released on batches: the largest probability that the price allows an example
        to be in one.
        """
        return 1.0

    def zcdp(self) -> float:
        """The zCDP parameter rho."""
        raise UnsupportedEvent(f"{type(self).__name__} has no zCDP price", event=self)

    def renyi(self, orders: NDArray[float64]) -> NDArray[float64]:
        """The Renyi divergence at each of `orders`, all above 1; infinite where none is known."""
        raise UnsupportedEvent(f"{type(self).__name__} has no Renyi price", event=self)

    def pure(self, times: int = 1) -> Fraction | None:
        """The epsilon, at delta 0, of `times` of these, exactly; None if it has none."""
        return None

    def mu_squared(self, times: int = 1) -> float | None:
        """The squared sensitivity over noise of the Gaussian that `times` of these are, exactly;
        None if none.
        """
        return None

    def pair(self) -> PairBuilder:
        """The dominating pair of privacy loss distributions."""
        raise UnsupportedEvent(
            f"{type(self).__name__} has no privacy loss distribution", event=self
        )

    def dominating(self) -> Mechanism:
        """The mechanism whose pair stands for this one's."""
        return self

    def grouped(self, k: int) -> Event | None:
        """What it is for `k` examples together; None if no such form is known."""
        return None

    def coarsened(self, noise_multiplier: float) -> Mechanism:
        """The same with at most this noise, which costs no less; itself if it has no noise to
        reduce.
        """
        return self

    def require_priceable(self) -> None:
        """Raise `UnsupportedEvent` if there is no guarantee at all."""


#: All that can be stored, by the name that it is written under.
_KINDS: dict[str, type[Event]] = {}
_NAMES: dict[type[Event], str] = {}
_FIELDS: dict[type[Event], tuple[str, ...]] = {}
#: Version of the JSON form. It changes whenever the meaning of a stored event would.
JSON_VERSION = 1
_DEEPEST = 32
_E = TypeVar("_E", bound=type[Event])


def kind(name: str) -> Callable[[_E], _E]:
    """Register a class of events under the `name` that it has in JSON, for `to_json` and
    `from_json`.
    """

    def register(event_class: _E) -> _E:
        assert name not in _KINDS, name
        _KINDS[name], _NAMES[event_class] = event_class, name
        _FIELDS[event_class] = tuple(field.name for field in fields(event_class))  # type: ignore[arg-type]
        return event_class

    return register


def kinds() -> dict[str, type[Event]]:
    """Every kind of event, by the name that it has in JSON."""
    from privlearn.core.accounting import mechanisms, trees  # noqa: F401 - where kinds are registered
    from privlearn.core.accounting.pld import truncation  # noqa: F401

    return _KINDS


@kind("repeated")
@final
@dataclass(frozen=True, slots=True)
class Repeated(Event):
    """`event`, `count` times, adaptively. The only place where a count stands."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        count("count", self.count, least=0)
        require_event(self.event)


@kind("composed")
@final
@dataclass(frozen=True, slots=True)
class Composed(Event):
    """All of `events`, one after the other, adaptively."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        require_events(self.events)


def compose(events: Iterable[Event]) -> Composed:
    """Compose `events` into the canonical tree: flat, with equal neighbours run-length coded.

    Two compositions of the same leaves in the same order are equal, however they were nested.

    >>> from privlearn.core.accounting.mechanisms import Gaussian
    >>> a = Gaussian(2.0)
    >>> compose([Repeated(a, 2), Composed((a,))])
    Composed(events=(Repeated(event=Gaussian(noise_multiplier=2.0), count=3),))
    """
    runs: list[tuple[Mechanism, int]] = []
    for event in events:
        require_event(event)
        for leaf, times in walk(event):
            if runs and runs[-1][0] == leaf:
                runs[-1] = (leaf, runs[-1][1] + times)
            else:
                runs.append((leaf, times))
    return Composed(tuple(leaf if times == 1 else Repeated(leaf, times) for leaf, times in runs))


def appended(before: Composed, event: Event) -> Composed:
    """`compose([before, event])` for a `before` that `compose` made, in the time that `event`
    takes.
    """
    end = compose([*before.events[-1:], event])
    return _compose_known((*before.events[:-1], *end.events))


def added(before: Composed, places: dict[Mechanism, int], event: Event) -> Composed:
    """`before`, which holds every mechanism once, with the counts of `event` on top, in the time
    that `event` takes.

    Args:
        before: every mechanism at its place.
        places: those; mechanisms that are new are entered.
        event: what is added.
    """
    events = list(before.events)
    for leaf, times in tally(event).items():
        place = places.setdefault(leaf, len(events))
        if place == len(events):
            events.append(leaf if times == 1 else Repeated(leaf, times))
            continue
        there = events[place]
        events[place] = Repeated(leaf, times + (there.count if isinstance(there, Repeated) else 1))
    return _compose_known(tuple(events))


def _compose_known(events: tuple[Event, ...]) -> Composed:
    """`Composed(events)` of what are known to be events: looking at all of them again takes longer
    than the rest.
    """
    composed = object.__new__(Composed)
    object.__setattr__(composed, "events", events)
    return composed


def walk(event: Event) -> Iterator[tuple[Mechanism, int]]:
    """Yield the mechanisms of `event` in order, each with how often it runs there; never with a
    count of 0.
    """
    match event:
        case Composed(events):
            for part in events:
                if isinstance(part, Mechanism):
                    yield part, 1
                elif (
                    isinstance(part, Repeated) and isinstance(part.event, Mechanism) and part.count
                ):
                    yield part.event, part.count
                else:
                    yield from walk(part)
        case Repeated(Composed(events), times) if len(events) > 1 and times > 1:
            # Order matters to the ledger, so a repeated sequence is spelled out.
            for _ in range(times):
                yield from walk(Composed(events))
        case Repeated(part, times):
            yield from ((leaf, inner * times) for leaf, inner in walk(part) if times)
        case Mechanism():
            yield event, 1


def tally(event: Event) -> dict[Mechanism, int]:
    """Count every mechanism of `event`. Prices depend on the tally alone: composition is
    order-free.
    """
    total: dict[Mechanism, int] = {}
    _count(event, 1, total)
    return total


def _count(event: Event, times: int, total: dict[Mechanism, int]) -> None:
    """Add the mechanisms of `event`, each `times` as often as it is there, to `total`."""
    if isinstance(event, Mechanism):
        total[event] = total.get(event, 0) + times
    elif isinstance(event, Repeated):
        if event.count:
            _count(event.event, times * event.count, total)
    elif isinstance(event, Composed):
        for part in event.events:
            _count(part, times, total)
    else:
        raise AssertionError(f"{type(event).__name__} is not a mechanism")


#: Distinct mechanisms beyond which noise levels are put together.
_MOST = 400


def coarsen(counts: dict[Mechanism, int]) -> dict[Mechanism, int]:
    """`counts` as it is, or with its noise multipliers on a few hundred values if it holds more
    mechanisms than that.

    Less noise is an upper bound, so each is rounded down.
    """
    if len(counts) <= _MOST:
        return counts
    merged: dict[Mechanism, int] = {}
    for leaf, level in zip(counts, _coarse(counts, _MOST), strict=True):
        coarse = leaf.coarsened(level)
        merged[coarse] = merged.get(coarse, 0) + counts[leaf]
    return merged


def _coarse(counts: dict[Mechanism, int], most: int) -> list[float]:
    """The noise level of each mechanism, rounded down to one of half of `most` values."""
    levels = [leaf.noise_level for leaf in counts]
    least, width = min(levels), math.log(max(levels) / min(levels)) / (most // 2)
    if width == 0:
        return levels  # they differ in something else
    # What rounding leaves just below a value belongs to it; nothing gets more noise than it has.
    numbers = [math.floor(math.log(level / least) / width + 1e-9) for level in levels]
    return [
        min(level, least * math.exp(width * n)) for level, n in zip(levels, numbers, strict=True)
    ]


def sketch(event: Event, most: int) -> Event:
    """About `event`, with half of `most` different mechanisms: one of those with about the same
    noise for all of them.

    It costs about as much, more or less: for searches alone.
    """
    alike: dict[Mechanism, list[tuple[Mechanism, int]]] = {}
    counts = tally(event)
    for leaf, level in zip(counts, _coarse(counts, most), strict=True):
        alike.setdefault(leaf.coarsened(level), []).append((leaf, counts[leaf]))
    parts = []
    for group in alike.values():
        times = sum(number for _, number in group)
        # Costs of sampled releases are about proportional to this.
        mean = (
            sum(number * math.expm1(min(leaf.noise_level**-2, 700.0)) for leaf, number in group)
            / times
        )
        noise = math.log1p(mean) ** -0.5
        # The first from there on, not the nearest one: among levels at equal distances that would
        # be up to rounding.
        near = min(
            (leaf for leaf, _ in group if leaf.noise_level >= noise * (1 - 1e-9)),
            key=lambda leaf: leaf.noise_level,
        )
        parts.append(Repeated(near, times))
    return Composed(tuple(parts))


def require_adjacency(event: Event, adjacency: Adjacency) -> None:
    """Raise `UnsupportedEvent` if a mechanism of `event` has no sound price under `adjacency`."""
    for leaf in tally(event):
        for part in leaf.inside:
            require_adjacency(part, adjacency)
        if adjacency not in leaf.adjacencies:
            covered = ", ".join(sorted(leaf.adjacencies))
            what = leaf.phrase or type(leaf).__name__
            raise UnsupportedEvent(
                f"{what} has no sound accounting for {adjacency.value} neighbours: it is covered "
                f"for {covered}. Choose one of these adjacencies, or another way to draw batches",
                event=leaf,
                adjacency=adjacency,
            )


def require_event(event: object) -> None:
    """Raise `BadInput` unless it is an event."""
    if not isinstance(event, Event):
        raise BadInput(f"{event!r} is a {type(event).__name__}: expected an event")


def require_events(events: object, what: str = "") -> None:
    """Raise `BadInput` unless it is a tuple of events; of at least one, if there is to be
    `what`.
    """
    if not isinstance(events, tuple):
        raise BadInput(f"events is a {type(events).__name__}: expected a tuple of events")
    for event in events:
        require_event(event)
    if what and not events:
        raise BadInput(f"events is empty: expected at least one {what}")


def to_json(event: Event) -> dict[str, Any]:
    """Return `event` as plain JSON values, by a closed table of kinds."""
    out: dict[str, Any] = {"kind": _NAMES[type(event)]}
    for name in _FIELDS[type(event)]:
        value = getattr(event, name)
        if isinstance(value, Event):
            value = to_json(value)
        elif isinstance(value, tuple):
            value = [to_json(part) if isinstance(part, Event) else part for part in value]
        out[name] = value
    return out


def from_json(data: Any, *, _depth: int = 0) -> Event:
    """Rebuild an event from `to_json`'s form.

    Raises:
        BadInput: an unknown kind, a missing, unknown or ill-typed field, or a tree nested too
            deeply.
    """
    if not isinstance(data, dict) or _depth > _DEEPEST:
        problem = "nested too deeply" if _depth > _DEEPEST else f"a {type(data).__name__}"
        raise BadInput(
            f"an event is {problem}: expected a JSON object, nested at most {_DEEPEST} deep"
        )
    name = data.get("kind")
    event_class = kinds().get(name) if isinstance(name, str) else None
    if event_class is None:
        raise BadInput(f"an event has kind {name!r}: expected {', '.join(_KINDS)}", kind=name)
    expected = {"kind", *_FIELDS[event_class]}
    if set(data) != expected:
        raise BadInput(f"a {name} event has the fields {sorted(data)}: expected {sorted(expected)}")
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key == "kind":
            continue
        if key == "event":
            value = from_json(value, _depth=_depth + 1)
        elif key in ("events", "orders", "bounds"):
            if not isinstance(value, list):
                raise BadInput(f"{key} is a {type(value).__name__}: expected a list")
            value = tuple(
                from_json(part, _depth=_depth + 1) if key == "events" else part for part in value
            )
        elif key == "reason" and not isinstance(value, str):
            raise BadInput(f"reason is a {type(value).__name__}: expected text")
        values[key] = value
    return event_class(**values)


with_own_form("event", Event, to_json, from_json)
