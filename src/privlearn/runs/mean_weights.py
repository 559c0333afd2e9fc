"""This file takes the mean of the weights over the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn


@final
class MeanWeights:
    """The mean of the weights after all steps, later ones heavier (polynomial-decay averaging,
    Shamir and Zhang 2013).

    Weights after step s count about as s^p, with p = 2 / share - 2. What is averaged is then as
    old, on the average, as what the plain mean over the last `share` of the steps averages; for
    share 1 it is the plain mean over all. One copy of the weights is all that is kept, and it is
    right whenever the run ends: the plain mean over the last steps would have to know that
    beforehand, which a run that follows validations can't, and an exponential moving average has a
    length in steps of its own.

    Guarantee: post-processing of what was released, it costs nothing.

    Args:
        parameters: what is averaged. Buffers and frozen parameters don't change in a run, and stay
            as they are.
        share: from 0.001 to 1.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], share: float) -> None:
        self._power = 2 / share - 2
        self._parameters: list[Tensor] = list(parameters)
        self.means = [parameter.detach().clone() for parameter in self._parameters]
        self.steps = 0

    @torch.no_grad()
    def after_step(self) -> None:
        """A step was taken: its weights count."""
        self.steps += 1
        torch._foreach_lerp_(
            self.means, self._parameters, (self._power + 1) / (self._power + self.steps)
        )

    @torch.no_grad()
    def after_run(self) -> None:
        """Let the parameters be the mean; if no step was taken they stay."""
        if self.steps:
            torch._foreach_copy_(self._parameters, self.means)

    def state_dict(self) -> dict[str, Any]:
        """The mean so far."""
        return {"steps": self.steps, "means": self.means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        for mean, saved in zip(self.means, state["means"], strict=True):
            mean.copy_(saved)
        self.steps = state["steps"]
