"""Rényi divergences of mechanisms at the orders of the format."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special, stats

from privlearn_verify.event_trees import Array, Mechanism, Tree
from privlearn_verify.verdicts import CLOCK, Unknown

_LARGE = (72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
_TENTHS = [i / 10 for i in range(11, 110) if i % 10]
ORDERS: Array = np.array(sorted([*_TENTHS, *range(2, 65), *_LARGE]), float)


def find_log_expm1(x: Array | float) -> Array:
    """Return ln(e^x - 1)."""
    return x + np.log(-np.expm1(-np.asarray(x, float)))


def sum_divergences(tree: Tree) -> Array:
    """Return D at all orders of mechanisms that are composed."""
    total = np.zeros(len(ORDERS))
    for mechanism, count in tree:
        total = total + float(count) * find_divergence(mechanism)
    return total


@lru_cache(4096)
def find_divergence(m: Mechanism) -> Array:
    """Return D at all orders of one mechanism."""
    CLOCK.check()
    a, s = ORDERS, m.noise_multiplier
    match m.kind:
        case "gaussian" | "fixed_batches" | "partitioned":
            return a / (2 * s * s)
        case "poisson_sampled":
            return find_sampled_divergence(m.sampling_rate, s, m.group)
        case "truncated_poisson_sampled":
            return find_truncated_divergence(m)
        case "laplace":
            return find_laplace_divergence(s)
        case "randomised_response" | "pure_dp":
            return find_response_divergence(m.epsilon, m.categories or 2)
        case "selection":
            return np.minimum(a * m.epsilon**2 / 8, find_response_divergence(m.epsilon, 2))
        case "parallel" | "one_of":
            return np.max([sum_divergences(part) for part in m.parts], axis=0)
        case "repeat_and_select":
            return find_repeated_divergence(sum_divergences(m.parts[0]), m.mean, m.shape)
        case "filter" if m.orders:
            pairs = list(zip(m.orders, m.bounds, strict=False))
            return np.array([min((y for x, y in pairs if x >= o), default=math.inf) for o in a])
        case "zcdp" | "gaussian_filter" | "filter":
            return a * m.rho
    raise Unknown(f"the divergence of {m.kind}")


def find_laplace_divergence(b: float) -> Array:
    """Return D of Laplace noise; the terms of first order cancel exactly."""
    a = ORDERS
    small = a / (2 * a - 1) * np.expm1((a - 1) / b) + (a - 1) / (2 * a - 1) * np.expm1(-a / b)
    large = np.log(a / (2 * a - 1)) + (a - 1) / b
    large = np.logaddexp(large, np.log((a - 1) / (2 * a - 1)) - a / b)
    return np.where((a - 1) / b < 30, np.log1p(small), large) / (a - 1)


def find_response_divergence(e: float, c: float) -> Array:
    """Return R(e, c, a) = ln(1 + r (e^{ae} - 1) (1 - e^{(1-a)e})) / (a - 1), which is the same."""
    log_r = -np.logaddexp(e, math.log(c - 1))
    logs = log_r + find_log_expm1(ORDERS * e) + np.log(-np.expm1((1 - ORDERS) * e))
    return np.logaddexp(0, logs) / (ORDERS - 1)


@lru_cache
def list_log_binomials() -> Array:
    """Return ln C(a, j) for the whole orders a and j from 2 to the largest."""
    j, a = np.arange(2, 1025), ORDERS[np.floor(ORDERS) == ORDERS][:, None]
    lower = special.gammaln(j + 1) + special.gammaln(np.maximum(a - j, 0) + 1)
    return special.gammaln(a + 1) - lower


@lru_cache(4096)
def find_sampled_divergence(q: float, s: float, group: int = 1) -> Array:
    """Return S(q, s, a), or the divergence of a group's examples in a Poisson batch."""
    a = ORDERS
    if group > 1:
        j = np.arange(group + 1)[:, None]
        logs = stats.binom.logpmf(j, group, q) + (a - 1) * j**2 / (2 * s * s)
        first = a / (a - 1) * np.maximum(0, special.logsumexp(logs, axis=0))
        return np.maximum(first, (a * (group * q) ** 2 + group * q * (1 - q)) / (2 * s * s))
    if q == 1 or s < 0.02:
        return a / (2 * s * s)
    logs, whole = np.empty(len(a)), a == np.floor(a)
    step = min(s / 16, math.pi * s * s / 4)
    x = np.arange(-14 * s, 12 + 14 * s, step)
    weight = stats.norm.logpdf(x, 0, s) + math.log(step)
    loss = (2 * x - 1) / (2 * s * s)
    log_ratio, log_part = np.logaddexp(math.log1p(-q), math.log(q) + loss), math.log(q) + loss
    z = q * np.expm1(np.minimum(loss, 300))  # the ratio less one
    for i in np.flatnonzero(~whole):  # terms are (1 + z)^a - 1 - a z, whose sum keeps its digits
        near = np.log(np.maximum(np.expm1(a[i] * np.log1p(np.minimum(z, 1))) - a[i] * z, 0))
        linear = np.where(loss < 300, np.log1p(a[i] * z), math.log(a[i]) + log_part)
        linear = linear - a[i] * log_ratio
        far = a[i] * log_ratio + np.log(-np.expm1(np.minimum(linear, -1e-3)))
        logs[i] = np.logaddexp(0, special.logsumexp(np.where(z < 1, near, far) + weight))
    j, b = np.arange(2, 1025), a[whole][:, None]
    terms = list_log_binomials() + (b - j) * math.log1p(-q) + j * math.log(q)
    terms = np.where(j <= b, terms + find_log_expm1(j * (j - 1) / (2 * s * s)), -np.inf)
    logs[whole] = np.logaddexp(0, special.logsumexp(terms, axis=1))
    return logs / (a - 1)


