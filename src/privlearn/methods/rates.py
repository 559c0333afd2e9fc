"""The optimizer's learning rates over a run."""

from __future__ import annotations

from typing import final

import torch

from privlearn.schedules import Schedule


@final
class LearningRates:
    """An optimizer's learning rates as they were, multiplied by a schedule's value over its value at epoch 0.

    Attributes:
        first: the rate of its first parameters at epoch 0.
    """

    def __init__(self, descent: torch.optim.Optimizer, schedule: Schedule) -> None:
        self._descent, self._schedule = descent, schedule
        self._rates = [group["lr"] for group in descent.param_groups]
        self.first = self._rates[0]

    def at(self, epoch: float) -> None:
        """Set those of `epoch`, counted from 0, with the part of it that is over."""
        factor = self._schedule(epoch) / self._schedule(0)
        for group, rate in zip(self._descent.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
