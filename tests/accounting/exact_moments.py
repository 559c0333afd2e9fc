"""Moments of privacy losses in 60-digit ball arithmetic: M(s) = E_P e^{sL} = E_Q R^{s+1} of one
release.

In closed form, or as an integral of an analytic function over a Gaussian, for which the trapezoid
rule converges geometrically. Directions: "remove" is L = ln P/Q under P, P being the data with the
example, and R = P/Q; "add" is the other way round, M(s) = E_Q R^{-s}.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from flint import acb, arb, arb_mat, arb_series, ctx

from privlearn.core.accounting.events import Mechanism
from privlearn.core.accounting.mechanisms import (
    Gaussian,
    GroupSampled,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
)

BITS = 200  # 60 digits
#: Natural logarithm of what the quadratures may leave out, relative to the moment on the real axis.
_SPARE = 48.0
#: Terms of one release's sums beyond which a plan is left undecided; each takes half a microsecond.
MOST_TERMS = 40_000_000
DIRECTIONS = ("remove", "add")


class Undecided(Exception):
    """The integrand falls off too slowly for this oracle."""


@dataclass(frozen=True)
class Line:
    """The orders c + i step j, for j below count."""

    c: float
    step: float
    count: int

    @property
    def top(self) -> float:
        """The largest imaginary part."""
        return self.step * self.count

    def orders(self) -> list[acb]:
        return [acb(self.c, arb(self.step) * j) for j in range(self.count)]


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


def along(line: Line, points: Sequence[arb], weights: Sequence[arb]) -> list[acb]:
    """The sums of weight e^{i t point} for all imaginary parts t of a line: trapezoid rules.

    Each is a ball that reaches to twice the sum over every second point.
    """
    largest = max(weights)
    kept = [j for j, w in enumerate(weights) if w > largest * 2.0**-BITS]
    turns = [(acb(0, line.step) * points[j]).exp() for j in kept]
    current, out = [], []
    for node in range(line.count):
        if node % 48 == 0:  # turning a ball about makes it grow
            at = acb(0, line.step) * node
            current = [(at * points[j]).exp() * weights[j] for j in kept]
        half = sum((x for x, j in zip(current, kept, strict=True) if j % 2), acb(0))
        full = sum(current, acb(0))
        apart = abs(full - 2 * half).upper()
        out.append(full + acb(arb(0, apart), arb(0, apart)))
        current = [x * turn for x, turn in zip(current, turns, strict=True)]
    return out


def sampled_moments(leaf: Mechanism, direction: str, line: Line) -> list[acb]:
    """M of a Poisson sampled Gaussian."""
    rate, sigma, k = _mixture(leaf)
    order = line.c + 1 if direction == "remove" else -line.c
    ends = math.sqrt(4 * _SPARE) + 1
    low, high = -ends + min(0.0, k * order / sigma), ends + max(0.0, k * order / sigma)
    # R has zeros at a distance of pi sigma from the real axis (for groups somewhat nearer); d is
    # half the strip.
    d = min((0.85 if k == 1 else 0.5 / k) * math.pi * sigma, math.sqrt(2 * _SPARE))
    step = math.pi * d / (_SPARE + (line.top + 1) * k * d / sigma + d * d / 2)
    count = math.ceil((high - low) / step)
    if count * line.count > MOST_TERMS:
        raise Undecided(f"{count} x {line.count} nodes for {leaf}")
    pieces = binomial(k, rate)
    scale, width = arb(sigma), arb(step)
    front = [p * (-arb(j * j) / (2 * scale**2)).exp() for j, p in enumerate(pieces)]
    logs, weights = [], []
    for node in range(count + 1):
        z = arb(low) + node * width
        one = (z / scale).exp()
        value = front[-1]
        for piece in reversed(front[:-1]):
            value = value * one + piece
        logs.append(value.log() if direction == "remove" else -value.log())
        weights.append(
            width * (-z * z / 2 + arb(order) * value.log()).exp() / (2 * arb.pi()).sqrt()
        )
    return along(line, logs, weights)


def gaussian_moments(sigma: float, orders: Sequence[acb]) -> list[acb]:
    return [(s * (s + 1) / (2 * arb(sigma) ** 2)).exp() for s in orders]


def laplace_moments(scale: float, orders: Sequence[acb]) -> list[acb]:
    b = arb(scale)
    return [((s + 1) * (s / b).exp() + s * (-(s + 1) / b).exp()) / (2 * s + 1) for s in orders]


def response_atoms(leaf: RandomisedResponse | PureDP) -> dict[int, arb]:
    """P's probabilities of the losses +epsilon, 0 and -epsilon."""
    categories = leaf.categories if isinstance(leaf, RandomisedResponse) else 2
    odds = arb(leaf.epsilon).exp()
    total = odds + categories - 1
    return {1: odds / total, 0: (categories - 2) / total, -1: 1 / total}


def response_moments(leaf: RandomisedResponse | PureDP, orders: Sequence[acb]) -> list[acb]:
    atoms = response_atoms(leaf)
    return [
        sum((p * (s * sign * arb(leaf.epsilon)).exp() for sign, p in atoms.items()), acb(0))
        for s in orders
    ]


