"""A budget, what may be spent: a target epsilon at a delta, or a target rho.

And solving for one public number so that it is met, always on the safe side, by the searches of `searches`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, final

from privlearn._checks import delta as valid_delta
from privlearn._checks import positive
from privlearn._display import shortened
from privlearn._public import registered
from privlearn.accounting.events import Event, require_adjacency, sketch, tally
from privlearn.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.errors import BadInput, UnsupportedEvent

#: A calibrated continuous number leaves at most this share of the target unspent.
GAP = 0.003
#: Where the search aims below the target, and the gap at which it stops.
_AIM, _CLOSE = 0.0003, 0.001
_LOWEST, _HIGHEST = 1e-9, 1e9
#: The first step of a search, in logarithms, and how often a rough search is corrected.
_FAR, _GUESSES = 0.7, 4
#: Different mechanisms beyond which a price takes so long that searches look for it by a rough one; and of that.
_MANY, _ROUGH = 24, 6


def solve_noise(spent: Callable[[float], float], target: float, start: float = 1.0) -> float:
    """Find a scale of the noise at which what is spent lies in [(1 - GAP) target, target].

    Args:
        spent: the cost as a function of the scale: continuous and decreasing. Only its exact values decide; the
            returned scale is one that was evaluated. A `Spending` also says where to look.
        target: the most that may be spent.
        start: a first guess of the scale.

    Raises:
        BadInput: no scale within 1e-9..1e9 meets the target.
    """
    rough = spent.sketched(start) if isinstance(spent, Spending) else None
    if rough is None:
        return _solved(spent, target, start, _FAR, _acceptable)
    exact = cache(spent)
    return _solved(exact, target, *_guess(exact, cache(rough), target, start), _acceptable)


def _guess(
    spent: Callable[[float], float], rough: Callable[[float], float], target: float, start: float
) -> tuple[float, float]:
    """A scale at which `spent` is close to `target`, found by what is about proportional to it and faster.

    And about how far off it may be, as a logarithm.
    """
    scale, share, step = start, 1.0, _FAR
    tried: list[tuple[float, float]] = []
    try:
        while len(tried) < _GUESSES:
            if len(tried) < 2:
                scale = _solved(rough, target * share, scale, step, lambda error: abs(error) <= _CLOSE / 5, most=6)
            else:
                (x, at), (last, now) = tried[-2:]
                scale = math.exp(last - now * (last - x) / (now - at))
            error = math.log(_cost(spent, scale) / target) - math.log1p(-_AIM)
            if _acceptable(error):
                break
            tried.append((math.log(scale), error))
            # As far off as the rough figure was there, it will be at the next scale.
            share, step = rough(scale) / _cost(spent, scale), abs(error)
    except (BadInput, OverflowError, UnsupportedEvent, ValueError, ZeroDivisionError):
        pass  # the exact search begins wherever this ended
    return scale, min(step, _FAR)


def _solved(
    spent: Callable[[float], float],
    target: float,
    start: float,
    step: float,
    good: Callable[[float], bool],
    most: int = 100,
) -> float:
    """`solve_noise`: the first scale found whose log-distance from the aim is `good`, or after `most` a quiet one."""
    # Work in logarithms: cost is close to a power of the noise.
    aim = math.log(target) + math.log1p(-_AIM)

    def error(log_scale: float) -> float:
        cost = _cost(spent, math.exp(log_scale))
        return (math.log(cost) if cost > 0 else -math.inf) - aim

    x = math.log(start)
    at = error(x)
    loud, quiet = (None, (x, at)) if at <= 0 else ((x, at), None)  # costs too much, costs at most the aim
    while loud is None or quiet is None:
        if good(at):
            return math.exp(x)
        x += step if quiet is None else -step
        step *= 1.6
        if not math.log(_LOWEST) <= x <= math.log(_HIGHEST):
            raise BadInput(
                f"nothing between {_LOWEST:g} and {_HIGHEST:g} meets the target of {target:g}: what is not being "
                "solved for (an earlier release, the start or end of a schedule, a large delta) fixes the cost. Change "
                "the target, or the plan",
                target=target,
            )
        at = error(x)
        if at > 0:
            loud = (x, at)
        else:
            quiet = (x, at)
    for _ in range(most):
        if good(quiet[1]):
            return math.exp(quiet[0])
        if good(loud[1]):
            return math.exp(loud[0])
        x = _between(loud, quiet)
        at = error(x)
        if at > 0:
            loud = (x, at)
        else:
            quiet = (x, at)
    return math.exp(quiet[0])


def _acceptable(error: float) -> bool:
    """Whether a log-distance from the aim lies within [(1 - GAP) target, target]."""
    return math.log1p(-_CLOSE) <= error + math.log1p(-_AIM) <= 0


def _between(loud: tuple[float, float], quiet: tuple[float, float]) -> float:
    """The secant's point, kept inside the middle of the bracket."""
    width = quiet[0] - loud[0]
    share = loud[1] / (loud[1] - quiet[1]) if math.isfinite(quiet[1]) and math.isfinite(loud[1]) else 0.5
    return loud[0] + width * min(0.98, max(0.02, share))


