"""Noise by the sites: the grid on which each of them adds its share, from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self, final

from privlearn._checks import count
from privlearn._public import registered
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.mechanisms.discrete_gaussian import price_sum
from privlearn.errors import BadInput

#: The least parameter of a share, in steps: sums are then as good as discrete Gaussians.
_FINE = 2.0**10
#: So many parameters from 0 no draw is in practice: with probability below 1e-347 for each.
_REACH = 40
#: More than what rounding takes off the noise, relatively.
_ROOM = 1e-12
_MOST_ABSENT = 10**7
_MOST_NUMBERS = 10**9
_LARGEST = 2.0**62


@final
@registered
@dataclass(frozen=True)
class SiteNoise:
    """Each site adds a share of the noise to its own answers, and the server adds none.

    The sum holds the claimed noise as long as at most `absent` sites drop out, add no noise or give
    theirs away. All others together add the claimed noise, so with every share there it is more, by
    the factor sqrt(teachers / (teachers - absent)).

    Attributes:
        absent: the declared, public number of sites that may add nothing.
    """

    absent: int = 0
    kind: ClassVar[str] = "site-noise"

    def __post_init__(self) -> None:
        count("absent", self.absent, least=0, most=_MOST_ABSENT)


@final
@dataclass(frozen=True)
class NoiseGrid:
    """The grid on which sites add their shares; public.

    Attributes:
        step: the distance of its points, a power of two: that of the answers at most.
        sigma: the parameter of a site's discrete Gaussian, in steps.
        reach: the largest draw that a site sends, in steps.
        needed: how many shares add up to the claimed noise.
    """

    step: float
    sigma: float
    reach: int
    needed: int

    @classmethod
    def fit(
        cls,
        noise_multiplier: float,
        sensitivity: float,
        *,
        teachers: int,
        absent: int,
        answer_step: float = 1.0,
    ) -> Self:
        """The grid for noise of that multiplier of the sensitivity.

        sigma = noise_multiplier x sensitivity / step / sqrt(teachers - absent), at least 1024. By
        `price_sum` the sum then costs 1 / (2 noise_multiplier^2) in zCDP, the rest being far below
        what rounding is given.

        Args:
            noise_multiplier: noise of the sum over sensitivity.
            sensitivity: the most that one teacher moves the sum, rounding included.
            teachers, absent: how many sites there are, and may add nothing.
            answer_step: what answers are whole multiples of, a power of two; 1 for votes.

        Raises:
            BadInput: noise so small that sums on its grid would not fit into 64 bits.
        """
        needed = teachers - absent
        share = noise_multiplier * sensitivity / math.sqrt(needed) * (1 + _ROOM)
        step = min(answer_step, 2.0 ** math.floor(math.log2(share / _FINE)))
        sigma = share / step
        reach = math.ceil(_REACH * sigma)
        if teachers * (sensitivity / step + reach) > _LARGEST:
            raise BadInput(
                f"the noise multiplier {noise_multiplier:g} is so small that sums on the grid of "
                f"{teachers} sites would not fit into 64 bits: expected more noise. Nothing was "
                "charged"
            )
        grid = cls(step, sigma, reach, needed)
        price = price_sum(sensitivity / step, sigma, needed, _MOST_NUMBERS)
        assert price <= 0.5 / noise_multiplier**2, "the noise of shares does not pay for the sum"
        return grid


def solve_shares(budget: Budget, spent: Callable[[float], float], mu: float, step: float) -> float:
    """The scale of noise that meets `budget` to the last digits, for releases whose price is in
    zCDP: mu^2 / 2 at scale 1.

    Args:
        budget: the target.
        spent: the cost as a function of the scale, in the budget's measure.
        mu: what the releases amount to at scale 1.
        step: by how much the scale is raised first, where the last digits ask for it.
    """
    if budget.epsilon is None:
        rho = budget.limit
    else:
        assert budget.delta is not None
        rho = zcdp.rho_for(budget.epsilon, budget.delta)
    scale = budget.group_size * mu / math.sqrt(2 * rho)
    while spent(scale) > budget.limit:
        scale, step = scale * (1 + step), 2 * step
    return scale
