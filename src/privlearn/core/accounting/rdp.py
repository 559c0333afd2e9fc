"""This file computes Renyi DP: the divergence of an event at many orders, which adds up over
events, and the ways to (epsilon, delta).

Sources: Mironov 2017 (closed forms), Mironov et al. 2019 (Poisson sampling), Canonne et al. 2020
(the tight conversion), Abadi et al. 2016 (the moments accountant and its conversion).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn._checks import positive, probability
from privlearn._scipy import gammaln, logsumexp
from privlearn.core.accounting.events import Event, coarsen, tally

Array = NDArray[np.float64]

_FRACTIONAL = tuple(round(1 + x / 10, 1) for x in range(1, 100) if x % 10)
_WHOLE = (
    *range(2, 65),
    72,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    320,
    384,
    448,
    512,
    640,
    768,
    896,
    1024,
)
#: Orders tried: fine below 11, whole up to 64, then sparse.
ORDERS: Array = np.array(sorted([*_FRACTIONAL, *_WHOLE]), dtype=np.float64)
#: The whole orders up to 33, which moments accountants used.
_MOMENTS = np.isin(ORDERS, np.arange(2, 34))
_LEAST_SIGMA = 0.02
_IS_WHOLE = np.isin(ORDERS, _WHOLE)


@lru_cache(maxsize=1)
def _log_factorials() -> Array:
    """Of the numbers up to the largest order."""
    return np.asarray(gammaln(np.arange(max(_WHOLE) + 1) + 1.0), dtype=np.float64)


def curve(event: Event, orders: Array = ORDERS) -> Array:
    """The Renyi divergence bound of `event` at each of `orders`; infinite where none is known.

    Raises:
        UnsupportedEvent: for a mechanism without a Renyi price.
    """
    total = np.zeros_like(orders)
    for leaf, times in coarsen(tally(event)).items():
        total += times * leaf.renyi(orders)
    return total


def epsilon(event: Event, delta: float) -> float:
    """epsilon of `event` at `delta`, by the tight conversion, the least over `ORDERS`."""
    return epsilon_of_curve(curve(event), delta)


def epsilon_of_curve(divergences: Array, delta: float) -> float:
    """The tight conversion of divergences at `ORDERS` (Canonne et al. 2020, Prop 12)."""
    epsilons = (
        divergences + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    )
    least = float(epsilons.min())
    return math.inf if math.isnan(least) else max(0.0, least)


def epsilon_by_moments(event: Event, delta: float) -> float:
    """epsilon by the moments accountant of 2016: whole orders up to 33 and the conversion of that
    time.
    """
    epsilons = curve(event)[_MOMENTS] - math.log(delta) / (ORDERS[_MOMENTS] - 1)
    return float(epsilons.min())


def divergence(rate: float, sigma: float, orders: ArrayLike) -> Array:
    """The Renyi divergence of one Poisson-sampled Gaussian release at any real orders above 1, by
    quadrature.

    It is the remove direction, which is the larger (Mironov et al. 2019, Thm 5), with the shape of
    `orders`.

    >>> round(float(divergence(0.06, 1.0, 3.7)), 6)
    0.015001

    Raises:
        BadInput: a rate outside (0, 1], a noise multiplier that is not positive, or an order of 1
            or below.
    """
    probability("the sampling rate", rate)
    positive("the noise multiplier", sigma)
    at = np.asarray(orders, dtype=np.float64)
    positive("the least Renyi order minus 1", float(at.min()) - 1)
    if rate == 1:
        return np.asarray(at / (2 * sigma**2), dtype=np.float64)
    moments = _fractional_moments(rate, sigma, at.ravel()).reshape(at.shape)
    return np.asarray(np.maximum(moments, 0.0) / (at - 1), dtype=np.float64)


def sampled_gaussian(rate: float, sigma: float, orders: Array) -> Array:
    """The divergence of one Poisson-sampled Gaussian release; of one on all the data where sampling
    is worth nothing.

    At hardly any noise sampling hides nothing, and not using it is sound.
    """
    if rate == 1 or sigma < _LEAST_SIGMA:
        return orders / (2 * sigma**2)
    return _poisson(rate, sigma) if orders is ORDERS else divergence(rate, sigma, orders)


def randomised_response(eps: float, categories: int, orders: Array) -> Array:
    """The divergence of k-ary randomised response; with k = 2 the worst of all eps-DP
    mechanisms.
    """
    low = -np.logaddexp(eps, math.log(categories - 1))  # ln of each other category's probability
    high = eps + low
    terms = [orders * high + (1 - orders) * low, orders * low + (1 - orders) * high]
    if categories > 2:
        terms.append(np.full_like(orders, math.log(categories - 2) + low))
    return np.asarray(np.maximum(logsumexp(terms, axis=0), 0.0) / (orders - 1), dtype=np.float64)


@lru_cache(maxsize=4096)
def _poisson(rate: float, sigma: float) -> Array:
    """Poisson-sampled Gaussian, remove direction, which is the larger (Mironov et al. 2019, Thm
    5).
    """
    log_moments = np.empty_like(ORDERS)
    log_moments[_IS_WHOLE] = _whole_moments(rate, sigma)
    log_moments[~_IS_WHOLE] = _fractional_moments(rate, sigma, ORDERS[~_IS_WHOLE])
    return np.asarray(np.maximum(log_moments, 0.0) / (ORDERS - 1), dtype=np.float64)


def sampled_group(rate: float, k: int, sigma: float, orders: Array) -> Array:
    """A bound for k examples in a Poisson batch: not tight, but a formula for any k; the larger of
    both directions.

    Remove: |R|_a <= sum_j p_j |R_j|_a (Minkowski), where R_j is the ratio with j examples drawn.
    Add: R is at least the geometric mean of the R_j (weights p_j), whose negative moments are those
    of a log-normal variable.
    """
    j = np.arange(k + 1, dtype=np.float64)
    log_weights = (
        gammaln(k + 1)
        - gammaln(j + 1)
        - gammaln(k - j + 1)
        + j * math.log(rate)
        + (k - j) * math.log1p(-rate)
    )
    moments = [logsumexp(log_weights + (order - 1) * j**2 / (2 * sigma**2)) for order in orders]
    remove = orders / (orders - 1) * np.maximum(moments, 0.0)
    add = (orders * (k * rate) ** 2 + k * rate * (1 - rate)) / (2 * sigma**2)
    return np.asarray(np.maximum(remove, add), dtype=np.float64)


def _whole_moments(rate: float, sigma: float) -> list[float]:
    """ln E_Q[R^a] for the whole orders, by the binomial sum; the part above 1 is summed by itself.

    E R^a = sum_k C(a,k) (1-q)^{a-k} q^k e^{k(k-1)/(2 s^2)}, and the same sum without the
    exponential is 1.
    """
    k = np.arange(2, max(_WHOLE) + 1)
    exponents = k * (k - 1) / (2 * sigma**2)
    each = (
        exponents
        + np.log(-np.expm1(-exponents))
        + k * (math.log(rate) - math.log1p(-rate))
        - _log_factorials()[2:]
    )
    logs = []
    for order in _WHOLE:
        terms = each[: order - 1] - _log_factorials()[order - 2 :: -1][: order - 1]
        top = float(terms.max())
        excess = (
            top
            + math.log(float(np.exp(terms - top).sum()))
            + _log_factorials()[order]
            + order * math.log1p(-rate)
        )
        logs.append(float(np.logaddexp(0.0, excess)))
    return logs


def _fractional_moments(rate: float, sigma: float, orders: Array) -> Array:
    """ln E_Q[R^a] by the trapezoidal rule, which converges geometrically for these integrands.

    What is summed is R^a - 1 - a (R - 1), whose mean is that of R^a - 1 and which is nowhere
    negative: in the plain form where R^a is small, and by logarithms where it is large.
    """
    x = np.arange(-12 * sigma, float(orders.max()) + 12 * sigma, sigma / 6)
    log_weights = -0.5 * (x / sigma) ** 2 - math.log(6 * math.sqrt(2 * math.pi))
    losses = (2 * x - 1) / (2 * sigma**2)
    gain = rate * np.expm1(np.minimum(losses, 500.0))  # R - 1; beyond, it is nothing beside R^a
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + losses)
    log_ratio = np.where(np.abs(gain) < 0.5, np.log1p(np.maximum(gain, -0.9)), log_ratio)
    a = orders[:, None]
    exponents = a * log_ratio
    small = exponents < 30
    plain = np.where(small, np.expm1(np.minimum(exponents, 30.0)) - a * gain, 0.0)
    linear = (1 + a * gain) * np.exp(-np.maximum(exponents, 30.0))
    # The weights stay logarithms: the mass of R^a lies near x = a, where they underflow once a > 37
    # sigma.
    large = np.where(small, -np.inf, exponents + np.log1p(-np.minimum(linear, 0.5)) + log_weights)
    near = np.log1p(np.maximum(plain, 0.0) @ np.exp(log_weights))
    return np.asarray(np.logaddexp(near, logsumexp(large, axis=1)), dtype=np.float64)
