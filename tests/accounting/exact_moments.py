"""Moments of privacy losses in 60-digit ball arithmetic: M(s) = E_P e^{sL} = E_Q R^{s+1} of one release.

In closed form, or as an integral of an analytic function over a Gaussian, for which the trapezoid rule converges
geometrically. Directions: "remove" is L = ln P/Q under P, P being the data with the example, and R = P/Q; "add" is the
other way round, M(s) = E_Q R^{-s}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from flint import acb, arb, arb_mat, arb_series, ctx

from privlearn.accounting.events import Mechanism
from privlearn.accounting.mechanisms import (
    FixedBatches,
    Gaussian,
    GroupSampled,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
)

BITS = 200  # 60 digits
#: Natural logarithm of what the quadratures may leave out, relative to the moment at the saddle point.
_SPARE = 96.0
DIRECTIONS = ("remove", "add")
#: A moment at each of many complex orders s.
Moments = Callable[[Sequence[acb]], list[acb]]


class Undecided(Exception):
    """The integrand falls off too slowly for this oracle."""


@contextmanager
def bits(count: float, terms: int = 10) -> Iterator[None]:
    """A precision, and how many terms power series have."""
    before = ctx.prec, ctx.cap
    ctx.prec, ctx.cap = int(count), terms
    try:
        yield
    finally:
        ctx.prec, ctx.cap = before


# One release


def binomial(k: int, q: float) -> list[arb]:
    """Binomial(k, q) at 0 to k, of the double q as it is."""
    rate = arb(q)
    return [arb(math.comb(k, j)) * rate**j * (1 - rate) ** (k - j) for j in range(k + 1)]


def _mixture(leaf: Mechanism) -> tuple[float, float, int]:
    """(rate, sigma, group size) of a sampled Gaussian."""
    if isinstance(leaf, PoissonSampled):
        return leaf.sampling_rate, leaf.event.noise_multiplier, 1
    assert isinstance(leaf, GroupSampled), leaf
    return leaf.sampling_rate, leaf.event.noise_multiplier, leaf.group_size


def _order(s: acb, direction: str) -> acb:
    """The power of R under Q that M(s) is the mean of."""
    return s + 1 if direction == "remove" else -s


def halved(full: acb, half: acb) -> acb:
    """`full` as a ball that reaches to `half`, the sum over every second node."""
    apart = abs(full - half).upper()
    return full + acb(arb(0, apart), arb(0, apart))


def sampled_moments(leaf: Mechanism, direction: str, reach: tuple[float, float], growth: float) -> Moments:
    """M of a Poisson sampled Gaussian, for s with real part and imaginary part up to `reach`."""
    rate, sigma, k = _mixture(leaf)
    real, imaginary = reach
    spare = _SPARE + growth
    ends = math.sqrt(2 * spare) + 1
    far = k * (real + 1) / sigma
    low, high = (-ends, far + ends) if direction == "remove" else (-ends - (far if rate > 0.2 else 0), ends)
    # R has zeros at a distance of pi sigma from the real axis (for groups somewhat nearer); d is half the strip.
    d = min((0.85 if k == 1 else 0.5 / k) * math.pi * sigma, math.sqrt(2 * spare))
    step = math.pi * d / (spare / 2 + imaginary * k * d / sigma + d * d / 2)
    count = math.ceil((high - low) / step)
    if count > 60_000:
        raise Undecided(f"{count} nodes for {leaf}")
    with bits(BITS + 1.45 * growth):
        pieces = binomial(k, rate)
        scale, root = arb(sigma), (2 * arb.pi()).sqrt()
        tilts = [-arb(j * j) / (2 * scale**2) for j in range(k + 1)]
        width = arb(step)
        logs, weights = [], []
        for node in range(count + 1):
            z = arb(low) + node * width
            one = (z / scale).exp()
            ratio, power = pieces[0], arb(1)
            for j in range(1, k + 1):
                power = power * one
                ratio = (
                    ratio + pieces[j] * power * tilts[j].exp()
                    if k == 1
                    else ratio + pieces[j] * (j * z / scale + tilts[j]).exp()
                )
            logs.append(ratio.log())
            weights.append(width * (-z * z / 2).exp() / root)

    def moments(orders: Sequence[acb]) -> list[acb]:
        out = []
        with bits(BITS + 1.45 * growth):
            for s in orders:
                p = _order(s, direction)
                even = sum((w * (p * x).exp() for w, x in zip(weights[::2], logs[::2], strict=True)), acb(0))
                odd = sum((w * (p * x).exp() for w, x in zip(weights[1::2], logs[1::2], strict=True)), acb(0))
                out.append(halved(even + odd, 2 * even))
        return out

    return moments


def gaussian_moments(sigma: float) -> Moments:
    return lambda orders: [(s * (s + 1) / (2 * arb(sigma) ** 2)).exp() for s in orders]


def laplace_moments(scale: float) -> Moments:
    b = arb(scale)
    return lambda orders: [((s + 1) * (s / b).exp() + s * (-(s + 1) / b).exp()) / (2 * s + 1) for s in orders]


def response_atoms(leaf: RandomisedResponse | PureDP) -> dict[int, arb]:
    """P's probabilities of the losses +epsilon, 0 and -epsilon."""
    categories = leaf.categories if isinstance(leaf, RandomisedResponse) else 2
    odds = arb(leaf.epsilon).exp()
    total = odds + categories - 1
    return {1: odds / total, 0: (categories - 2) / total, -1: 1 / total}


