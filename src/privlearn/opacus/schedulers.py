"""Schedulers of the noise multiplier and of the clipping norm, by the names that they have in
Opacus.

A plan is fixed before the first batch. So a scheduler is made before it, is asked for the values of
all epochs, and becomes part of the plan; `step()` says that the script goes on to the next epoch.
What is charged is the plan's noise, which is what is drawn.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, final

from privlearn._checks import checked, count, positive, require_public
from privlearn.errors import BadInput


class PlannedScheduler(ABC):
    """A setting of the private optimizer that changes from epoch to epoch, as its plan says.

    Guarantee: the plan's. A step is taken only with what the plan has for its epoch: if `step()`
    was called more or less often than once between two epochs, the next batch is refused.

    Args:
        optimizer: the private one, before its first batch.
        last_epoch: expected -1. To begin later, call `step()` so often before the first batch.

    Attributes:
        last_epoch: how often `step()` was called.

    Raises:
        BadInput: another optimizer, one whose first batch was drawn, or that has a scheduler of
            this kind.
    """

    #: The optimizer's setting that it changes.
    setting: ClassVar[str]

    def __init__(self, optimizer: Any, *, last_epoch: int = -1) -> None:
        settings = getattr(optimizer, "planned", None)
        if settings is None:
            raise BadInput(
                f"optimizer is a {type(optimizer).__name__}: expected the private optimizer that "
                "PrivacyEngine of privlearn.opacus returned. For an optimizer of Opacus's use its "
                "own schedulers"
            )
        if last_epoch != -1:
            raise BadInput(
                f"last_epoch is {last_epoch}: expected -1. To begin at a later epoch, call step() "
                "so often before the first batch"
            )
        self.optimizer, self.last_epoch = optimizer, 0
        settings.attach(self)

    @abstractmethod
    def factor(self, epoch: int) -> float:
        """What the first value is multiplied by in an epoch, counted from 0."""

    def factors(self, epochs: int) -> tuple[float, ...]:
        """Those of the epochs that begin with the present one.

        Raises:
            BadInput: one is no number above 0.
        """
        factors = []
        for epoch in range(self.last_epoch, self.last_epoch + epochs):
            factor = self.factor(epoch)
            require_public(f"the factor of {type(self).__name__}", factor)
            if not isinstance(factor, int | float) or not 0 < factor < math.inf:
                raise BadInput(
                    f"{type(self).__name__} multiplies {self.setting} by {str(factor)[:40]} in "
                    f"epoch {epoch}: expected a number above 0. The plan has {epochs} epochs; give "
                    "a smaller epochs=, or another schedule"
                )
            factors.append(float(factor))
        return tuple(factors)

    def step(self) -> None:
        """Go on to the next epoch: once after each pass over the loader."""
        self.last_epoch += 1
        self.optimizer.planned.stepped()

    def state_dict(self) -> dict[str, Any]:
        """Its numbers."""
        return {name: value for name, value in vars(self).items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from these, before the first batch.

        Raises:
            BadInput: the first batch was drawn, and they are others.
        """
        if state_dict != self.state_dict():
            self.optimizer.planned.require_open(self.setting)
            vars(self).update(state_dict)
            self.optimizer.planned.stepped()


class _Exponential(PlannedScheduler):
    def __init__(self, optimizer: Any, *, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = positive("gamma", gamma)
        super().__init__(optimizer, last_epoch=last_epoch)

    def factor(self, epoch: int) -> float:
        """A power of gamma."""
        return float(self.gamma**epoch)


class _Step(PlannedScheduler):
    def __init__(
        self, optimizer: Any, *, step_size: int, gamma: float, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = count("step_size", step_size), positive("gamma", gamma)
        super().__init__(optimizer, last_epoch=last_epoch)

    def factor(self, epoch: int) -> float:
        """A power of gamma."""
        return float(self.gamma ** (epoch // self.step_size))


@final
class ExponentialNoise(_Exponential):
    """The noise multiplier is multiplied by `gamma` after every epoch.

    Args:
        optimizer, last_epoch: as of every `PlannedScheduler`.
        gamma: below 1 the noise falls, and a target epsilon asks for more noise at first.
    """

    setting = "noise_multiplier"


@final
class ExponentialGradClip(_Exponential):
    """The clipping norm is multiplied by `gamma` after every epoch, and the noise with it.

    Args:
        optimizer, last_epoch: as of every `PlannedScheduler`.
        gamma: below 1 more is clipped.
    """

    setting = "max_grad_norm"


@final
class StepNoise(_Step):
    """The noise multiplier is multiplied by `gamma` after every `step_size` epochs.

    Args:
        optimizer, last_epoch: as of every `PlannedScheduler`.
        step_size: epochs.
        gamma: below 1 the noise falls.
    """

    setting = "noise_multiplier"


@final
class StepGradClip(_Step):
    """The clipping norm is multiplied by `gamma` after every `step_size` epochs, and the noise with
    it.

    Args:
        optimizer, last_epoch: as of every `PlannedScheduler`.
        step_size: epochs.
        gamma: below 1 more is clipped.
    """

    setting = "max_grad_norm"


@final
class LambdaNoise(PlannedScheduler):
    """The noise multiplier is the first one times a function of the epoch.

    Args:
        optimizer, last_epoch: as of every `PlannedScheduler`.
        noise_lambda: of the number of an epoch, from 0. It is asked for all epochs before the first
            batch.
    """

    setting = "noise_multiplier"

    @checked
    def __init__(
        self,
        optimizer: Any,
        *,
        noise_lambda: Callable[[int], float],
        last_epoch: int = -1,
    ) -> None:
        self.noise_lambda = noise_lambda
        super().__init__(optimizer, last_epoch=last_epoch)

    def factor(self, epoch: int) -> float:
        """What the function gives."""
        return self.noise_lambda(epoch)


@final
class LambdaGradClip(PlannedScheduler):
    """The clipping norm is the first one times a function of the epoch, and the noise follows.

    Args:
        optimizer, last_epoch: as of every `PlannedScheduler`.
        scheduler_function: of the number of an epoch, from 0. It is asked for all epochs before the
            first batch.
    """

    setting = "max_grad_norm"

    @checked
    def __init__(
        self,
        optimizer: Any,
        *,
        scheduler_function: Callable[[int], float],
        last_epoch: int = -1,
    ) -> None:
        self.scheduler_function = scheduler_function
        super().__init__(optimizer, last_epoch=last_epoch)

    def factor(self, epoch: int) -> float:
        """What the function gives."""
        return self.scheduler_function(epoch)
