"""Temperature scaling (Guo et al. 2017) is fitted by one release after training, so that scores
mean probabilities.

Gradients that are clipped short lead to scores that rank well and are far too sure of themselves.
Dividing all scores by a temperature changes no prediction. It is fitted to the log losses of the
training examples at some fixed temperatures, released with Gaussian noise: one more event of the
plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from privlearn._checks import between
from privlearn._public import registered
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.accounting.rdp import Array

#: The temperatures at which losses are released.
GRID: Array = np.geomspace(0.5, 16, 11)
#: The share of rho that the release takes by default.
SHARE = 0.03
#: An example's gains over even scores, log(classes) - loss at each temperature, are clipped to this
#: L2 norm together, and each of them is at least the other number: else a few rows that the model
#: is sure and wrong of would speak for temperatures that are too low.
NORM, LEAST_GAIN = 12.0, -6.0
#: What is left of a training example's influence on its own scores, over the temperature, is at
#: most this times the weights of a class over the examples.
OWN_MOST = 30.0
#: The choice is drawn to the usual temperature by the noise in the mean gains, and by its square.
_BY_NOISE, _BY_SQUARE = 2.0, 16.0
#: The losses are fitted once more, near the temperature that was best, within about this in its
#: logarithm, and further with more noise.
_NEAR, _NEAR_WITH_NOISE, _TIMES = 0.7, 20.0, 2
#: The temperature that is taken without any other knowledge: of scores that are not too sure, of
#: two classes (and behind rows that were normalised) or more, and its growth with the noise.
_USUAL, _USUAL_OF_TWO, _OF_NORMALISED, _USUAL_OF_MORE, _WITH_NOISE = 1.0, 2.0, 4.0, 1.5, 4.0


@registered
@final
@dataclass(frozen=True)
class Temperature:
    """One release after training, of the losses at some temperatures; the scores are then divided
    by the best of them.

    Attributes:
        noise_multiplier: of the release.
    """

    noise_multiplier: float
    kind: ClassVar[str] = "temperature"

    def __post_init__(self) -> None:
        between("the temperature's noise multiplier", self.noise_multiplier, 1e-6, 1e12)

    def event(self) -> Gaussian:
        """What it costs."""
        return Gaussian(self.noise_multiplier)

    def text(self) -> str:
        """For a card."""
        return f"losses at {len(GRID)} temperatures (noise multiplier {self.noise_multiplier:.4g})"

    def best(
        self,
        sums: Array,
        classes: int,
        examples: int,
        sensitivity: float,
        *,
        sure: bool = True,
        normalised: bool = False,
    ) -> float:
        """The temperature, from released sums and public numbers.

        A cubic in log T is fitted to the mean losses, and once more to those near its minimum. The
        more noise there is in them, the more the choice is drawn to a temperature that is fixed
        beforehand (`_usual`).

        Args:
            sums: of the examples' gains over even scores, each clipped to `NORM`, over `NORM`;
                shape (temperatures,).
            classes: how many.
            examples: the public number that sums are divided by.
            sensitivity: of the sums.
            sure: whether gradients were clipped so short that scores are far too sure of
                themselves.
            normalised: whether rows were normalised, by which learning rates, and scores, are
                larger.
        """
        noise = NORM * self.noise_multiplier * sensitivity / examples
        usual = math.log(_usual(classes, noise, normalised) if sure else _USUAL)
        at, fine = np.log(GRID), np.linspace(math.log(GRID[0]), math.log(GRID[-1]), 200)
        drawn = (_BY_NOISE * noise + _BY_SQUARE * noise**2) * (fine - usual) ** 2
        losses, near = -NORM * sums / examples, _NEAR + _NEAR_WITH_NOISE * noise
        best = fine[np.argmin(np.polyval(np.polyfit(at, losses, 3), fine) + drawn)]
        for _ in range(_TIMES):
            weights = np.exp(-((at - best) ** 2) / (4 * near**2))
            fitted = np.polyval(np.polyfit(at - best, losses, 3, w=weights), fine - best) + drawn
            best = fine[np.argmin(np.where(np.abs(fine - best) < 1.5 * near, fitted, math.inf))]
        return float(np.exp(best))


def _usual(classes: int, noise: float, normalised: bool) -> float:
    """The temperature of scores that are too sure: 2 or 4 for two classes, 1.5 for more, and more
    with much noise.
    """
    of_two = _OF_NORMALISED if normalised else _USUAL_OF_TWO
    usual = of_two if classes == 2 else _USUAL_OF_MORE
    return float(min(GRID[-1], max(usual, _WITH_NOISE * noise)))
