"""Whether an operation changes which row of a batch belongs to whom.

Operations are told apart by examples through their place in the batch. A model that sorts, picks or drops rows breaks
that, and may do so only on data of a certain kind, which no made-up row has: so every such operation is looked at. Which
dimensions of its tensor are the batch's is known from made-up batches of two sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_GET = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
#: Operations that move entries along one dimension: its place among their arguments, and what it is by default.
_ALONG: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(["index_select", "index_add", "index_copy", "index_fill", "gather", "scatter"], (1, None)),
    **dict.fromkeys(["scatter_add", "scatter_reduce", "index_reduce", "flip", "narrow", "select"], (1, None)),
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"], (1, None)),
    **dict.fromkeys(["roll", "repeat_interleave", "take_along_dim"], (2, None)),
    **dict.fromkeys(["split", "split_with_sizes", "chunk", "tensor_split"], (2, 0)),
    **{"sort": (1, -1), "msort": (9, 0), "topk": (2, -1), "unbind": (1, 0)},
}
_ANYWHERE = {
    "take", "put", "masked_select", "masked_scatter", "index_put", "flipud", "unique", "_return_output", "_return_inverse",
    "_return_counts", "unique_consecutive", "_unique_impl", "_unique2",
}  # fmt: skip
_LOOK_UP = {"embedding", "embedding_bag"}


def looked_at(func: Any) -> bool:
    """Whether `func` is an operation that may move entries of a tensor."""
    name = _name(func)
    return func in _GET or name in _ALONG or name in _ANYWHERE or name in _LOOK_UP


def source(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor whose entries `func` may move."""
    place, keyword = (1, "weight") if _name(func) in _LOOK_UP else (0, "input")
    found = args[place] if len(args) > place else kwargs.get(keyword)
    return found if isinstance(found, Tensor) else None


def moved(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> set[int]:
    """The dimensions of `source` along which `func` may move entries on these arguments."""
    tensor = source(func, args, kwargs)
    if tensor is None or tensor.dim() == 0:
        return set()
    if func in _GET:
        return set(_indexed(tensor, args[1]))
    name, everything = _name(func), set(range(tensor.dim()))
    if name in _LOOK_UP:
        return {0}
    if name in _ANYWHERE:
        return everything
    if name == "repeat_interleave" and isinstance(args[1] if len(args) > 1 else kwargs.get("repeats"), int):
        return set()  # copies stay with their row
    place, usual = _ALONG[name]
    dims = kwargs.get("dim", kwargs.get("dims", kwargs.get("axis", args[place] if len(args) > place else usual)))
    if name == "flip" and len(args) > 2:
        dims = args[1:]
    if isinstance(dims, bool) or not isinstance(dims, int | tuple | list):
        return {tensor.dim() - 1} if name == "sort" else everything
    return {int(dim) % tensor.dim() for dim in (dims if isinstance(dims, tuple | list) else [dims])}


def batch_dimensions(one: Sequence[int], other: Sequence[int]) -> set[int]:
    """The dimensions that tell apart the shapes of one tensor at two batch sizes."""
    return {dim for dim, (a, b) in enumerate(zip(one, other, strict=True)) if a != b}


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", "")).rstrip("_")


def _indexed(tensor: Tensor, index: Any) -> Iterator[int]:
    """The dimensions along which tensor[index] has other entries than the tensor, or has them elsewhere."""
    items = [_item(item) for item in (index if isinstance(index, tuple) else (index,))]
    taken = sum(_taken(item) for item in items)
    dim = 0
    for item in items:
        size = tensor.shape[dim] if dim < tensor.dim() else 0
        if item is Ellipsis:
            dim += tensor.dim() - taken
        elif isinstance(item, slice):
            if item.indices(size) != (0, size, 1):
                yield dim
        elif isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8):
            yield from range(dim, dim + item.dim())
        elif isinstance(item, Tensor):
            kept = item.dim() > 0 and item.numel() == len(item) == size
            if not kept or not torch.equal(item.flatten().long(), torch.arange(size, device=item.device)):
                yield dim
        dim += _taken(item)


def _item(item: Any) -> Any:
    return item if item is None or item is Ellipsis or isinstance(item, slice | Tensor) else torch.as_tensor(item)


def _taken(item: Any) -> int:
    """How many dimensions this part of an index is for."""
    if item is None or item is Ellipsis:
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1
