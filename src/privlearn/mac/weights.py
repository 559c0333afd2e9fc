"""`WeightSteps`: what is done with a released objective. All of it is post-processing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from privlearn.clipping.derivative_bounds import Analytic, Layerwise
from privlearn.mac.expansion import Surrogate
from privlearn.mac.network import Layer


@final
@dataclass(frozen=True)
class WeightSteps:
    """Steps of an optimizer on the objectives of all layers that were released for one batch.

    Attributes:
        layers: whose weights are changed.
        bound: how derivatives were bounded, which says what was released.
        descent: the optimizer of their parameters.
        divisor: the expected batch size, a public number.
        count: steps on each objective.
        newton: the damping of Newton steps, as curvature for one example; None: steps along gradients.
    """

    layers: Sequence[Layer]
    bound: Layerwise
    descent: torch.optim.Optimizer
    divisor: float
    count: int = 1
    newton: float | None = None

    def take(self, released: Sequence[Tensor], noise: Sequence[float]) -> None:
        """Take the steps.

        Args:
            released: for each layer its first, then its second part, as `BatchDerivatives` has them.
            noise: the standard deviations of the noise in them.
        """
        objectives = self._objectives(released, noise)
        for _ in range(self.count):
            for layer, objective in zip(self.layers, objectives, strict=True):
                layer.set_gradient(self._direction(layer, objective))
            self.descent.step()

    def _objectives(self, released: Sequence[Tensor], noise: Sequence[float]) -> list[Surrogate]:
        """What was released, as polynomials around the weights at which it was computed."""
        order, objectives = self.bound.order, []
        for number, layer in enumerate(self.layers):
            first, *second = released[number * order : (number + 1) * order]
            noisy = noise[(number + 1) * order - 1]
            if second and isinstance(self.bound, Analytic):
                objectives.append(Surrogate.of(first, second[0], noisy))
            else:
                objectives.append(Surrogate.around(layer.weight(), first, second[0] if second else None, noisy))
        return objectives

    def _direction(self, layer: Layer, objective: Surrogate) -> Tensor:
        """What the optimizer steps against: the gradient of the objective over twice the batch size (eq. 5), or the Newton
        step, which does not change with such factors.
        """
        weight = layer.weight()
        if self.newton is not None:
            return objective.newton(weight, self.newton * self.divisor)
        return objective.gradient(weight) / (2 * self.divisor)
