"""Yu et al.'s closed form for random sampling: an estimate, never a guarantee.

Theorem 3 of Yu et al. (2019) turns a Renyi bound D_a <= a rho for a <= U into (epsilon, delta). It is right, but the
paper feeds it with rho = q^2 / sigma^2 and U = sigma^2 ln(1/(q sigma)) + 1, which was only observed numerically and is
false below sigma = 1.107 (at sigma = 1 and q = 0.06 the divergence at order 3.7 is 0.0150, the formula 0.0133).
"""

from __future__ import annotations

import math

from privlearn._validate import delta as valid_delta
from privlearn.accounting.events import Event, PoissonSampled, tally
from privlearn.errors import UnsupportedEvent

#: No violation of the conjecture was found from here on.
LEAST_SIGMA = 1.15


def epsilon(event: Event, delta: float) -> float:
    """An estimate of epsilon for Poisson-sampled Gaussian releases, by Yu et al. 2019, Thm 3.

    Raises:
        UnsupportedEvent: noise below 1.15, a sampling rate above 1 / (16 sigma), or any other kind of mechanism.
    """
    rho, top = 0.0, math.inf
    for leaf, times in tally(event).items():
        if not isinstance(leaf, PoissonSampled):
            raise UnsupportedEvent("the estimate of Yu et al. is for Poisson sampling alone", event=leaf)
        rate, sigma = leaf.sampling_rate, leaf.event.noise_multiplier
        if sigma < LEAST_SIGMA or rate > 1 / (16 * sigma):
            raise UnsupportedEvent(
                f"the estimate of Yu et al. does not hold at sigma {sigma:g} and q {rate:g}: it needs sigma of at least "
                f"{LEAST_SIGMA} and q of at most 1 / (16 sigma) = {1 / (16 * sigma):.4g}. Use pld or rdp",
                event=leaf,
            )
        rho += times * (rate / sigma) ** 2
        top = min(top, highest_order(rate, sigma))
    return theorem_three(rho, top, delta)


def highest_order(rate: float, sigma: float) -> float:
    """U = sigma^2 ln(1 / (q sigma)) + 1: the orders up to which the paper puts its bound (Yu et al. 2019, section IV-B)."""
    return sigma**2 * math.log(1 / (rate * sigma)) + 1


def theorem_three(rho: float, top: float, delta: float) -> float:
    """epsilon at `delta` of a mechanism whose Renyi divergence is at most a rho for every order a in (1, top].

    Sound as it stands (Yu et al. 2019, Thm 3); whether its premise holds is the caller's affair.
    """
    need = -math.log(valid_delta(delta))
    if need <= rho * (top - 1) ** 2:
        return rho + 2 * math.sqrt(rho * need)
    return rho * top + need / (top - 1)
