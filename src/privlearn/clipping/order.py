"""Whether an operation changes which row of a batch belongs to whom.

Operations are told apart by examples through their place in the batch. A model that sorts, picks or drops rows breaks
that, and may do so only on data of a certain kind, which no made-up row has: so every such operation is looked at.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_GET = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
_NAMES = {
    "index_select", "index_add", "index_copy", "index_fill", "gather", "scatter", "scatter_add", "scatter_reduce",
    "take_along_dim", "flip", "roll", "sort", "topk", "cumsum", "cumprod", "repeat_interleave", "unique_consecutive",
}  # fmt: skip
_WHOLE = {"take", "masked_select", "masked_scatter", "index_put", "flipud", "put", "unique"}


def moves_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rows: int) -> bool:
    """Whether `func` on these arguments may move rows of a tensor whose first dimension is that of a batch of `rows`."""
    source = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("input")
    if not isinstance(source, Tensor) or source.dim() == 0 or len(source) % rows:
        return False
    if func in _GET:
        first = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        if not isinstance(first, list | Tensor) or (isinstance(first, Tensor) and first.dim() == 0):
            return False
        index = torch.as_tensor(first, device=source.device)
        own = torch.arange(len(source), device=index.device)
        return index.dtype == torch.bool or index.shape != own.shape or not torch.equal(index.long(), own)
    name = getattr(func, "__name__", "").rstrip("_")
    if name in _WHOLE:
        return True
    if name not in _NAMES:
        return False
    dims = kwargs.get("dim", kwargs.get("dims", args[-1] if name in ("roll",) else args[1] if len(args) > 1 else None))
    if isinstance(dims, int):
        dims = (dims,)
    if not isinstance(dims, tuple | list):
        return name not in ("sort", "topk")  # their default is the last dimension
    return any(int(dim) % source.dim() == 0 for dim in dims)
