"""`AdamBC`: Adam without the noise's variance in its second moment (Tang et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, final

import torch

from privlearn._checks import between
from privlearn.errors import BadInput
from privlearn.optim.noise_aware import NoiseAware

#: The least corrected second moment, as a share of the noise's variance.
_FLOOR = 0.3


@final
class AdamBC(NoiseAware):
    """Adam on noisy gradients, without the noise in the second moment (Tang et al., "DP-AdamBC:
    Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias Correction)", AAAI 2024).

    Of gradients g with independent noise of deviation s in each number, the second moment is
    E[g]^2 + Var[g] + s^2. Where s is large, Adam divides every number by about s: it is SGD with
    momentum. Here, with the means m and v of g and g^2 that Adam has, and q the mean of s^2 with
    the weights of v,

        step = -rate m / sqrt(max(v - q, floor q)),

    m, v and q each over 1 - beta^t. q follows a noise multiplier that changes over the run.

    Guarantee: that of DP-SGD for the same plan. It reads the released gradients and s, which is
    the noise multiplier times the sensitivity over the expected batch. A variance that were
    estimated from the gradients of a batch would be private, and is not used.

    Args:
        params: what is trained.
        lr: the learning rate.
        betas: how much of the means of g and g^2 is old.
        floor: the least corrected second moment, as a share of the noise's variance: the mean of
            t squares of noise is itself off by sqrt(2 / t) of it.
        eps: what is added to the root, for gradients without noise.

    Raises:
        BadInput: numbers out of range; noise that is correlated over steps; or a step outside a
            private run, which says what the noise is.
    """

    needs_noise: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = _FLOOR,
        eps: float = 1e-8,
    ) -> None:
        between("lr", lr, 0.0, 3e38)
        if not isinstance(betas, tuple) or len(betas) != 2:
            raise BadInput(
                f"betas is {str(betas)[:60]}: expected two numbers, such as (0.9, 0.999)"
            )
        for beta in betas:
            between("a number of betas", beta, 0.0, 1.0 - 1e-6)
        between("floor", floor, 1e-6, 10.0)
        between("eps", eps, 0.0, 1.0)
        super().__init__(params, {"lr": lr, "betas": betas, "floor": floor, "eps": eps})
        self._deviation: float | None = None

    @classmethod
    def usual_rate(cls, rate: float, deviation: float) -> float:
        """Where the second moment is at its floor, steps are as long as those of SGD."""
        return rate * deviation * math.sqrt(_FLOOR)

    def expect_noise(self, deviation: float) -> None:
        """The gradients of the next step have noise of this standard deviation."""
        self._deviation = deviation

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step on the gradients, whose noise was told.

        Raises:
            BadInput: it was not.
        """
        if self._deviation is None:
            raise BadInput(
                "AdamBC was not told the noise of its gradients: expected a step of a private "
                "run, such as pv.make_private or pv.dpsgd gives. Elsewhere use torch.optim.Adam"
            )
        variance, self._deviation = self._deviation**2, None
        for group in self.param_groups:
            first, second = group["betas"]
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                state = self.state[weights]
                if not state:
                    state |= {"step": 0, "noise": 0.0}
                    state |= {name: torch.zeros_like(weights) for name in ("mean", "square")}
                state["step"] += 1
                state["mean"].lerp_(weights.grad, 1 - first)
                state["square"].lerp_(weights.grad.square(), 1 - second)
                state["noise"] += (1 - second) * (variance - state["noise"])
                unbiased = 1 - second ** state["step"]
                noise = state["noise"] / unbiased
                moment = (state["square"] / unbiased - noise).clamp_(min=group["floor"] * noise)
                root = moment.sqrt_().add_(group["eps"])
                rate = float(group["lr"]) / (1 - first ** state["step"])
                weights.addcdiv_(state["mean"], root, value=-rate)

    def after_gradients(self) -> None:
        """What was told is for one step alone."""
        self._deviation = None
