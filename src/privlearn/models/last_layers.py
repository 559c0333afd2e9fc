"""Last layers that a task adds to a network (`models.heads`): they turn its outputs into what the
task predicts.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn.core.devices import building

#: Thresholds are at least so far apart, so that no class has the probability 0.
_APART = 1e-3


@final
class CumulativeLogits(nn.Module):
    """Scores of ordered classes, of one number for each row: the proportional-odds model (McCullagh
    1980).

    The log odds of a class up to k are the threshold of k less that number. Thresholds are
    parameters, the first one and the gaps between them, and stay in order whatever noise is added.
    At the start all classes are as likely for a row whose number is 0.

    Args:
        classes: how many there are, at least 2.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        thresholds = [math.log(k / (classes - k)) for k in range(1, classes)]
        gaps = [math.log(math.expm1(b - a - _APART)) for a, b in pairwise(thresholds)]
        self.first = nn.Parameter(torch.tensor(thresholds[:1], device=building()))
        self.gaps = nn.Parameter(torch.tensor(gaps, device=building()))

    def forward(self, x: Tensor) -> Tensor:
        """The logarithms of the classes' probabilities, shape (rows, classes), of numbers of shape
        (rows, 1).
        """
        apart = F.softplus(self.gaps) + _APART
        logits = torch.cat([self.first, self.first + apart.cumsum(0)]) - x
        at_most, above = F.logsigmoid(logits), F.logsigmoid(-logits)
        between = at_most[:, 1:] + above[:, :-1] + torch.log(-torch.expm1(-apart))
        return torch.cat([at_most[:, :1], between, above[:, -1:]], 1)


@final
class Rate(nn.Module):
    """Expected counts, of one number for each row: its exponential, times a public factor, up to a
    public bound.

    Args:
        start: the expected count of a row whose number is 0.
        high: the bound.
    """

    def __init__(self, start: float, high: float) -> None:
        super().__init__()
        self.start, self.high = start, high

    def forward(self, x: Tensor) -> Tensor:
        """Counts of the shape of `x`."""
        return (self.start * x.exp()).clamp(max=self.high)
