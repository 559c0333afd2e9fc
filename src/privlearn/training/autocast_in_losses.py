"""Whether a loss runs the model in an autocast of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

#: Why such a loss is slow, and what is faster.
SLOWNESS = (
    "the loss or the model enters torch.autocast, in whose few digits gradients can't be compared "
    "with those of single examples",
    "leave autocast out, and give precision='bf16'",
)


def call_and_look(function: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
    """What a function returns, and whether it entered an autocast on its way."""
    entered = False
    enter: Callable[[Any], Any] = torch.autocast.__enter__

    def note(context: Any) -> Any:
        nonlocal entered
        entered = entered or bool(context._enabled)
        return enter(context)

    with mock.patch.object(torch.autocast, "__enter__", note):
        returned = function(*arguments)
    return returned, entered
