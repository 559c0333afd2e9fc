"""Whether a loss runs the model in an autocast of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch.overrides import TorchFunctionMode

#: Why such a loss is slow, and what is faster.
SLOWNESS = (
    "the loss or the model enters torch.autocast, in whose few digits gradients can't be compared "
    "with those of single examples",
    "leave autocast out, and give precision='bf16'",
)


@final
class _AutocastLookout(TorchFunctionMode):
    """Looks at each function whether autocast is on, where it was off before."""

    def __init__(self) -> None:
        super().__init__()
        accelerator = torch.accelerator.current_accelerator()
        kinds = ["cpu", *([accelerator.type] if accelerator else [])]
        self._off = [kind for kind in kinds if not torch.is_autocast_enabled(kind)]
        self.seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run `func`."""
        self.seen = self.seen or any(map(torch.is_autocast_enabled, self._off))
        return func(*args, **(kwargs or {}))


def call_and_look(function: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
    """What a function returns, and whether it entered an autocast on its way."""
    with _AutocastLookout() as lookout:
        returned = function(*arguments)
    return returned, lookout.seen
