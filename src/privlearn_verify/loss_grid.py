"""Privacy losses on a grid, and their composition by Fourier transform."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy import fft

from privlearn_verify.dominating_pairs import Pair, make_pair
from privlearn_verify.event_trees import Array, Mechanism
from privlearn_verify.verdicts import CLOCK, Unknown, demand


@dataclass(frozen=True)
class Law:
    """Masses at losses h j, j from `first` on, how often it is drawn, and the mass at infinity."""

    first: int
    masses: Array
    count: int
    missing: float


def put_on_grid(pair: Pair, count: int, h: float, tail: float) -> tuple[Law, Law]:
    """Return the laws of a pair's loss under P, and of its negative under Q."""
    low, high = pair.find_ends(tail)
    first, last = math.floor(low / h), math.ceil(high / h)
    last = max(last, first + 1)
    demand(last - first <= 2**23, "a grid of too many points", Unknown)
    loss, q, p, size = pair.loss, pair.q, pair.p, last - first + 1
    cell = np.clip(np.floor(loss / h), first, last - 1)
    over = np.clip(loss - cell * h, 0, h)
    cell = (cell - first).astype(int)
    outside = np.minimum(loss - first * h, 0), np.minimum(last * h - loss, 0)
    moved = q * np.exp(outside[0]), p * np.exp(outside[1])
    laws = []
    for mass, share in zip(
        moved, (np.expm1(over) / math.expm1(h), np.expm1(-over) / math.expm1(-h)), strict=False
    ):
        up: Array = np.bincount(cell + 1, mass * share, size).astype(float)
        laws.append(up + np.bincount(cell, mass * (1 - share), size))
    zero, infinite = (float(-mass @ np.expm1(x)) for mass, x in zip((q, p), outside, strict=False))
    return Law(first, laws[1], count, infinite), Law(-last, laws[0][::-1], count, zero)


@dataclass(frozen=True)
class Curve:
    """The law of all losses together in one direction."""

    loss: Array
    masses: Array
    missing: float

    def find_delta(self, e: float) -> float:
        """Return delta at an epsilon."""
        start = np.searchsorted(self.loss, e)
        return self.missing - float(self.masses[start:] @ np.expm1(e - self.loss[start:]))


def find_cumulants(laws: list[Law], h: float, order: float) -> list[float]:
    """Return ln of the sum of the masses times e^{order loss}, for each law."""
    cumulants = []
    for law in laws:
        logs = np.log(law.masses) + order * h * (law.first + np.arange(len(law.masses)))
        top = np.max(logs)
        cumulants.append(float(top + np.log(np.sum(np.exp(logs - top)))))
    return cumulants


def convolve(laws: list[Law], h: float, scale: float, delta: float, tail: float) -> Curve:
    """Return the composed law of one direction, by Fourier transform of tilted masses."""
    if len(laws) == 1 and laws[0].count == 1:  # nothing is composed, and no tail is cut
        single = laws[0]
        losses = h * (single.first + np.arange(len(single.masses), dtype=float))
        return Curve(losses, single.masses, single.missing)
    counts = np.array([law.count for law in laws], float)
    orders = np.geomspace(1e-2, 1e6, 60) / scale
    up = np.array([counts @ find_cumulants(laws, h, t) for t in orders])
    down = np.array([counts @ find_cumulants(laws, h, -t) for t in orders])
    low, high = np.max((math.log(tail) - down) / orders), np.min((up - math.log(tail)) / orders)
    size = fft.next_fast_len(math.ceil((high - low) / h) + 4, real=True)
    demand(size <= 2**24 and size * len(laws) <= 2**30, "a grid of too many points", Unknown)
    demand(counts.sum() <= 1e13, "too many mechanisms for double precision", Unknown)
    conversion = up - math.log(delta) - np.log1p(orders) - orders * np.log1p(1 / orders)
    tilt = orders[np.argmin(conversion / orders)] / 2
    cumulants = find_cumulants(laws, h, tilt)
    spectrum = np.ones(size // 2 + 1, complex)
    for law, cumulant in zip(laws, cumulants, strict=False):
        CLOCK.check()
        j = law.first + np.arange(len(law.masses))
        tilted = np.exp(np.log(law.masses) + tilt * h * j - cumulant)
        spectrum *= fft.rfft(np.bincount(j % size, tilted, size)) ** float(law.count)
    start = math.floor(low / h)
    loss = h * (start + np.arange(size))
    masses = np.maximum(np.roll(fft.irfft(spectrum, size), -(start % size)), 0)
    masses *= np.exp(np.minimum(float(counts @ cumulants) - tilt * loss, 700))
    missing = -math.expm1(math.fsum(law.count * math.log1p(-law.missing) for law in laws))
    return Curve(loss, masses, missing + tail)


def make_curves(tree: Counter[Mechanism], delta: float, share: float) -> list[Curve]:
    """Return both directions of mechanisms that all have a pair; tails are a share of delta."""
    number = sum(tree.values())
    tail = share * delta / number
    pairs = [(make_pair(mechanism, tail), count) for mechanism, count in tree.items()]
    total = sum(pair.v * count for pair, count in pairs)
    ends = [pair.find_ends(6e-16) for pair, _ in pairs]
    widest = max((high - low for low, high in ends if math.isfinite(high - low)), default=0)
    h = max(0.03 * math.sqrt(total / number), (16 * math.sqrt(total) + total) / 2**21)
    h = max(h, 1e-11, widest / 2**21)
    laws = [put_on_grid(pair, count, h, tail) for pair, count in pairs]
    scale = math.sqrt(total)
    return [convolve([x[i] for x in laws], h, scale, delta, share * delta / 2) for i in (0, 1)]


def find_curve_delta(curves: list[Curve], e: float) -> float:
    """Return the delta of both directions at an epsilon."""
    return max(curve.find_delta(e) for curve in curves)


def find_log_curve_delta(curves: list[Curve], e: float) -> float:
    """Return ln of the delta of both directions at an epsilon."""
    return math.log(find_curve_delta(curves, e))


def find_curve_epsilon(curves: list[Curve], delta: float) -> float:
    """Return the least epsilon of both directions, infinite if there is none."""
    low, high = 0.0, max(1e-9, *(float(curve.loss[-1]) for curve in curves))
    if find_curve_delta(curves, high) > delta:
        return math.inf
    if find_curve_delta(curves, 0) <= delta:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if find_curve_delta(curves, middle) > delta else (low, middle)
    return high
