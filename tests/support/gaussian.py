"""The trade-off of one Gaussian release, computed without any allowance for rounding."""

from __future__ import annotations

import math

from scipy.special import log_ndtr, ndtr


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) for sensitivity over noise `mu` (Balle and Wang 2018, Thm 8)."""
    if mu == 0.0:
        return 0.0
    upper, lower = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return float(max(0.0, ndtr(upper) - math.exp(min(epsilon + log_ndtr(lower), 0.0))))
