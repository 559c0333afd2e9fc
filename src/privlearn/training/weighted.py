"""Weights of examples in DP-SGD: inside the loss, so that gradients are clipped after they were
multiplied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from privlearn.data.dataset import Dataset


@final
class WeightedLoss:
    """A loss times the example's weight in [0, 1], for targets of shape (rows, 2): a target and a
    weight each.

    An example's gradient is clipped after it was multiplied, so the sensitivity is that of an
    unweighted run, whatever the weights are. An example's loss depends on no other example, nor
    does its weight.

    Args:
        loss: one value for each example, of outputs and targets.
        whole: whether targets are classes, whole numbers.
    """

    def __init__(self, loss: Any, *, whole: bool) -> None:
        self._loss, self._whole = loss, whole

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One value for each example."""
        plain_targets, weights = targets[:, 0], targets[:, 1].clamp(0, 1)
        if self._whole:
            # as labels are; made-up ones may be any numbers
            plain_targets = plain_targets.clamp(0, outputs.shape[1] - 1).long()
        losses: Tensor = self._loss(outputs, plain_targets) * weights
        return losses


def weighted(data: Dataset, weights: Any, loss: Any) -> tuple[Dataset, WeightedLoss]:
    """Rows with weights beside their targets, and the loss that reads both.

    Args:
        data: rows with one target each.
        weights: one for each row; beyond [0, 1] they count as 0 or 1.
        loss: of outputs and targets.
    """
    y = torch.as_tensor(np.asarray(data.y), device="cpu")
    both = torch.stack([y.float(), torch.as_tensor(np.asarray(weights), device="cpu").float()], 1)
    return replace(data, y=both, classes=None), WeightedLoss(loss, whole=data.classes is not None)
