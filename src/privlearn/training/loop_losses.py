"""A loop's losses are functions of (model, batch), whatever their parameters are called, or modules
of (outputs, targets).
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, final

from torch import Tensor, nn

from privlearn.core.clipping.losses import Loss, takes_model
from privlearn.errors import BadInput


class WrappedLoss:
    """A loss with a `made_up` of its own, which may be another than the function's."""

    def __init__(self, function: Callable[..., Tensor], made_up: Any = None) -> None:
        self.function = function
        #: The module that it is, or is a method of: its state is put back after each batch, as the
        #: model's is.
        self.func = getattr(function, "__self__", function)
        self.made_up = getattr(function, "made_up", None) if made_up is None else made_up
        #: Why it is slow, if it says so, and what is faster.
        self.slowness: tuple[str, str] | None = getattr(function, "slowness", None)
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)
        self._called = False

    def call(self, *arguments: Any) -> Tensor:
        """What the function gives. Its first call, on made-up rows, tells whether it enters an
        autocast.
        """
        if self._called:
            return self.function(*arguments)
        from privlearn.training.autocast_in_losses import SLOWNESS, call_and_look

        values, cast = call_and_look(self.function, *arguments)
        self._called = True
        self.slowness = self.slowness or (SLOWNESS if cast else None)
        return values  # type: ignore[no-any-return]


@final
class ModelLoss(WrappedLoss):
    """A function of (model, batch) as a loss, whatever its parameters are called."""

    def __call__(self, model: Any, batch: Any) -> Tensor:
        """One value for each example."""
        return self.call(model, batch)


@final
class OutputsLoss(WrappedLoss):
    """A loss of (outputs, targets) that is tried on rows as its `made_up` makes them."""

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """One value for each example."""
        return self.call(outputs, targets)


def with_made_up(loss: Loss, made_up: Callable[[Any], Any]) -> Loss:
    """The same loss, which is tried on rows as `made_up` makes them."""
    return (ModelLoss if takes_model(loss) else OutputsLoss)(unwrapped(loss), made_up)


def unwrapped(loss: Loss) -> Loss:
    """The loss that was given."""
    return loss.function if isinstance(loss, WrappedLoss) else loss


def of_model(loss: Any, made_up: Callable[[Any], Any] | None = None) -> Loss:
    """A loss for a loop whose functions are losses of (model, batch); modules, as those of torch,
    are of (outputs, targets).

    Args:
        loss: the loss.
        made_up: in place of the loss's own.

    Raises:
        BadInput: it is no function.
    """
    if not callable(loss):
        raise BadInput(
            f"loss is {repr(loss)[:60]}: expected a function of (model, batch) to one value for "
            "each example, not its value. It is called by step, on parts of the batch"
        )
    loss = loss if isinstance(loss, nn.Module | WrappedLoss) else ModelLoss(loss)
    return loss if made_up is None else with_made_up(loss, made_up)


def same_loss(one: Loss | None, other: Loss | None) -> bool:
    """Whether two losses are one: also a function that is made anew each time, of the same code and
    values.
    """
    one, other = (None if loss is None else unwrapped(loss) for loss in (one, other))
    if not isinstance(one, FunctionType) or not isinstance(other, FunctionType):
        return one == other
    return one.__code__ is other.__code__ and all(
        value is other_value
        or (
            type(value) is type(other_value)
            and isinstance(value, bool | int | float | str)
            and value == other_value
        )
        for value, other_value in zip(_values_in(one), _values_in(other), strict=True)
    )


def _values_in(function: FunctionType) -> list[Any]:
    """What a function holds beside its code."""
    named = function.__kwdefaults__ or {}
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*cells, *(function.__defaults__ or ()), *named.values()]