def response_moments(leaf: RandomisedResponse | PureDP) -> Moments:
    atoms = response_atoms(leaf)
    return lambda orders: [sum((p * (s * sign * arb(leaf.epsilon)).exp() for sign, p in atoms.items()), acb(0))
                           for s in orders]  # fmt: skip


def partition_moments(batches: int, sigma: float, direction: str) -> Moments:
    """M of the mean A of `batches` independent log-normal ratios, through the Laplace transform of one.

    E A^p = 1 / Gamma(n - p) integral of v^{n-p-1} E[A^n e^{-v A}] over v > 0, for whole n > Re p.
    """

    def moments(orders: Sequence[acb]) -> list[acb]:
        powers = [_order(s, direction) for s in orders]
        reals, top = [float(p.real) for p in powers], max(abs(float(p.imag)) for p in powers)
        n = max(0, math.ceil(max(reals)) + 5)
        # Gamma falls by pi / 2 for each unit of the imaginary part
        growth = 2 * top + 8 * math.log(n + 2)
        spare = _SPARE + growth
        step = math.pi**2 * 0.45 / (_SPARE / 2 + 3.2 * top + 8 * math.log(n + 2))
        with bits(BITS + 1.45 * growth + 4 * n, n + 1):
            lowest = -max(reals) / (batches * sigma) if direction == "add" else 0.0
            table = _moments_under_decay(batches, sigma, n, (n - max(reals), n - min(reals)), spare, step, lowest)
            first = min(table) + min(table) % 2
            out = []
            for p in powers:
                sums = [acb(0), acb(0)]
                for node in range(first, max(table) + 1):
                    sums[node % 2] += (arb(step) * node * (n - p)).exp() * table[node]
                out.append(halved(arb(step) * (sums[0] + sums[1]), 2 * arb(step) * sums[0]) / (n - p).gamma())
        return out

    return moments


