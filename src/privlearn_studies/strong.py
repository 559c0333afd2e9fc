"""The strong composition theorem, as the papers of 2016 to 2019 compare against it. Sound, and far from tight."""

from __future__ import annotations

import math

import numpy as np

from privlearn._checks import count
from privlearn._checks import delta as valid_delta


def epsilon(sigma: float, rate: float, steps: int, delta: float) -> float:
    """epsilon at `delta` of `steps` sampled Gaussian releases by strong composition (Dwork et al. 2010, Thm 3.20).

    Each release is (e, d)-DP by the exact Gaussian curve, amplified by sampling to (ln(1 + q (e^e - 1)), q d); delta is split
    between the releases and the composition in the best of many ways.
    """
    from privlearn.accounting.zcdp import gaussian_epsilon

    count("steps", steps)
    valid_delta(delta)
    best = math.inf
    for share in np.geomspace(1e-4, 0.9999, 60):
        each = share * delta / steps
        alone = gaussian_epsilon(1 / sigma, each / rate)
        amplified = math.log1p(rate * math.expm1(alone))
        slack = delta * (1 - share)
        total = amplified * math.sqrt(2 * steps * math.log(1 / slack)) + steps * amplified * math.expm1(amplified)
        best = min(best, total, steps * amplified)
    return best
