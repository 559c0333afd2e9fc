"""`Scratch`: memory that is used again once nobody holds it.

The system clears every page that it hands out, which can take as long as the product that fills it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast, final

import torch
from torch import Tensor

#: Bytes from which memory is kept; smaller blocks stay with the allocator anyway.
_LEAST = 1 << 18
#: Steps after which memory that was not used is let go, and bytes taken over those that are needed.
_KEPT, _SLACK = 4, 1.25

#: How many tensors hold a storage; PyTorch has no public name for it, and where there is none nothing is used again.
_holders: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


@final
class Scratch:
    """Uninitialised tensors for one engine's steps. On a GPU, PyTorch's own allocator does this."""

    def __init__(self) -> None:
        self._step = 0
        #: Storages, their bytes, and the step that they were last used in.
        self._held: list[list[Any]] = []

    def next_step(self) -> None:
        """Let go of what the last steps did not use."""
        self._step += 1
        self._held = [entry for entry in self._held if entry[2] > self._step - _KEPT]

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A contiguous tensor of this shape, of the type and on the device of `like`; its numbers are anything."""
        nbytes = math.prod(shape) * like.itemsize
        if _holders is None or like.device.type != "cpu" or nbytes < _LEAST:
            return like.new_empty(shape)
        free = [e for e in self._held if nbytes <= e[1] <= _SLACK * nbytes and _holders(e[0]._cdata) == 1]
        if not free:
            granule = 1 << (nbytes.bit_length() - 4)  # batches of about the same size find each other's memory
            size = -(-nbytes // granule) * granule
            self._held.append([torch.empty(size, dtype=torch.uint8).untyped_storage(), size, self._step])
            free = self._held[-1:]
        entry = min(free, key=lambda e: int(e[1]))
        entry[2] = self._step
        # Not a view: the model may change it in place.
        return cast(Tensor, like.new_empty(0).set_(entry[0], 0, tuple(shape)))  # type: ignore[call-overload]
