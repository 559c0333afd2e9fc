"""Repeat and select: a mechanism is run a random number of times, and only the best outcome is shown.

The number of runs K has a truncated negative binomial law of shape eta > 0 (0: logarithmic, 1: geometric),

    P(K = k) = (1 - gamma)^k / (gamma^-eta - 1) x product_{l < k} (l + eta) / (l + 1),   k = 1, 2, ...,

or a Poisson law (shape infinity), under which there may be no run at all. Here are its terms, for whoever draws K, and the
Renyi divergence of the whole, for accountants, so that both speak of one law. K itself is never shown: the price is for
the best outcome alone (Papernot and Steinke 2022, Thm 2 for negative binomial laws, Thm 6 for Poisson's).

Both theorems ask for one run's divergence in both directions between neighbours, which every price here bounds, and for
nothing else: any event and any kind of neighbour will do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_BITS = 400  # of the numbers that the law is computed in


def law(mean: float, shape: float) -> Iterator[Any]:
    """P(K = 0), P(K = 1), ... one after the other, as mpmath's numbers, exact to about 400 bits.

    The law's own mean is at most `mean`, and within a part in 1e12 of it. Both numbers are those of a `RepeatAndSelect`.
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
    """A negative binomial law's gamma: the least found, to a part in 1e12, whose mean is at most `mean`; 1 for 1."""
    low, high = 0.0, 1.0
    while high - low > 1e-12 * high * min(1.0, mean - 1):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _mean(middle, shape) > mean else (low, middle)
    return high


def _mean(g: float, shape: float) -> Any:
    """E K: eta (1/g - 1) / (1 - g^eta), or (1/g - 1) / ln(1/g) for shape 0."""
    import mpmath

    with mpmath.workprec(_BITS):
        x, eta = mpmath.mpf(g), mpmath.mpf(shape)
        return (1 / x - 1) / mpmath.log(1 / x) if shape == 0 else eta * (1 / x - 1) / -mpmath.powm1(x, eta)


def divergences(orders: Array, one: Array, mean: float, shape: float) -> Array:
    """A bound on the Renyi divergence of the best of K runs, at each of `orders`.

    With a Poisson law there may be no run. That outcome is covered, too: let M be one run's moment of order a, q and q' the
    chances, for neighbours, of nothing better than the outcome at hand, and u = a (q - 1) - (a - 1)(q' - 1), which goes from
    -1 to 0 and is at most (a - 1) delta on its way (by the delta that Thm 6 speaks of). The runs' part of the moment is the
    integral of m e^{m u} r^a dq' at likelihood ratio r, and r^a dq' >= du by Bernoulli's inequality. Split off, du brings
    1 - e^-m, and the rest at most m e^{m (a - 1) delta} (M - 1). With e^-m for no run that is at most
    1 + m e^{m (a - 1) delta} (M - 1), which never exceeds the theorem's m e^{m (a - 1) delta} M.

    Args:
        orders: Renyi orders above 1, ascending.
        one: the divergence of one run at each of them, in both directions.
        mean: the mean of K.
        shape: the shape of its law.
    """
    if math.isinf(shape):
        # Thm 6, with delta of one run at epsilon = ln(1 + 1 / (order - 1)) from its curve (Canonne et al. 2020, Prop 12).
        at = np.log1p(1 / (orders - 1))[:, None]
        logs = (orders - 1) * (one - at + np.log1p(-1 / orders)) - np.log(orders)
        deltas = np.exp(np.minimum(np.nan_to_num(logs, nan=np.inf), 0.0)).min(axis=1)
        found = one + mean * deltas + math.log(mean) / (orders - 1)
    else:
        extra = (1 + shape) * float(np.min((1 - 1 / orders) * one - math.log(gamma(mean, shape)) / orders))
        found = one + extra + math.log(mean) / (orders - 1)
    # Divergence grows with the order, so a bound holds at every smaller one too.
    return np.asarray(np.minimum.accumulate(found[::-1])[::-1], dtype=np.float64)