def _moments_under_decay(
    batches: int, sigma: float, n: int, powers: tuple[float, float], spare: float, step: float, lowest: float
) -> dict[int, arb]:
    """E[A^n e^{-v A}] at v = e^{step j} by j, for all j at which v^power times it matters, for powers between two.

    E[A^n e^{-v A}] / n! is a coefficient of the series of phi((v - x) / t)^t in x, phi being one ratio's transform.
    """
    ends = math.sqrt(2 * spare) + 1
    d = min(0.8 * math.pi * sigma / 2, math.sqrt(2 * spare))
    width = 2 * math.pi * d / (spare + n + d * d / 2)
    nodes = [lowest - ends + width * j for j in range(math.ceil((2 * ends + n / sigma - lowest) / width) + 1)]
    scale = arb(sigma)
    ratios = [(arb(z) / scale - 1 / (2 * scale**2)).exp() for z in nodes]
    weights = [arb(width) * (-(arb(z) ** 2) / 2).exp() / (2 * arb.pi()).sqrt() for z in nodes]
    columns = []
    for ratio, weight in zip(ratios, weights, strict=True):
        row, value = [], weight
        for j in range(n + 1):
            row.append(value)
            value = value * ratio / (batches * (j + 1))
        columns.append(row)
    right, factorial = arb_mat(columns), arb(math.factorial(n))

    def block(indices: Sequence[int]) -> dict[int, arb]:
        at = [(arb(step) * j).exp() / batches for j in indices]
        left = arb_mat([[(-v * ratio).exp() for ratio in ratios] for v in at])
        found, out = left * right, {}
        for row, j in enumerate(indices):
            series = arb_series([found[row, column] for column in range(n + 1)], prec=n + 1)
            out[j] = (series**batches)[n] * factorial
        return out

    table: dict[int, arb] = {}
    peaks = [-math.inf, -math.inf]
    start = round(math.log(n + 1) / step)
    for sign, size in ((1, 16), (-1, 16)):
        at = start if sign > 0 else start - 1
        while True:
            indices = [at + sign * j for j in range(size)]
            table |= block(indices)
            at += sign * size
            logs = [log_of(table[indices[-1]])] + [log_of(table[j]) for j in indices]
            vanished = True
            for which, power in enumerate(powers):
                values = [value + power * step * j for value, j in zip(logs[1:], indices, strict=True)]
                peaks[which] = max(peaks[which], *values)
                vanished &= values[-1] < peaks[which] - spare and values[-1] < values[0]
            if vanished:
                break
    return table


def log_of(value: arb) -> float:
    """The natural logarithm, also of what no double can hold."""
    size = abs(value).upper()
    return float(size.log()) if size > 0 else -math.inf


def moments(leaf: Mechanism, direction: str, reach: tuple[float, float], growth: float) -> Moments:
    match leaf:
        case Gaussian(sigma) | FixedBatches(Gaussian(sigma)):
            return gaussian_moments(sigma)
        case Laplace(b):
            return laplace_moments(b)
        case RandomisedResponse() | PureDP():
            return response_moments(leaf)
        case Partitioned(batches, Gaussian(sigma)):
            return partition_moments(batches, sigma, direction)
    return sampled_moments(leaf, direction, reach, growth)


# Saddle points, in doubles: where the contour goes is no matter of exactness


def log_moment(leaf: Mechanism, direction: str, s: float) -> float:
    """ln M(s) of one release, roughly."""
    match leaf:
        case Gaussian(sigma):
            return s * (s + 1) / (2 * sigma**2)
        case FixedBatches(inner):
            return log_moment(inner, direction, s)
        case Laplace(b):
            return float(np.logaddexp(math.log(s + 1) + s / b, math.log(s) - (s + 1) / b)) - math.log(2 * s + 1)
        case RandomisedResponse() | PureDP():
            terms = [math.log(float(p)) + s * sign * leaf.epsilon for sign, p in response_atoms(leaf).items() if p > 0]
            return float(np.logaddexp.reduce(terms))
        case Partitioned(batches, inner):
            return batches * log_moment(PoissonSampled(1 / batches, inner), direction, s)
    rate, sigma, k = _mixture(leaf)
    p = s + 1 if direction == "remove" else -s
    z = np.linspace(min(0.0, k * p / sigma) - 30, max(0.0, k * p / sigma) + 30, 4001)
    if k == 1:
        ratio = np.logaddexp(math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + z / sigma - 0.5 / sigma**2)
    else:
        j = np.arange(k + 1)
        with np.errstate(divide="ignore"):
            parts = np.log([float(x) for x in binomial(k, rate)])
        ratio = np.logaddexp.reduce(parts[:, None] + j[:, None] * z / sigma - (j[:, None] / sigma) ** 2 / 2, axis=0)
    values = p * ratio - z * z / 2
    top = values.max()
    return float(top + math.log(np.exp(values - top).sum() * (z[1] - z[0]) / math.sqrt(2 * math.pi)))
