"""Memory of the simulated device: that of the host, which only tensors of the device may use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: What tensors of the device call it.
NAME = "simulated"

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_SET = torch.ops.aten.set_.source_Storage_storage_offset
_EMPTY = torch.ops.aten.empty.memory_format
_EMPTY_STRIDED = torch.ops.aten.empty_strided.default


class Limits:
    """What the device says of its memory.

    Attributes:
        free: bytes that are free, as it says.
        total: bytes in all, as it says.
        largest: bytes that one tensor may take; a larger one is an out-of-memory error.
    """

    free = 8 << 30
    total = 16 << 30
    largest = 8 << 30


def device() -> torch.device:
    """The device, of which there is one."""
    return torch.device(NAME, 0)


def is_simulated(tensor: Tensor) -> bool:
    """Whether a tensor is on the device."""
    return tensor.device.type == NAME


def as_device_storage(raw: torch.UntypedStorage) -> torch.UntypedStorage:
    """A storage of the device over the memory of a storage of the host."""
    if raw.nbytes() > Limits.largest:
        raise torch.OutOfMemoryError(
            f"CUDA out of memory (simulated): tried to allocate {raw.nbytes()} bytes"
        )
    storage = torch._C._construct_storage_from_data_pointer(raw.data_ptr(), device(), raw.nbytes())
    # PyTorch keeps the Python object of a storage, with its attributes, as long as the storage.
    storage.raw = raw
    return storage


def as_device_tensor(storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    """A tensor of the device in `storage`, with the type, shape and strides of `like`."""
    empty = torch._C._acc.create_empty_tensor((0,), like.dtype)
    return place_in(empty, storage, like)


def place_in(tensor: Tensor, storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    """Let `tensor` lie in `storage`, with the shape and strides of `like`."""
    return _SET.redispatch(_CPU, tensor, storage, like.storage_offset(), like.shape, like.stride())


def mirror(tensor: Tensor) -> Tensor:
    """A tensor of the host in the memory of a tensor of the device."""
    raw = tensor.untyped_storage().raw
    empty = _EMPTY([0], dtype=tensor.dtype, device="cpu")
    return _SET(empty, raw, tensor.storage_offset(), tensor.shape, tensor.stride())


def poisoned(host: Tensor) -> Tensor:
    """The same tensor, full of NaN, -1, 255 or True: as memory that was used before may be."""
    if not host.numel():
        return host
    if host.dtype.is_floating_point or host.dtype.is_complex:
        return host.fill_(float("nan"))
    if host.dtype == torch.bool:
        return host.fill_(True)
    return host.fill_(-1 if host.dtype.is_signed else 255)


def allocate(
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    """`torch.empty` on the device."""
    host = poisoned(_EMPTY(size, dtype=dtype, device="cpu", memory_format=memory_format))
    return as_device_tensor(as_device_storage(host.untyped_storage()), host)


def allocate_strided(
    size: Any,
    stride: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    """`torch.empty_strided` on the device."""
    host = poisoned(_EMPTY_STRIDED(size, stride, dtype=dtype, device="cpu"))
    return as_device_tensor(as_device_storage(host.untyped_storage()), host)


def set_storage(tensor: Tensor, source: torch.UntypedStorage) -> Tensor:
    """`Tensor.set_` to a whole storage."""
    size = source.nbytes() // tensor.element_size()
    return _SET.redispatch(_CPU, tensor, source, 0, [size], [1])


def set_storage_at(tensor: Tensor, *arguments: Any) -> Tensor:
    """`Tensor.set_` to a part of a storage."""
    return _SET.redispatch(_CPU, tensor, *arguments)


def set_tensor(tensor: Tensor, source: Tensor) -> Tensor:
    """`Tensor.set_` to the memory of another tensor."""
    return place_in(tensor, source.untyped_storage(), source)


def set_empty(tensor: Tensor) -> Tensor:
    """`Tensor.set_` to no memory."""
    return set_tensor(tensor, allocate([0], dtype=tensor.dtype))


def is_pinned(tensor: Tensor) -> bool:
    """Whether a tensor of the host was pinned, as far as `pin` was asked for that."""
    return tensor.device.type == "cpu" and getattr(tensor.untyped_storage(), "pinned", False)


def pin(tensor: Tensor) -> Tensor:
    """`Tensor.pin_memory`: the tensor, or a copy, in memory that is marked."""
    if is_pinned(tensor):
        return tensor
    copy = tensor.clone()
    copy.untyped_storage().pinned = True
    return copy


def install_storages() -> None:
    """Let storages of the device be made as copy.deepcopy and torch.load make them.

    They would ask for an allocator that the device has not, and crash the process.
    """
    new = torch.UntypedStorage.__new__
    clone = torch.UntypedStorage.clone
    to = torch.UntypedStorage.to

    def make(cls: Any, *arguments: Any, device: Any = None, **options: Any) -> Any:
        if device is None:
            return new(cls, *arguments, **options)
        if torch.device(device).type != NAME:
            return new(cls, *arguments, device=device, **options)
        return as_device_storage(new(cls, *arguments))

    def copy(self: Any) -> Any:
        if self.device.type != NAME:
            return clone(self)
        return as_device_storage(clone(self.raw))

    def move(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        is_moved_here = torch.device(device).type == NAME and self.device.type != NAME
        if not is_moved_here:
            return to(self, device=device, non_blocking=non_blocking)
        return as_device_storage(clone(self))

    torch.UntypedStorage.__new__ = make
    torch.UntypedStorage.clone = copy
    torch.UntypedStorage.to = move
    torch.Tensor.pin_memory = lambda self, device=None: pin(self)
    torch.Tensor.is_pinned = lambda self, device=None: is_pinned(self)
