"""`NoiseAware`: what a private run tells an optimizer, and where it may move the weights.

A subclass in a module of this package is known by its name in lower case, `optimizer="disk"`, as
the classes of torch.optim are.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any, ClassVar

import torch

from privlearn.errors import BadInput


class NoiseAware(torch.optim.Optimizer):
    """An optimizer that a private run tells the noise of each step, and that may have gradients
    computed elsewhere than at the weights.

    Guarantee: it is post-processing, and the price of a run is the same as with SGD. An optimizer
    is given three things: the released gradients, the standard deviation of their noise, and the
    weights, which follow from earlier releases. The deviation is the noise multiplier times the
    sensitivity over the expected batch: the plan says the first, clipping the second (one that
    moves follows from releases), and how many examples a batch really has is not in it. Gradients
    of single examples are computed at weights that are public, wherever these are moved to, and
    are clipped there: the sensitivity stays the clipping norm.

    Attributes:
        needs_noise: whether it refuses noise that is correlated over steps: its variance is not
            what `expect_noise` says.
        moves: whether `before_gradients` moves the weights.
    """

    needs_noise: ClassVar[bool] = False
    moves: ClassVar[bool] = False

    @classmethod
    def usual_rate(cls, rate: float, deviation: float) -> float:
        """The learning rate by default.

        Args:
            rate: that of SGD, by the rule (docs/settings.md).
            deviation: of the noise in each number of a gradient, in the first epoch.
        """
        return rate

    def require_known_noise(self, plan: Any) -> None:
        """Refuse noise that is correlated over steps where its variance is needed.

        Raises:
            BadInput: the plan's noise is correlated.
        """
        if self.needs_noise and plan.correlation is not None:
            raise BadInput(
                f"{type(self).__name__} subtracts the variance of independent noise, and the plan "
                f"has {plan.correlation.kind} noise: expected mechanism='independent', or another "
                "optimizer, such as disk or Adam"
            )

    def before_gradients(self) -> None:
        """A step begins: move the weights to where gradients are to be computed."""

    def expect_noise(self, deviation: float) -> None:
        """The gradients of the next step have noise of this standard deviation in each number."""

    def after_gradients(self) -> None:
        """A step is over, or failed before `step` was called: the weights are those to publish."""


def kinds() -> dict[str, type[NoiseAware]]:
    """The classes by their names in lower case: those of this package, and subclasses elsewhere
    that were imported.
    """
    package = import_module(__name__.rpartition(".")[0])
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return {kind.__name__.lower(): kind for kind in NoiseAware.__subclasses__()}


def require_plain_optimizer(optimizer: torch.optim.Optimizer, where: str) -> None:
    """Refuse an optimizer that needs to be told what no one tells it there.

    Raises:
        BadInput: naming it.
    """
    if isinstance(optimizer, NoiseAware):
        raise BadInput(
            f"{type(optimizer).__name__} is for the steps of DP-SGD, whose noise it is told, and "
            f"{where} has others: expected an optimizer of torch.optim, such as Adam"
        )
