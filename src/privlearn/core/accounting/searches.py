"""These searches find a number from which on, or up to which, a condition holds, and each ends on
the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from privlearn.errors import BadInput


def bracket(
    good: Callable[[float], bool], high: float, low: float = 0.0, most: float = math.inf
) -> tuple[float, float]:
    """Double `high` until it is good: the last that was not (or `low`) and the first that is, inf
    beyond `most`.
    """
    while not good(high):
        low, high = high, 2 * high
        if high > most:
            return low, math.inf
    return low, high


def bisect(
    good: Callable[[float], bool],
    low: float,
    high: float,
    tolerance: float,
    *,
    geometric: bool = False,
    most_steps: int = 10_000,
) -> tuple[float, float]:
    """Narrow the bracket of a number from which on `good` holds: it holds at `high`, and not at
    `low`.

    Args:
        tolerance: the width at which to stop, as a share of `high`.
        geometric: halve the ratio of the two ends, not their distance.

    Returns:
        Both ends: one of them is on the safe side.
    """
    for _ in range(most_steps):
        if high - low <= tolerance * abs(high):
            break
        middle = math.sqrt(low * high) if geometric else (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if good(middle) else (middle, high)
    return low, high


def to_safe_side(
    safe: Callable[[float], bool], value: float, step: float, growth: float = 1.0
) -> float:
    """`value`, or a number close to it: the first found at which `safe` holds, despite all
    rounding. `step` is a share of the number, which grows by `growth` each time.

    Raises:
        BadInput: nothing near `value` will do.
    """
    while not safe(value):
        value = value * (1 + step) + (1e-300 if step > 0 else 0.0)
        step *= growth
        if abs(step) > 0.5:
            raise BadInput(f"no number near {value:g} meets the target: use a larger budget")
    return value


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest n in 0..most with fits(n), for a condition that holds up to some n and not
    beyond.
    """
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