def partition_moments(batches: int, sigma: float, direction: str, line: Line) -> list[acb]:
    """M of the mean A of `batches` independent log-normal ratios, through the Laplace transform of
    one.

    E A^p = 1 / Gamma(n - p) integral of v^{n-p-1} E[A^n e^{-v A}] over v > 0, for whole n > Re p.
    """
    order = line.c + 1 if direction == "remove" else -line.c
    n = max(0, math.ceil(order) + 5)
    # Gamma falls by pi / 2 for each unit of the imaginary part
    spare = 2 * _SPARE + 2 * line.top + 8 * math.log(n + 2)
    step = math.pi**2 * 0.45 / (_SPARE + 3.2 * line.top + 8 * math.log(n + 2))
    if line.top > 60 or n > 150:
        raise Undecided(f"{line} for a partition")
    with bits(BITS + 1.45 * spare + 4 * n, n + 1):
        lowest = -line.c / (batches * sigma) if direction == "add" else 0.0
        table = _moments_under_decay(batches, sigma, n, n - order, spare, step, lowest)
        nodes = sorted(table)
        sign = -1 if direction == "remove" else 1  # of the imaginary part of n - p
        points = [sign * arb(step) * node for node in nodes]
        weights = [
            arb(step) * (arb(step) * node * (n - arb(order))).exp() * table[node] for node in nodes
        ]
        sums = along(line, points, weights)
        return [
            found / acb(n - arb(order), sign * s.imag).gamma()
            for found, s in zip(sums, line.orders(), strict=True)
        ]


def _moments_under_decay(
    batches: int, sigma: float, n: int, power: float, spare: float, step: float, lowest: float
) -> dict[int, arb]:
    """E[A^n e^{-v A}] at v = e^{step j} by j, for all j at which v^power times it matters.

    E[A^n e^{-v A}] / n! is a coefficient of the series of phi((v - x) / t)^t in x, phi being one
    ratio's transform.
    """
    ends = math.sqrt(2 * spare) + 1
    d = min(0.8 * math.pi * sigma / 2, math.sqrt(2 * spare))
    width = 2 * math.pi * d / (spare + n + d * d / 2)
    nodes = [
        lowest - ends + width * j
        for j in range(math.ceil((2 * ends + n / sigma - lowest) / width) + 1)
    ]
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
    peak, start = -math.inf, round(math.log(n + 1) / step)
    for sign in (1, -1):  # outwards, until it has vanished on each side
        at = start if sign > 0 else start - 1
        while True:
            indices = [at + sign * j for j in range(16)]
            table |= block(indices)
            at += sign * 16
            values = [log_of(table[j]) + power * step * j for j in indices]
            peak = max(peak, *values)
            if values[-1] < min(peak - spare, values[0]):
                break
    return table


def log_of(value: arb) -> float:
    """The natural logarithm, also of what no double can hold."""
    size = abs(value).upper()
    return float(size.log()) if size > 0 else -math.inf


def moments(leaf: Mechanism, direction: str, line: Line) -> list[acb]:
    """M of one release, along a line."""
    match leaf:
        case Gaussian(sigma):
            return gaussian_moments(sigma, line.orders())
        case Laplace(b):
            return laplace_moments(b, line.orders())
        case RandomisedResponse() | PureDP():
            return response_moments(leaf, line.orders())
        case Partitioned(batches, Gaussian(sigma)):
            return partition_moments(batches, sigma, direction, line)
    return sampled_moments(leaf, direction, line)


# In doubles, to choose the line: no matter of exactness


def log_moment(leaf: Mechanism, direction: str, s: float, t: float = 0.0) -> float:
    """ln |M(s + it)| of one release, roughly."""
    order = complex(s, t)
    match leaf:
        case Gaussian(sigma):
            return (order * (order + 1)).real / (2 * sigma**2)
        case Laplace(b):
            rest = (order + 1) + order * np.exp(-(2 * order + 1) / b)
            return s / b + math.log(max(1e-300, abs(rest / (2 * order + 1))))
        case RandomisedResponse() | PureDP():
            terms = [
                float(p) * np.exp((sign - 1) * order * leaf.epsilon)
                for sign, p in response_atoms(leaf).items()
            ]
            return s * leaf.epsilon + math.log(max(1e-300, abs(sum(terms))))
        case Partitioned(batches, inner):
            return batches * log_moment(PoissonSampled(1 / batches, inner), direction, s, t)
    rate, sigma, k = _mixture(leaf)
    p = order + 1 if direction == "remove" else -order
    far = k * p.real / sigma
    count = int(min(400_000, 4000 + 40 * (12 + abs(far)) * t * k / sigma))
    z = np.linspace(min(0.0, far) - 12, max(0.0, far) + 12, count)
    if k == 1:
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + z / sigma - 0.5 / sigma**2)
    else:
        parts = [
            math.log(float(x)) + j * z / sigma - (j / sigma) ** 2 / 2
            for j, x in enumerate(binomial(k, rate))
        ]
        ratio = np.logaddexp.reduce(parts)
    values = p.real * ratio - z * z / 2
    top = values.max()
    total = (
        abs((np.exp(values - top) * np.exp(1j * p.imag * ratio)).sum())
        * (z[1] - z[0])
        / math.sqrt(2 * math.pi)
    )
    return float(top + math.log(max(total, 1e-300)))
