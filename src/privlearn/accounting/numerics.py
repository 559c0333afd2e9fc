"""Numerical pieces that privacy loss distributions share."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

#: Allowance per cell, per doubling of the length and per square root of the power, for the rounding of a Fourier
#: transform. Not a theorem: against extended precision, errors stayed 17 times below it.
ROUNDING = 2e-18
#: Orders beyond this one are not tried: where no variance is left, bounds fall for ever.
_HIGHEST = 1e100


def fourier_power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """base ** exponent by repeated squaring: complex powers through logarithms lose the phase."""
    out = np.ones_like(base)
    while exponent:
        if exponent & 1:
            out *= base
        exponent >>= 1
        if exponent:
            base = base * base
    return out


def log_moment(points: NDArray[np.float64], mass: NDArray[np.float64], order: float) -> float:
    """ln of the sum of mass e^{order points}."""
    exponents = order * points
    top = float(exponents[mass > 0].max())
    return top + math.log(float(mass @ np.exp(np.minimum(exponents - top, 0.0))))


def least_bound(bound: Callable[[float], float], order: float) -> float:
    """The least value of `bound` found around `order`: for bounds that hold at every order (Chernoff)."""
    best = bound(order)
    for factor in (4.0, 0.25, 1.6, 0.6, 1.2, 0.85):
        while order * factor < _HIGHEST and (trial := bound(order * factor)) < best:
            order, best = order * factor, trial
    return best
