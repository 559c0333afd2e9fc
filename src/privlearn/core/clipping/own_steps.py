"""`OwnSteps`: what a training example's own gradients did to its scores, from public numbers and
the example alone (docs/decisions/an-examples-own-steps-are-taken-back.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn.core.temperature import GRID


@final
@dataclass(frozen=True)
class OwnSteps:
    """How far plain SGD on one linear layer moved the scores of an example by its own gradients.

    Each time an example was drawn, its clipped gradient moved the weights along its own row, and
    thereby its own scores: a training example's loss is less than that of a new one. To first
    order, and in expectation, all its steps moved them by its last gradient times the sum of the
    learning rates over the number of examples. Other examples' steps undo some of it, all the more
    the fewer weights there are.

    Attributes:
        rates: the sum of the learning rates of all steps, over the public number of examples.
        clip_norm: of gradients.
        bias: whether the layer has one.
        most: the most that is left of the movement, over the temperature.
    """

    rates: float
    clip_norm: float
    bias: bool
    most: float

    def movement(self, scored: Tensor, labels: Tensor, x: Tensor) -> Tensor:
        """The movement of each row's scores away from its label, (temperatures, rows, classes).

        Args:
            scored: by the layer, shape (rows, classes), in double precision.
            labels: whole numbers from 0 to classes - 1, shape (rows,).
            x: what the layer was given, shape (rows, ...).
        """
        errors = scored.softmax(1) - F.one_hot(labels, scored.shape[1])
        norms = torch.linalg.vector_norm(errors, dim=1, keepdim=True)
        lengths = (x.flatten(1).double().square().sum(1, keepdim=True) + self.bias).sqrt()
        moved = self.rates * lengths * (norms * lengths).clamp(max=self.clip_norm)
        most = self.most * torch.from_numpy(GRID)[:, None, None]
        left: Tensor = moved / (1 + moved / most) * errors / norms.clamp(min=1e-12)
        return left