def _cost(spent: Callable[[float], float], scale: float) -> float:
    """The cost at `scale`; infinite where no accountant reaches."""
    try:
        return spent(scale)
    except (OverflowError, UnsupportedEvent):
        return math.inf


def solve_gaussian(budget: Budget, spent: Callable[[float], float], mu: float = 1.0, step: float = 1e-15) -> float:
    """The scale of noise that meets `budget` to the last digits, for releases that together are one Gaussian's.

    Args:
        budget: the target.
        spent: the cost as a function of the scale, in the budget's measure.
        mu: what they amount to at scale 1: sensitivity over noise, of one example.
        step: by how much the scale is raised first, where the last digits ask for it.
    """
    from privlearn.accounting import zcdp  # which uses the searches of this file

    if budget.epsilon is None:
        limit = math.sqrt(2 * budget.limit)
    else:
        assert budget.delta is not None
        limit = zcdp.gaussian_mu_for(budget.epsilon, budget.delta)
    scale = budget.group_size * mu / limit
    while spent(scale) > budget.limit:
        scale, step = scale * (1 + step), 2 * step
    return scale


@final
@dataclass(frozen=True)
class Spending:
    """What events cost in the measure of a budget, by a number that they depend on.

    Attributes:
        budget: the budget.
        event: the event by that number.
        adjacency: for which neighbours.
    """

    budget: Budget
    event: Callable[[float], Event]
    adjacency: Adjacency

    def __call__(self, number: float) -> float:
        """The cost at that number."""
        return self.budget.spent(self.event(number), self.adjacency)

    def by(self, number: Callable[[float], float]) -> Spending:
        """The cost by another number, of which this one's is a function."""
        return replace(self, event=lambda other: self.event(number(other)))

    def sketched(self, at: float) -> Callable[[float], float] | None:
        """About the same cost, of few different mechanisms; None where that would not be faster."""
        if self.budget.rho is not None or len(tally(self.event(at))) <= _MANY:
            return None
        return replace(self, event=lambda number: sketch(self.event(number), _ROUGH))


def solve_rate(
    spent: Spending,
    target: float,
    *,
    more_is_louder: bool,
    below_one: bool = False,
    start: float = 0.05,
) -> float:
    """Find a schedule's rate k at which what is spent lies in [(1 - GAP) target, target].

    Args:
        spent: the cost as a function of k, monotone.
        target: the most that may be spent.
        more_is_louder: whether a larger k costs more (less noise), or less.
        below_one: whether k lies in (0, 1), not in (0, infinity).
        start: a first guess.

    Raises:
        BadInput: no k meets the target.
    """

    def rate(scale: float) -> float:
        """k such that a larger `scale` always means more noise."""
        free = 1 / scale if more_is_louder else scale
        return free / (1 + free) if below_one else free

    guess = start / (1 - start) if below_one else start
    return rate(solve_noise(spent.by(rate), target, 1 / guess if more_is_louder else guess))


