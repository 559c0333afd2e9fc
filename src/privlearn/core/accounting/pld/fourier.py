"""This file computes powers of laws by Fourier transform, and bounds their rounding
(docs/decisions/proofs-of-prices.md).

The laws are nonnegative vectors, and what comes out is an upper bound on every cell of their
convolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn._scipy import irfft, next_fast_len, rfft
from privlearn.core.accounting.pld.rounding import TINY, UNIT, Array

Spectrum = NDArray[np.complex128]

#: Error of one transform per doubling of its length, in units of UNIT times the sum of magnitudes
#: (lemma 3).
_PER_DOUBLING = 12.0
#: Error of one complex product, in units of UNIT times its magnitude; above sqrt(5).
_PER_PRODUCT = 2.25
#: Frequencies of relative magnitude below e^-_DEEPEST are taken for 0, and counted as an error.
_DEEPEST = 70.0


def length(cells: int) -> int:
    """A length of transforms for at least as many cells, with no prime factor above 5 (as lemma 3
    demands).
    """
    return int(next_fast_len(cells, real=True))


def transform_error(size: int) -> float:
    """What each coefficient of a transform of `size` numbers may be off, as a share of the sum of
    their magnitudes.
    """
    return _PER_DOUBLING * (math.log2(size) + 1) * UNIT


@final
@dataclass(frozen=True)
class Factor:
    """A nonnegative vector to be convolved with itself.

    Attributes:
        cells: its entries, at their places in the cycle.
        times: how often.
        error: the l1 distance of what was meant from `cells`, as a share of the sum of `cells`.
    """

    cells: Array
    times: int
    error: float


def power(base: Spectrum, exponent: int) -> Spectrum:
    """base ** exponent by repeated squaring: complex powers through logarithms lose the phase."""
    out = np.ones_like(base)
    while exponent:
        if exponent & 1:
            out *= base
        exponent >>= 1
        if exponent:
            base = base * base
    return out


def convolve(factors: Iterable[Factor], size: int) -> tuple[Array, float]:
    """The cyclic convolution of all factors, no cell below its exact value; and how much each may
    be above it.
    """
    total = Spectra(size)
    for factor in factors:
        total.multiply(factor)
    return total.inverse()


def convolve_beside(common: Factor, others: Iterable[Factor], size: int) -> list[Array]:
    """`convolve` of a common factor and each of `others`."""
    total = Spectra(size)
    total.multiply(common)
    laws: list[Array] = []
    for other in others:
        product = copy(total)
        product.multiply(other)
        laws.append(product.inverse()[0])
    return laws


@final
class Spectra:
    """The product of spectra, at the frequencies where it does not vanish, and how far it may be
    off.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.places = np.arange(size // 2 + 1)
        self.values: Spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
        # of an upper bound on the magnitude, true or computed
        self._logs: Array = np.zeros(size // 2 + 1)
        self._errors: Array = np.zeros(size // 2 + 1)  # relative to that bound
        self._factors = self._products = self._left_out = 0.0

    def multiply(self, factor: Factor) -> None:
        """Multiply by the spectrum of one factor."""
        spectrum = rfft(factor.cells, self.size)[self.places]
        mass = float(factor.cells.sum()) * (1 + 2 * self.size * UNIT)
        error = (transform_error(self.size) + factor.error) * mass + TINY
        self.values = self.values * power(spectrum, factor.times)
        bound = np.abs(spectrum) * (1 + 4 * UNIT) + error
        self._logs = self._logs + factor.times * np.log(bound)
        self._errors = self._errors + factor.times * error / bound
        self._products += factor.times
        self._factors += 1
        self._trim()

    def _trim(self) -> None:
        keep = self._logs > self._logs[0] - _DEEPEST
        if 2 * np.count_nonzero(keep) < len(keep):
            # Further factors only make what is left out smaller, as a share of the first
            # coefficient.
            self._left_out = self._left_out + 2 * (len(keep) - np.count_nonzero(keep)) * math.exp(
                -_DEEPEST
            )
            self.places, self.values = self.places[keep], self.values[keep]
            self._logs, self._errors = self._logs[keep], self._errors[keep]

    def inverse(self) -> tuple[Array, float]:
        """The cells of the inverse transform, none below its exact value; and how much each may be
        above it.
        """
        spectrum = np.zeros(self.size // 2 + 1, dtype=np.complex128)
        spectrum[self.places] = self.values
        error = self.error()
        return np.asarray(
            np.maximum(irfft(spectrum, self.size), 0.0) + error, dtype=np.float64
        ), 2 * error

    def error(self) -> float:
        """How far each cell of the inverse transform may be below the exact one."""
        slack = UNIT * (8 * self._products + (8 + self._factors) * float(np.abs(self._logs).max()))
        bounds = np.exp(np.minimum(self._logs + slack, 700.0))
        rounding = _PER_PRODUCT * UNIT * self._products + transform_error(self.size)
        each = bounds * (self._errors + rounding)
        whole = 2 * float(each.sum()) - float(each[0]) + 2 * self._left_out * float(bounds[0])
        return whole / self.size * (1 + 1e-6) + TINY
