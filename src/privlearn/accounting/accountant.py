"""The guarantee of an event tree: every sound method that covers it, and the tightest of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, final

from privlearn._validate import delta as valid_delta
from privlearn.accounting import estimate, groups, rdp, zcdp
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.events import (
    Event,
    Laplace,
    NonPrivate,
    OneOf,
    Parallel,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    RepeatAndSelect,
    Selection,
    require_adjacency,
    tally,
)
from privlearn.accounting.levels import on_few_levels
from privlearn.accounting.unit import Unit
from privlearn.errors import UnsupportedEvent

#: Different mechanisms that are priced in one computation; each takes some milliseconds.
_MOST_KINDS = 1000
#: What a figure is: only a `bound` may be claimed.
Kind = Literal["bound", "lower_bound", "estimate"]


@final
@dataclass(frozen=True)
class Guarantee:
    """An (epsilon, delta) statement, for one kind of neighbour, by one method.

    The unit of protection is one example, or up to `group_size` of them together; an example is one row of the training
    data, or one person where `rows_per_person` says how many rows of each take part.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    method: str
    kind: Kind = "bound"
    rho: float | None = None
    group_size: int = 1
    rows_per_person: int | str | None = None

    @property
    def unit(self) -> Unit:
        """Whose data are protected."""
        return Unit(self.group_size, self.rows_per_person)

    def __str__(self) -> str:
        sign = {"bound": "", "lower_bound": "at least ", "estimate": "about "}[self.kind]
        unit = f", for {self.unit}" if self.unit != Unit() else ""
        figures = f"({sign}{rounded_up(self.epsilon)}, {self.delta:g})-DP"
        return f"{figures} for {self.adjacency.value} neighbours{unit}, by {self.method}"


def rounded_up(epsilon: float) -> str:
    """`epsilon` for reading: three digits after the point, never below the figure itself."""
    return f"{math.ceil(epsilon * 1000) / 1000:.6g}"


def rho(event: Event) -> float | None:
    """The zCDP parameter of `event`, or None where it has none."""
    try:
        return zcdp.rho(event)
    except UnsupportedEvent:
        return None


def guarantees(event: Event, adjacency: Adjacency, delta: float, group_size: int = 1) -> tuple[Guarantee, ...]:
    """Every sound guarantee of `event` at `delta`, the tightest first.

    Args:
        event: what was done.
        adjacency: the kind of neighbour.
        delta: where epsilon is stated.
        group_size: how many examples one person has at most; the guarantee is then for all of them together.

    Raises:
        UnsupportedEvent: no sound accountant covers `event` under `adjacency`.
        BadInput: `delta` is outside (0, 1), or the group size is not a whole number from 1 to 10,000.
    """
    _require_priceable(event, adjacency, delta)
    Unit(group_size)
    total = rho(event)
    found = [
        Guarantee(
            epsilon, delta, adjacency, method, "bound", None if total is None else total * group_size**2, group_size
        )
        for method, epsilon in _figures(event, delta, group_size)
        if math.isfinite(epsilon)
    ]
    if not found:
        raise UnsupportedEvent(
            f"no accountant gives a finite epsilon at delta {delta:g}: use a larger delta or more noise"
        )
    return tuple(sorted(found, key=lambda guarantee: guarantee.epsilon))


def guarantee(event: Event, adjacency: Adjacency, delta: float, group_size: int = 1) -> Guarantee:
    """The tightest sound guarantee of `event` at `delta`: the first of `guarantees`."""
    return guarantees(event, adjacency, delta, group_size)[0]


def epsilon_bound(event: Event, adjacency: Adjacency, delta: float, group_size: int = 1) -> float:
    """An epsilon that `guarantee` never exceeds and nearly always equals, in one computation: for searches."""
    _require_priceable(event, adjacency, delta)
    found = next((epsilon for _, epsilon in _figures(event, delta, group_size) if math.isfinite(epsilon)), math.inf)
    total = rho(event)
    if total is not None and any(isinstance(leaf, Selection) for leaf in tally(event)):
        # Privacy loss distributions take a selection for any mechanism of that range, at four times its rho.
        found = min(found, zcdp.epsilon_of_rho(group_size**2 * total, delta))
    return found


def estimates(event: Event, adjacency: Adjacency, delta: float) -> tuple[Guarantee, ...]:
    """Figures that are no guarantees, each labelled so; none where their own conditions fail."""
    try:
        return (Guarantee(estimate.epsilon(event, delta), delta, adjacency, "yu-2019", "estimate"),)
    except UnsupportedEvent:
        return ()


def _figures(event: Event, delta: float, group_size: int) -> Iterator[tuple[str, float]]:
    """The methods that cover `event` with their epsilon, the usually tightest first, computed as they are asked for."""
    for method, compute in _methods(event, delta, group_size).items():
        try:
            yield method, compute()
        except (UnsupportedEvent, OverflowError):  # beyond what it covers, or beyond all numbers
            continue


def _methods(event: Event, delta: float, k: int) -> dict[str, Callable[[], float]]:
    mu, total = zcdp.gaussian_mu(event), rho(event)
    methods: dict[str, Callable[[], float]] = {}
    if mu is not None:
        methods["gaussian"] = lambda: zcdp.gaussian_epsilon(k * mu, delta)
    else:
        methods["pld"] = lambda: groups.by_pld(event, delta, k)
        methods["rdp"] = lambda: groups.by_rdp(event, delta, k)
    pure = _pure_epsilon(event)
    if pure is not None:
        methods["pure"] = lambda: k * pure
    if total is not None:
        methods["zcdp"] = lambda: zcdp.epsilon_of_rho(k**2 * total, delta)
        methods["zcdp-2016"] = lambda: zcdp.epsilon_bun_steinke(k**2 * total, delta)
    if k == 1 and any(isinstance(leaf, PoissonSampled) for leaf in tally(event)):
        methods["moments-2016"] = lambda: rdp.epsilon_by_moments(event, delta)
    return methods


def _pure_epsilon(event: Event) -> float | None:
    """The sum of epsilons at delta 0 where every mechanism has one."""
    total = 0.0
    for leaf, times in tally(event).items():
        match leaf:
            case PureDP(epsilon) | RandomisedResponse(epsilon) | Selection(epsilon):
                total += times * epsilon
            case Laplace(noise_multiplier):
                total += times / noise_multiplier
            case _:
                return None
    return total


def _require_priceable(event: Event, adjacency: Adjacency, delta: float) -> None:
    valid_delta(delta)
    require_adjacency(event, adjacency)
    counts = tally(event)
    for leaf in counts:
        if isinstance(leaf, NonPrivate):
            raise UnsupportedEvent(f"there is no guarantee to give: {leaf.reason}", event=leaf)
    if (kinds := sum(map(_kinds, counts))) > _MOST_KINDS:
        kinds = sum(map(_kinds, on_few_levels(counts)))
    if kinds > _MOST_KINDS:
        raise UnsupportedEvent(
            f"the events hold {kinds} different mechanisms: at most {_MOST_KINDS} are priced together (noise levels alone may "
            "be many more). Use fewer sampling rates, or candidates"
        )


def _kinds(leaf: Event) -> int:
    """How many mechanisms are priced for `leaf`."""
    match leaf:
        case Parallel(events) | OneOf(events):
            return sum(_kinds(inner) for event in events for inner in tally(event))
        case RepeatAndSelect(event):
            return sum(_kinds(inner) for inner in tally(event))
    return 1