def find_excess(x: float, y: float) -> float:
    """Return x ln(x / y) - x + y without losing digits where x is close to y."""
    d = (x - y) / y
    if abs(d) < 1e-3:
        return y * d * d * (1 / 2 - d / 6 + d * d / 12 - d**3 / 20)
    return x * math.log(x / y) - x + y


def find_truncation(m: Mechanism) -> tuple[float, float]:
    """Return r and ln w of a truncated batch."""
    n, q, most = m.examples, m.sampling_rate, m.maximum
    tail, mass = stats.binom.sf(most - 1, n, q), stats.binom.pmf(most, n, q)
    odds = (n - most) * q / ((most + 1) * (1 - q))
    ratio = max(1.0, tail / mass) if mass > 1e-280 else 1 / (1 - odds)
    log_mass = 0.5 * math.log(n / (2 * math.pi * most * (n - most)))
    log_mass -= find_excess(most, n * q) + find_excess(n - most, n * (1 - q))
    log_w = math.log(most / n) + log_mass + math.log(ratio + (1 - q) / q)
    return ratio * q / (ratio * q + 1 - q), min(log_w, 0.0)


def find_truncated_divergence(m: Mechanism) -> Array:
    """Return D of a batch of which a part is kept."""
    if m.maximum >= m.examples or m.group > 1:
        whole = find_sampled_divergence(m.sampling_rate, m.noise_multiplier, m.group)
        return whole if m.maximum >= m.examples else np.full(len(ORDERS), np.inf)
    r, log_w = find_truncation(m)
    a, s = ORDERS - 1, m.noise_multiplier
    usual = np.log(-np.expm1(log_w)) + a * find_sampled_divergence(m.sampling_rate, s)
    return np.logaddexp(usual, log_w + a * find_sampled_divergence(r, s)) / a


def find_repeated_divergence(d: Array, mean: float, shape: float) -> Array:
    """Return D of the best of a random number of runs, each with the divergences d."""
    a = ORDERS
    if math.isinf(shape):
        deltas = [math.exp(find_log_delta(d, math.log1p(1 / (x - 1)))) for x in a]
        total = d + mean * np.array(deltas) + math.log(mean) / (a - 1)
    else:
        low, high = -700.0, math.log(50)
        for _ in range(200):  # y = -ln(gamma), by bisection on its logarithm
            y = math.exp((low + high) / 2)
            below = -math.expm1(-shape * y) / shape if shape else y
            low, high = (
                ((low + high) / 2, high)
                if math.expm1(y) < mean * below
                else (low, (low + high) / 2)
            )
        best = np.min((1 - 1 / a) * d + (math.exp(low) if mean > 1 else 0) / a)
        total = d + (1 + shape) * best + math.log(mean) / (a - 1)
    return np.minimum.accumulate(total[::-1])[::-1]


def find_log_delta(d: Array, e: float) -> float:
    """Return the logarithm of the delta of D at an epsilon."""
    logs = (ORDERS - 1) * (d - e + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return min(float(np.min(logs)), 0.0)


def find_renyi_epsilon(d: Array, delta: float, orders: Array = ORDERS) -> float:
    """Return the epsilon of D at a delta."""
    epsilons = d + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(epsilons)))
