"""Solve for one public number so that a target is met, always on the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable

from privlearn.errors import BadInput, UnsupportedEvent

#: A calibrated continuous number leaves at most this share of the target unspent.
GAP = 0.003
#: Where the search aims below the target, and the gap at which it stops.
_AIM, _CLOSE = 0.0003, 0.001
_LOWEST, _HIGHEST = 1e-9, 1e9


def solve_noise(spent: Callable[[float], float], target: float, start: float = 1.0) -> float:
    """Find a scale of the noise at which what is spent lies in [(1 - GAP) target, target].

    Args:
        spent: the cost as a function of the scale: continuous and decreasing. Only its exact values decide; the
            returned scale is one that was evaluated.
        target: the most that may be spent.
        start: a first guess of the scale.

    Raises:
        BadInput: no scale within 1e-9..1e9 meets the target.
    """

    # Work in logarithms: cost is close to a power of the noise.
    aim = math.log(target) + math.log1p(-_AIM)

    def error(log_scale: float) -> float:
        cost = _cost(spent, math.exp(log_scale))
        return (math.log(cost) if cost > 0 else -math.inf) - aim

    x = math.log(start)
    at = error(x)
    loud, quiet = (None, (x, at)) if at <= 0 else ((x, at), None)  # costs too much, costs at most the aim
    step = 0.7
    while loud is None or quiet is None:
        x += step if quiet is None else -step
        step *= 1.6
        if not math.log(_LOWEST) <= x <= math.log(_HIGHEST):
            raise BadInput(
                f"nothing between {_LOWEST:g} and {_HIGHEST:g} meets the target of {target:g}: what is not being solved "
                "for (an earlier release, the start or end of a schedule, a large delta) fixes the cost. Change the "
                "target, or the plan",
                target=target,
            )
        at = error(x)
        if at > 0:
            loud = (x, at)
        else:
            quiet = (x, at)
    for _ in range(100):
        if _acceptable(quiet[1]):
            return math.exp(quiet[0])
        if _acceptable(loud[1]):
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


def solve_rate(
    spent: Callable[[float], float],
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
    return rate(solve_noise(lambda scale: spent(rate(scale)), target, 1 / guess if more_is_louder else guess))


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest n in 0..most with fits(n), for a condition that holds up to some n and not beyond."""
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
