"""What a batch holds in memory, and how much it may."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from privlearn.clipping.ways import Vmap, Way

#: Bytes that one physical batch may hold, unless its size is given; on a GPU, a share of what is free.
_WORKING_SET, _FREE_SHARE = 1 << 28, 0.5


def held_by(way: Way, rows: Tensor, targets: Tensor) -> int:
    """Bytes that `way` holds at the end of a batch's backward pass, about."""
    holding = _Held()
    with nullcontext() if isinstance(way, Vmap) else holding:  # torch.func allows no hooks
        found, _ = way(rows, targets)
    return holding.bytes + sum(gradients.nbytes for gradients in found.values())


class _Held(torch.autograd.graph.saved_tensors_hooks):
    """Adds up the bytes that autograd holds for the backward pass, each piece of memory once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        super().__init__(self._see, lambda tensor: tensor)

    def _see(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def bytes(self) -> int:
        """What is held."""
        return sum(self._sizes.values())


def room(device: torch.device) -> int:
    """Bytes that one physical batch may hold."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _FREE_SHARE)
    return _WORKING_SET
