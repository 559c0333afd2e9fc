"""Renyi DP: the divergence of an event at many orders, composed by adding, and the ways to (epsilon, delta).

Sources: Mironov 2017 (closed forms), Mironov et al. 2019 (Poisson sampling), Canonne et al. 2020 (the tight conversion),
Abadi et al. 2016 (the moments accountant and its conversion). Repeat-and-select is in `repeat`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, logsumexp

from privlearn._checks import positive, probability
from privlearn.accounting import repeat
from privlearn.accounting.events import (
    ZCDP,
    Event,
    Filter,
    FixedBatches,
    Gaussian,
    GaussianFilter,
    Laplace,
    OneOf,
    Parallel,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    RepeatAndSelect,
    Selection,
    tally,
)
from privlearn.accounting.trees import GroupSampled, coarsen
from privlearn.errors import UnsupportedEvent

Array = NDArray[np.float64]

_FRACTIONAL = tuple(round(1 + x / 10, 1) for x in range(1, 100) if x % 10)
_WHOLE = (*range(2, 65), 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
#: Orders tried: fine below 11, whole up to 64, then sparse.
ORDERS: Array = np.array(sorted([*_FRACTIONAL, *_WHOLE]), dtype=np.float64)
#: The whole orders up to 33, which moments accountants used.
_MOMENTS = np.isin(ORDERS, np.arange(2, 34))
_LEAST_SIGMA = 0.02
_IS_WHOLE = np.isin(ORDERS, _WHOLE)
_LOG_FACTORIALS: Array = gammaln(np.arange(max(_WHOLE) + 1) + 1.0)


def curve(event: Event) -> Array:
    """The Renyi divergence bound of `event` at each of `ORDERS`; infinite where none is known.

    Raises:
        UnsupportedEvent: for a mechanism without a Renyi price.
    """
    total = np.zeros_like(ORDERS)
    for leaf, times in coarsen(tally(event)).items():
        total += times * _leaf_curve(leaf)
    return total


def epsilon(event: Event, delta: float) -> float:
    """epsilon of `event` at `delta`, by the tight conversion, the least over `ORDERS`."""
    return epsilon_of_curve(curve(event), delta)


def epsilon_of_curve(divergences: Array, delta: float) -> float:
    """The tight conversion of divergences at `ORDERS` (Canonne et al. 2020, Prop 12)."""
    found = divergences + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    least = float(found.min())
    return math.inf if math.isnan(least) else max(0.0, least)


def epsilon_by_moments(event: Event, delta: float) -> float:
    """epsilon by the moments accountant of 2016: whole orders up to 33 and the conversion of that time."""
    found = curve(event)[_MOMENTS] - math.log(delta) / (ORDERS[_MOMENTS] - 1)
    return float(found.min())


def divergence(rate: float, sigma: float, orders: ArrayLike) -> Array:
    """The Renyi divergence of one Poisson-sampled Gaussian release at any real orders above 1, by quadrature.

    It is the remove direction, which is the larger (Mironov et al. 2019, Thm 5), with the shape of `orders`.

    >>> round(float(divergence(0.06, 1.0, 3.7)), 6)
    0.015001

    Raises:
        BadInput: a rate outside (0, 1], a noise multiplier that is not positive, or an order of 1 or below.
    """
    probability("the sampling rate", rate)
    positive("the noise multiplier", sigma)
    found = np.asarray(orders, dtype=np.float64)
    positive("the least Renyi order minus 1", float(found.min()) - 1)
    if rate == 1:
        return np.asarray(found / (2 * sigma**2), dtype=np.float64)
    moments = _fractional_moments(rate, sigma, found.ravel()).reshape(found.shape)
    return np.asarray(np.maximum(moments, 0.0) / (found - 1), dtype=np.float64)


def _leaf_curve(leaf: Event) -> Array:
    match leaf:
        case Gaussian(sigma) | FixedBatches(Gaussian(sigma)) | Partitioned(_, Gaussian(sigma)):
            # Over disjoint batches one example meets one release.
            return ORDERS / (2 * sigma**2)
        case PoissonSampled(rate, Gaussian(sigma)):
            # At hardly any noise sampling hides nothing, and not using it is sound.
            return ORDERS / (2 * sigma**2) if rate == 1 or sigma < _LEAST_SIGMA else _poisson(rate, sigma)
        case GroupSampled(rate, k, Gaussian(sigma)):
            return _group(rate, k, sigma)
        case Laplace(b):
            shares = np.log(ORDERS / (2 * ORDERS - 1)), np.log((ORDERS - 1) / (2 * ORDERS - 1))
            moment = np.logaddexp(shares[0] + (ORDERS - 1) / b, shares[1] - ORDERS / b)
            return np.asarray(moment / (ORDERS - 1), dtype=np.float64)
        case PureDP(eps):
            return _randomised_response(eps, 2)
        case RandomisedResponse(eps, categories):
            return _randomised_response(eps, categories)
        case Selection(eps):
            return np.minimum(ORDERS * eps**2 / 8, _randomised_response(eps, 2))
        case ZCDP(rho) | GaussianFilter(rho):
            return ORDERS * rho
        case Filter(rho, orders, bounds):
            if rho is not None:
                return ORDERS * rho
            # Divergence grows with the order, so a bound holds at every smaller one too.
            holds = [np.where(order >= ORDERS, bound, np.inf) for order, bound in zip(orders, bounds, strict=True)]
            return np.asarray(np.min(holds, axis=0), dtype=np.float64)
        case Parallel(events) | OneOf(events):
            return np.asarray(np.max([curve(event) for event in events], axis=0), dtype=np.float64)
        case RepeatAndSelect(event, mean, shape):
            return repeat.divergences(ORDERS, curve(event), mean, shape)
        case _:
            raise UnsupportedEvent(f"{type(leaf).__name__} has no Renyi price", event=leaf)


def _randomised_response(eps: float, categories: int) -> Array:
    """k-ary randomised response; with k = 2 the worst of all eps-DP mechanisms."""
    low = -np.logaddexp(eps, math.log(categories - 1))  # ln of each other category's probability
    high = eps + low
    terms = [ORDERS * high + (1 - ORDERS) * low, ORDERS * low + (1 - ORDERS) * high]
    if categories > 2:
        terms.append(np.full_like(ORDERS, math.log(categories - 2) + low))
    return np.asarray(np.maximum(logsumexp(terms, axis=0), 0.0) / (ORDERS - 1), dtype=np.float64)


@lru_cache(maxsize=4096)
def _poisson(rate: float, sigma: float) -> Array:
    """Poisson-sampled Gaussian, remove direction, which is the larger (Mironov et al. 2019, Thm 5)."""
    log_moments = np.empty_like(ORDERS)
    log_moments[_IS_WHOLE] = _whole_moments(rate, sigma)
    log_moments[~_IS_WHOLE] = _fractional_moments(rate, sigma, ORDERS[~_IS_WHOLE])
    return np.asarray(np.maximum(log_moments, 0.0) / (ORDERS - 1), dtype=np.float64)


def _group(rate: float, k: int, sigma: float) -> Array:
    """A bound for k examples in a Poisson batch: not tight, but a formula for any k; the larger of both directions.

    Remove: |R|_a <= sum_j p_j |R_j|_a (Minkowski), where R_j is the ratio with j examples drawn. Add: R is at least the
    geometric mean of the R_j (weights p_j), whose negative moments are those of a log-normal variable.
    """
    j = np.arange(k + 1, dtype=np.float64)
    log_weights = (
        gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1) + j * math.log(rate) + (k - j) * math.log1p(-rate)
    )
    moments = [logsumexp(log_weights + (order - 1) * j**2 / (2 * sigma**2)) for order in ORDERS]
    remove = ORDERS / (ORDERS - 1) * np.maximum(moments, 0.0)
    add = (ORDERS * (k * rate) ** 2 + k * rate * (1 - rate)) / (2 * sigma**2)
    return np.asarray(np.maximum(remove, add), dtype=np.float64)


def _whole_moments(rate: float, sigma: float) -> list[float]:
    """ln E_Q[R^a] for the whole orders, by the binomial sum; the part above 1 is summed by itself.

    E R^a = sum_k C(a,k) (1-q)^{a-k} q^k e^{k(k-1)/(2 s^2)}, and the same sum without the exponential is 1.
    """
    k = np.arange(2, max(_WHOLE) + 1)
    exponents = k * (k - 1) / (2 * sigma**2)
    each = exponents + np.log(-np.expm1(-exponents)) + k * (math.log(rate) - math.log1p(-rate)) - _LOG_FACTORIALS[2:]
    found = []
    for order in _WHOLE:
        terms = each[: order - 1] - _LOG_FACTORIALS[order - 2 :: -1][: order - 1]
        top = float(terms.max())
        excess = top + math.log(float(np.exp(terms - top).sum())) + _LOG_FACTORIALS[order] + order * math.log1p(-rate)
        found.append(float(np.logaddexp(0.0, excess)))
    return found


def _fractional_moments(rate: float, sigma: float, orders: Array) -> Array:
    """ln E_Q[R^a] by the trapezoidal rule, which converges geometrically for these integrands.

    What is summed is R^a - 1 - a (R - 1), whose mean is that of R^a - 1 and which is nowhere negative: in the plain form
    where R^a is small, and by logarithms where it is large.
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
    # The weights stay logarithms: the mass of R^a lies near x = a, where they underflow once a > 37 sigma.
    large = np.where(small, -np.inf, exponents + np.log1p(-np.minimum(linear, 0.5)) + log_weights)
    near = np.log1p(np.maximum(plain, 0.0) @ np.exp(log_weights))
    return np.asarray(np.logaddexp(near, logsumexp(large, axis=1)), dtype=np.float64)
