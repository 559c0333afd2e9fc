"""Noise for private selection, from a zCDP budget (Durfee and Rogers 2019; Cesar and Rogers 2021)."""

from __future__ import annotations

import math

from privlearn._validate import count, positive


def draw_epsilon(rho: float, draws: int = 1) -> float:
    """The range epsilon of each of `draws` selections that cost `rho` together: draws epsilon^2 / 8 = rho."""
    return math.sqrt(8 * positive("rho", rho) / count("draws", draws))


def gumbel_scale(sensitivity: float, epsilon: float) -> float:
    """The scale of Gumbel noise on scores of this `sensitivity`, for one `Selection(epsilon)` or one-shot top-m of them."""
    return 2 * positive("sensitivity", sensitivity) / positive("epsilon", epsilon)
