"""Calibration solves for one public number so that a budget is met, always on the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import final

from privlearn.core.accounting import zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Event, sketch, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import BadInput, UnsupportedEvent

#: A calibrated continuous number leaves at most this share of the target unspent.
GAP = 0.003
#: Where the search aims below the target, and the gap at which it stops.
_AIM, _CLOSE = 0.0003, 0.001
_LOWEST, _HIGHEST = 1e-9, 1e9
#: The first step of a search, in logarithms, and how often a rough search is corrected.
_FAR, _GUESSES = 0.7, 4
#: Different mechanisms beyond which a price takes so long that searches look for it by a rough one;
#: and of that.
_MANY, _ROUGH = 24, 6


def solve_noise(spent: Callable[[float], float], target: float, start: float = 1.0) -> float:
    """Find a scale of the noise at which what is spent lies in [(1 - GAP) target, target].

    Args:
        spent: the cost as a function of the scale: continuous and decreasing. Only its exact values
            decide; the returned scale is one that was evaluated. A `Spending` also says where to
            look.
        target: the most that may be spent.
        start: a first guess of the scale.

    Raises:
        BadInput: no scale within 1e-9..1e9 meets the target.
    """
    rough = spent.sketched(start) if isinstance(spent, Spending) else None
    if rough is None:
        return _solve(spent, target, start, _FAR, _acceptable)
    exact = cache(spent)
    return _solve(exact, target, *_guess(exact, cache(rough), target, start), _acceptable)


def _guess(
    spent: Callable[[float], float], rough: Callable[[float], float], target: float, start: float
) -> tuple[float, float]:
    """A scale at which `spent` is close to `target`, found by what is about proportional to it and
    faster.

    And about how far off it may be, as a logarithm.
    """
    scale, share, step = start, 1.0, _FAR
    tried: list[tuple[float, float]] = []
    try:
        while len(tried) < _GUESSES:
            if len(tried) < 2:
                scale = _solve(
                    rough,
                    target * share,
                    scale,
                    step,
                    lambda error: abs(error) <= _CLOSE / 5,
                    most=6,
                )
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


def _solve(
    spent: Callable[[float], float],
    target: float,
    start: float,
    step: float,
    good: Callable[[float], bool],
    most: int = 100,
) -> float:
    """`solve_noise`: the first scale found whose log-distance from the aim is `good`, or after
    `most` a quiet one.
    """
    # Work in logarithms: cost is close to a power of the noise.
    aim = math.log(target) + math.log1p(-_AIM)

    def error(log_scale: float) -> float:
        cost = _cost(spent, math.exp(log_scale))
        return (math.log(cost) if cost > 0 else -math.inf) - aim

    x = math.log(start)
    at = error(x)
    # costs too much, costs at most the aim
    loud, quiet = (None, (x, at)) if at <= 0 else ((x, at), None)
    while loud is None or quiet is None:
        if good(at):
            return math.exp(x)
        x += step if quiet is None else -step
        step *= 1.6
        if not math.log(_LOWEST) <= x <= math.log(_HIGHEST):
            raise BadInput(
                f"nothing between {_LOWEST:g} and {_HIGHEST:g} meets the target of {target:g}: "
                "what is not being solved for (an earlier release, the start or end of a "
                "schedule, a large delta) fixes the cost. Change the target, or the plan",
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
        x = _secant_point(loud, quiet)
        at = error(x)
        if at > 0:
            loud = (x, at)
        else:
            quiet = (x, at)
    return math.exp(quiet[0])


def _acceptable(error: float) -> bool:
    """Whether a log-distance from the aim lies within [(1 - GAP) target, target]."""
    return math.log1p(-_CLOSE) <= error + math.log1p(-_AIM) <= 0


def _secant_point(loud: tuple[float, float], quiet: tuple[float, float]) -> float:
    """The secant's point, kept inside the middle of the bracket."""
    width = quiet[0] - loud[0]
    share = (
        loud[1] / (loud[1] - quiet[1])
        if math.isfinite(quiet[1]) and math.isfinite(loud[1])
        else 0.5
    )
    return loud[0] + width * min(0.98, max(0.02, share))


def _cost(spent: Callable[[float], float], scale: float) -> float:
    """The cost at `scale`; infinite where no accountant reaches."""
    try:
        return spent(scale)
    except (OverflowError, UnsupportedEvent):
        return math.inf


def solve_gaussian(
    budget: Budget, spent: Callable[[float], float], mu: float = 1.0, step: float = 1e-15
) -> float:
    """The scale of noise that meets `budget` to the last digits, for releases that together are one
    Gaussian's.

    Args:
        budget: the target.
        spent: the cost as a function of the scale, in the budget's measure.
        mu: what they amount to at scale 1: sensitivity over noise, of one example.
        step: by how much the scale is raised first, where the last digits ask for it.
    """
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
