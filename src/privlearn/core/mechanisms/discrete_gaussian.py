"""Discrete Gaussians on whole numbers: exact draws, and what the sum of several of them costs.

The discrete Gaussian of parameter sigma has P(x) proportional to exp(-x^2 / (2 sigma^2)) on the
whole numbers. Unlike a rounded Gaussian, several of them add up to nearly the same law with another
parameter, so parties that do not trust each other can each add a share (Kairouz, Liu and Steinke
2021). docs/decisions/noise-by-the-sites.md has the proof of the price.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import between, count, positive
from privlearn.core.streams import NoiseStream

#: Below this parameter the bound on how far a sum is from a discrete Gaussian does not hold; above
#: the other one, draws might not fit into 64 bits.
LEAST, MOST = 0.5, 2.0**50
#: Terms of tau that are added up one by one; the rest is bounded by the last of them.
_TERMS = 1000
_WORD = 1 << 64
_AT_ONCE = 1 << 10
#: More than what rounding takes off a price, relatively.
_ROOM = 1e-12


def distance_of_sum(sigma: float, shares: int) -> float:
    """tau: what the sum of `shares` discrete Gaussians may cost more than one discrete Gaussian of
    parameter sigma x sqrt(shares), for each number.

    tau = 10 sum_{k=1}^{shares-1} exp(-2 pi^2 sigma^2 k / (k + 1)); 0 for a single share (Kairouz,
    Liu and Steinke 2021).
    """
    between("sigma", sigma, LEAST, MOST)
    steps = count("shares", shares) - 1

    def term(k: int) -> float:
        return math.exp(-2 * math.pi**2 * sigma**2 * (k / (k + 1)))

    listed = math.fsum(term(k) for k in range(1, min(steps, _TERMS) + 1))
    return 10 * (listed + max(0, steps - _TERMS) * term(_TERMS))


def price_sum(sensitivity: float, sigma: float, shares: int, numbers: int) -> float:
    """rho, in zCDP, of whole numbers to which the sum of `shares` discrete Gaussians was added.

    rho = sensitivity^2 / (2 shares sigma^2) + tau numbers, with `distance_of_sum` for tau.

    Args:
        sensitivity: the largest distance in L2, in whole steps, between neighbouring data sets.
        sigma: the parameter of each share, at least 1/2.
        shares: how many are added, each secret.
        numbers: how many there are.

    Raises:
        BadInput: a number out of range.
    """
    whole = positive("sensitivity", sensitivity) ** 2 / (2 * shares * sigma**2)
    return (whole + distance_of_sum(sigma, shares) * count("numbers", numbers)) * (1 + _ROOM)


def draw_discrete_gaussian(number: int, sigma: float, stream: NoiseStream) -> NDArray[np.int64]:
    """`number` independent draws of the discrete Gaussian of parameter `sigma`, exactly.

    By rejection from discrete Laplace draws, with whole numbers alone (Canonne, Kamath and Steinke
    2020, algorithms 1 to 3). Takes some 20 microseconds a draw.

    Args:
        number: how many.
        sigma: the parameter, as the fraction that the floating-point number is.
        stream: where bits come from; within its `drawing_for`.

    Raises:
        BadInput: a parameter out of range, or a stream that was not told what it draws for.
    """
    between("sigma", sigma, LEAST, MOST)
    bits = _words(stream)
    variance = Fraction(sigma) ** 2
    draws = (_draw(variance, math.floor(sigma) + 1, bits) for _ in range(number))
    return np.fromiter(draws, np.int64, number)


def _words(stream: NoiseStream) -> Iterator[int]:
    """The stream's bits, 64 at a time."""
    while True:
        yield from stream.words(_AT_ONCE).view(np.uint64).tolist()


def _draw(variance: Fraction, scale: int, bits: Iterator[int]) -> int:
    """One draw: a discrete Laplace draw of that scale, if it is accepted."""
    above, below = variance.numerator, variance.denominator
    centre, unit = below * scale, 2 * above * below * scale * scale
    while True:
        value = _draw_laplace(scale, bits)
        if _is_exponential((abs(value) * centre - above) ** 2, unit, bits):
            return value


def _draw_laplace(scale: int, bits: Iterator[int]) -> int:
    """One draw with P(x) proportional to exp(-|x| / scale)."""
    while True:
        rest = _draw_below(scale, bits)
        if not _is_exponential(rest, scale, bits):
            continue
        times = 0
        while _is_exponential(1, 1, bits):
            times += 1
        size, negative = rest + scale * times, next(bits) & 1
        if size or not negative:  # or 0 would come twice as often
            return -size if negative else size


def _is_exponential(above: int, below: int, bits: Iterator[int]) -> bool:
    """True with probability exp(-above / below)."""
    while above > below:
        if not _is_exponential(below, below, bits):
            return False
        above -= below
    times = 1
    while _is_fraction(above, below * times, bits):
        times += 1
    return times % 2 == 1


def _is_fraction(above: int, below: int, bits: Iterator[int]) -> bool:
    """True with probability above / below: a uniform number in [0, 1) is compared with it, 64 bits
    at a time, until they differ.
    """
    if above >= below:
        return True
    while above:
        digit, above = divmod(above << 64, below)
        if (word := next(bits)) != digit:
            return word < digit
    return False


def _draw_below(number: int, bits: Iterator[int]) -> int:
    """A uniform whole number from 0 to number - 1."""
    most = _WORD - _WORD % number
    while (word := next(bits)) >= most:
        pass
    return word % number
