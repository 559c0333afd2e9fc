"""This file prices Gaussian releases by zero-concentrated DP, composes them exactly, and has the
ways back to (epsilon, delta).

Sources: Bun and Steinke 2016 (zCDP, Prop 1.3); Yu et al. 2019 (Props 1 and 2, Thms 1 and 2); Balle
and Wang 2018 (the exact Gaussian curve); Balle et al. 2020 and Canonne et al. 2020 (the tighter
conversion).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from privlearn._checks import delta as valid_delta
from privlearn._scipy import log_ndtr, ndtr
from privlearn.core.accounting.events import Event, tally
from privlearn.core.accounting.searches import bisect, bracket
from privlearn.errors import UnsupportedEvent

#: The unit roundoff of double precision.
_UNIT = 2.0**-53
#: More than what underflow takes off a mass, and beyond how many standard deviations there is less
#: than that.
_LEAST, _FAR = 1e-290, 1e6
#: How close searches come, as a share of what they look for.
_CLOSE = 1e-15


def rho(event: Event) -> float:
    """The zCDP parameter rho of `event`.

    It adds up: the sum over all mechanisms, each of which knows its own.

    Raises:
        UnsupportedEvent: for Poisson sampling, whose amplification no zCDP bound can express (Yu et
            al. 2019, eq. 13), and for whatever else has no such price.
    """
    return math.fsum(times * leaf.zcdp() for leaf, times in tally(event).items())


def gaussian_mu(event: Event) -> float | None:
    """The one Gaussian mechanism (sensitivity mu, noise 1) that `event` amounts to, exactly; None
    if it is no Gaussian.

    Gaussian releases compose exactly: mu^2 adds up. An epoch over fixed disjoint batches is one
    release. Rounded up.
    """
    squares = [leaf.mu_squared(times) for leaf, times in tally(event).items()]
    known = [squared for squared in squares if squared is not None]
    # Each is off by 3 units at most, their sum by one more, and its root by half of that and one;
    # so may be a group's.
    return math.sqrt(math.fsum(known)) * (1 + 6 * _UNIT) if len(known) == len(squares) else None


def gaussian_delta_bound(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a Gaussian mechanism with sensitivity over noise `mu`, at epsilon >= 0
    (Balle and Wang 2018, Thm 8), and all that rounding may take off it.
    """
    if mu == 0.0:
        return 0.0
    upper, lower = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    if upper < -_FAR:
        return _LEAST
    moved, depth = 3 * _UNIT * -lower, max(-upper, 0.0)
    log = float(log_ndtr(lower))
    above = _UNIT * (8 + 2 * depth**2) + moved * (1 + depth)
    below = _UNIT * (8 + 2 * epsilon - 10 * log) + moved * (1 - lower)
    first, second = float(ndtr(upper)), math.exp(min(epsilon + log, 0.0))
    return max(0.0, first * (1 + 1.01 * above) - second * (1 - 1.01 * below)) + _LEAST


def _require_reach(delta: float) -> None:
    if valid_delta(delta) <= 2 * _LEAST:
        raise UnsupportedEvent(
            f"deltas below {2 * _LEAST:g} are lost in the underflow of numbers: give a larger one"
        )


def gaussian_epsilon(mu: float, delta: float) -> float:
    """epsilon at `delta` of a Gaussian mechanism with sensitivity over noise `mu`: exact up to
    rounding, not below.

    Raises:
        UnsupportedEvent: delta is less than what may underflow.
    """
    _require_reach(delta)
    if gaussian_delta_bound(mu, 0.0) <= delta:
        return 0.0
    reached: Callable[[float], bool] = lambda epsilon: gaussian_delta_bound(mu, epsilon) <= delta  # noqa: E731
    _, epsilon = bisect(reached, *bracket(reached, max(mu, 1e-6)), tolerance=_CLOSE)
    return epsilon


def gaussian_mu_for(epsilon: float, delta: float) -> float:
    """The largest mu whose exact curve meets (epsilon, delta); the inverse of `gaussian_epsilon`,
    never above.

    Raises:
        UnsupportedEvent: delta is less than what may underflow.
    """
    _require_reach(delta)
    too_large: Callable[[float], bool] = lambda mu: gaussian_delta_bound(mu, epsilon) > delta  # noqa: E731
    mu, _ = bisect(too_large, *bracket(too_large, 1.0), tolerance=_CLOSE)
    return mu * (1 - 16 * _UNIT)


def epsilon_bun_steinke(rho: float, delta: float) -> float:
    """epsilon = rho + 2 sqrt(rho ln(1/delta)): Bun and Steinke 2016, Prop 1.3; Yu et al. 2019, Prop
    1.
    """
    return (rho + 2.0 * math.sqrt(rho * -math.log(valid_delta(delta)))) * (1 + 8 * _UNIT)


def epsilon_of_rho(rho: float, delta: float) -> float:
    """epsilon at `delta` of any rho-zCDP mechanism: the least, over orders, of the tight Renyi
    conversion.
    """
    valid_delta(delta)
    if rho == 0.0:
        return 0.0

    def at(log_excess: float) -> float:
        excess = math.exp(log_excess)
        order = 1.0 + excess
        terms = (
            rho * order,
            math.log(excess / order),
            -math.log(delta) / excess,
            -math.log(order) / excess,
        )
        return math.fsum(terms) + _UNIT * (16 * math.fsum(map(abs, terms)) + 8 / excess)

    # The best order is near 1 + sqrt(ln(1/delta) / rho); any order gives a valid epsilon.
    centre = 0.5 * math.log(-math.log(delta) / rho)
    rises: Callable[[float], bool] = lambda x: at(x + 1e-6) >= at(x)  # noqa: E731
    best, _ = bisect(rises, centre - 12, centre + 12, tolerance=0.0, most_steps=45)
    return max(0.0, min(at(best), epsilon_bun_steinke(rho, delta)))


def rho_for(epsilon: float, delta: float) -> float:
    """The largest rho that `epsilon_of_rho` turns into at most `epsilon`."""
    too_large: Callable[[float], bool] = lambda rho: epsilon_of_rho(rho, delta) > epsilon  # noqa: E731
    rho, _ = bisect(too_large, *bracket(too_large, 1.0), tolerance=_CLOSE)
    return rho
