"""Frozen weights that a script changes between steps are named: the run would put them back."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from privlearn._checks import quoted
from privlearn.errors import BadInput

#: So many numbers of each weight are compared: an average of weights changes all of them.
_COMPARED = 64


@final
class FrozenWeights:
    """The first numbers of a module's frozen weights, as they are between a step and the next
    batch. What a step itself writes is undone by the run, and not looked at here.

    Args:
        module: whose weights they are.
    """

    def __init__(self, module: nn.Module) -> None:
        self._frozen = {
            name: weight
            for name, weight in module.named_parameters()
            if not weight.requires_grad and weight.numel()
        }
        self._before: Tensor | None = None

    def note(self) -> None:
        """A step was taken."""
        self._before = self._first_numbers()

    def require_same(self) -> None:
        """Refuse what changed since.

        Raises:
            BadInput: naming a weight, and what to do.
        """
        before, self._before = self._before, None
        if before is None or torch.equal(self._first_numbers(), before):
            return
        name, place = "", 0
        for name, part in zip(self._frozen, self._parts(), strict=True):  # noqa: B007
            if not torch.equal(part, before[place : place + len(part)]):
                break
            place += len(part)
        raise BadInput(
            f"the frozen weight {quoted(name)} was changed between two steps, and a private run "
            "puts frozen weights back. To publish mean weights give PrivateStrategy(average=0.5). "
            "An average of your own keep outside of the module, in a callback"
        )

    def _first_numbers(self) -> Tensor:
        parts = self._parts()
        return torch.cat(parts) if parts else torch.zeros(0, device="cpu")

    def _parts(self) -> list[Tensor]:
        return [_begin_of(weight.detach()) for weight in self._frozen.values()]


def _begin_of(weight: Tensor) -> Tensor:
    """The first numbers of a weight, as bytes."""
    while weight.dim() > 1:
        weight = weight[0]
    return weight.reshape(-1)[:_COMPARED].contiguous().clone().view(torch.uint8)
