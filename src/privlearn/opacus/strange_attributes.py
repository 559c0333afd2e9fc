"""What a private model, optimizer or loader says of attributes that Opacus's objects have, and it
has not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn.errors import BadInput

#: The objects that a script has to use, in messages.
RETURNED = "model, optimizer, loader = engine.make_private(...)"
#: Of a step of the optimizer that `make_private` was given.
NO_PRIVATE_STEP = (
    "step() was called of the optimizer that make_private was given, and is no private step. Call "
    "step() of the returned optimizer, after backward() of a loss of the returned model on a batch "
    f"of the returned loader: {RETURNED}"
)


@final
class NoSuchAttribute(BadInput, AttributeError):
    """An attribute of Opacus's objects, or of any other, that a private object doesn't have."""


def refuse_reading(what: str, name: str) -> Exception:
    """The error for an attribute that is read: most often by code of Opacus's."""
    if name.startswith("_"):
        return AttributeError(f"the private {what} has no attribute {name!r}")
    return NoSuchAttribute(
        f"the private {what} has no {name!r}. If code of Opacus's asked for it: its schedulers, "
        "memory managers, accountants and optimizers don't fit privlearn's objects. Import "
        "BatchMemoryManager, StepNoise, StepGradClip and the like from privlearn.opacus",
        name=name,
    )


@final
class GradientToCome(Tensor):
    """What stands in a parameter's `grad` between `backward` and the step, in which gradients are
    computed: code that reads it is told so.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Raise `BadInput`."""
        raise BadInput(
            "a gradient was read between backward() and optimizer.step(), in which it is computed, "
            "clipped to max_grad_norm and noised: leave out clip_grad_norm_, GradScaler and the "
            "like. For its norm read p.grad after step(), before zero_grad()"
        )

    @staticmethod
    def put_in(parameters: Iterable[nn.Parameter]) -> None:
        """Let it stand in all that have no gradient."""
        for each in parameters:
            if each.grad is None:
                zeros = torch.zeros((), dtype=each.dtype, device=each.device).expand(each.shape)
                each.grad = Tensor._make_subclass(GradientToCome, zeros)

    @staticmethod
    def remove_from(parameters: Iterable[nn.Parameter]) -> None:
        """Let none stand there."""
        for each in parameters:
            if isinstance(each.grad, GradientToCome):
                each.grad = None


def refuse_writing(what: str, name: str, value: Any) -> BadInput:
    """The error for an attribute that is written: nothing would follow from it."""
    return NoSuchAttribute(
        f"{name} was set to {str(value)[:40]}, and the private {what} has no such setting: nothing "
        "would follow from it. What may be set are noise_multiplier and max_grad_norm, before the "
        "first batch; all else is given to make_private",
        name=name,
    )
