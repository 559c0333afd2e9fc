"""`DiSK`: SGD on gradients that a simplified Kalman filter smooths (Zhang et al. 2025)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from privlearn._checks import between
from privlearn.errors import BadInput
from privlearn.optim.noise_aware import NoiseAware


@final
class DiSK(NoiseAware):
    """DP-SGD whose noisy gradients go through a filter, each computed where the weights will be
    next (Zhang et al., "DiSK: Differentially Private Optimizer with Simplified Kalman Filter for
    Noise Reduction", ICLR 2025).

    With weights x and gain k, a step is

        y = x + (1 - k) / k (x - x of the step before)   the gradient is computed here,
        g = (1 - k) g + k (noisy gradient at y)          beginning with g = 0,
        x = x - rate g.

    Guarantee: that of DP-SGD for the same plan. The paper evaluates each example's gradient at two
    points, adds them with fixed weights and clips the sum. At this distance the weight of the one
    at x is 0, so a step clips one gradient for each example: at y, which follows from earlier
    releases, to the clipping norm, which is the sensitivity. The filter and the step see the
    released gradient alone.

    What it is: put in one line, y moves by -rate times the noisy gradient where the rate is
    constant. So the points at which gradients are computed are those of plain SGD, and x is their
    exponential mean, k new to 1 - k old. Where the rate falls, y also moves by (1 - k) / k times
    the fall of the rate times g.

    Between two steps the parameters are x: they are evaluated, averaged, kept in checkpoints and
    published. The loss that a step returns to the curator is that at y.

    Args:
        params: what is trained.
        lr: the learning rate.
        kappa: the gain k in (0, 1]; 1 is SGD. By default 0.5.

    Raises:
        BadInput: numbers out of range; or a step outside a private run, which moves nothing before
            it computes gradients.
    """

    moves: ClassVar[bool] = True

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, *, kappa: float = 0.5) -> None:
        between("lr", lr, 0.0, 3e38)
        between("kappa", kappa, 1e-3, 1.0)
        super().__init__(params, {"lr": lr, "kappa": kappa})
        self._weights: list[Tensor] | None = None  # x, while the parameters are y

    @torch.no_grad()
    def before_gradients(self) -> None:
        """Let the parameters be y."""
        self._weights = []
        for group in self.param_groups:
            further = (1 - group["kappa"]) / group["kappa"]
            for weights in group["params"]:
                self._weights.append(weights.clone())
                if weights in self.state:
                    drift = self.state[weights]
                    weights.sub_(drift["filtered"], alpha=further * drift["rate"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Filter the gradients, and step from x.

        Raises:
            BadInput: it was not told that a step begins.
        """
        if self._weights is None:
            raise BadInput(
                "DiSK has its gradients computed at other weights than it steps from: expected "
                "a step of a private run, such as pv.make_private or pv.dpsgd gives"
            )
        before = iter(self._weights)
        for group in self.param_groups:
            for weights in group["params"]:
                weights.copy_(next(before))
                if weights.grad is None:
                    continue
                state = self.state[weights]
                if not state:
                    state["filtered"] = torch.zeros_like(weights)
                state["filtered"].lerp_(weights.grad, group["kappa"])
                state["rate"] = float(group["lr"])
                weights.sub_(state["filtered"], alpha=state["rate"])
        self._weights = None

    @torch.no_grad()
    def after_gradients(self) -> None:
        """Let the parameters be x again, where no step was taken."""
        if self._weights is not None:
            parameters = [weights for group in self.param_groups for weights in group["params"]]
            for weights, before in zip(parameters, self._weights, strict=True):
                weights.copy_(before)
            self._weights = None