def require_budget(budget: object) -> None:
    """Raise `BadInput` unless `budget` is one that a plan can have."""
    if budget is not None and not isinstance(budget, Budget):
        raise BadInput(
            f"budget is {shortened(repr(budget), 80)}: expected a Budget, as calibrate(epsilon=, delta=) sets it, or "
            "None"
        )


#: Targets below these are lost in the rounding of what is computed for them.
_LEAST_EPSILON, _LEAST_RHO = 1e-6, 1e-12


def _require_target(name: str, value: float, least: float) -> None:
    """Raise `BadInput` unless `value` is a number from `least` on."""
    if positive(name, value) < least:
        raise BadInput(
            f"{name} is {value:g}: expected at least {least:g}, below which figures are lost in rounding", name=name
        )


#: Relative slack when spending is compared with a budget: sums of floats must not lose the last epoch.
_SLACK = 1e-12


@final
@registered
@dataclass(frozen=True)
class Budget:
    """A limit on what may be spent: `epsilon` with `delta`, or `rho` (zCDP).

    It limits what up to `group_size` examples of one person lose together; 1 is one example.

    Raises:
        BadInput: neither or both are given, or a number is out of range.
    """

    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None
    group_size: int = 1
    kind: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        PrivacyUnit(self.group_size)
        if (self.epsilon is None) == (self.rho is None):
            raise BadInput("a budget needs either epsilon (with delta) or rho: give exactly one of the two")
        if self.epsilon is not None:
            _require_target("epsilon", self.epsilon, _LEAST_EPSILON)
            if self.delta is None:
                raise BadInput("a budget of epsilon needs its delta: give delta too, for example 1e-5")
        if self.rho is not None:
            _require_target("rho", self.rho, _LEAST_RHO)
        if self.delta is not None:
            valid_delta(self.delta)

    @property
    def limit(self) -> float:
        """The number that spending is compared with: epsilon or rho."""
        return self.epsilon if self.epsilon is not None else self.rho  # type: ignore[return-value]

    def spent(self, event: Event, adjacency: Adjacency) -> float:
        """What `event` costs a group of this size, in the measure of the budget.

        Raises:
            UnsupportedEvent: no sound price is known, in this measure, under `adjacency`.
        """
        from privlearn.accounting import accountant, zcdp  # which search by the functions above

        if self.rho is not None:
            require_adjacency(event, adjacency)
            return self.group_size**2 * zcdp.rho(event)
        assert self.delta is not None
        return accountant.epsilon_bound(event, adjacency, self.delta, self.group_size)

    def for_group(self, group_size: int) -> Budget:
        """Itself as a limit for a person with `group_size` examples.

        Raises:
            BadInput: it is one for groups of another size.
        """
        if self.group_size not in (1, group_size):
            raise BadInput(
                f"the budget is {self}, and the plan's group_size is {group_size}: give both the same", budget=self
            )
        return replace(self, group_size=group_size)

    def covers(self, spent: float) -> bool:
        """Whether `spent`, in the unit of the budget, stays within it."""
        return spent <= self.limit * (1 + _SLACK)

    def figure(self, spent: float) -> str:
        """`spent` with its unit, for messages."""
        return f"{'epsilon' if self.rho is None else 'rho'} {spent:.6g}"

    def __str__(self) -> str:
        limit = f"rho {self.rho:g}" if self.rho is not None else f"epsilon {self.epsilon:g} at delta {self.delta:g}"
        return limit if self.group_size == 1 else f"{limit} for {PrivacyUnit(self.group_size)}"
