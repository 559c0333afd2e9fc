"""All that depends on a kind of device goes through this file: the processor, and accelerators by
PyTorch's names of them (cuda, mps, xpu, hpu, and others that are registered).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

#: Where small tensors of the engine lie, whatever `torch.set_default_device` says.
PROCESSOR = torch.device("cpu")
#: PyTorch's module that sets the precision of a kind's convolutions, beside the kind's own.
_LIBRARIES = {"cpu": "mkldnn", "cuda": "cudnn", "xpu": "mkldnn"}
#: Settings of precision that these modules have.
_SETTINGS = ("matmul", "conv", "rnn")

#: Attributes of tensors that say of which kind their device is.
KIND_FLAGS = tuple(
    f"is_{kind}"
    for kind in ("cpu", "cuda", "hpu", "ipu", "maia", "meta", "mps", "mtia", "xla", "xpu")
    if hasattr(Tensor, f"is_{kind}")
)


def on_processor(place: Tensor | torch.device) -> bool:
    """Whether a tensor, or a device, is of the processor."""
    return (place.device if isinstance(place, Tensor) else place).type == PROCESSOR.type


def place_of(module: nn.Module) -> torch.device:
    """Where a module is: its first parameter, or buffer; the processor if it has neither."""
    return next((t.device for t in (*module.parameters(), *module.buffers())), PROCESSOR)


def building() -> torch.device:
    """Where modules of the library are built: on the processor whatever the default device is, or
    on "meta" in a block in which they are to have no memory.
    """
    usual = torch.empty(0).device
    return usual if usual.type == "meta" else PROCESSOR


def accelerator() -> torch.device | None:
    """The accelerator of this machine that PyTorch uses; None if there is none."""
    module: Any = getattr(torch, "accelerator", None)
    if module is None:  # before PyTorch 2.6
        return torch.device("cuda") if torch.cuda.is_available() else None
    device: torch.device | None = module.current_accelerator() if module.is_available() else None
    return device


def usual_device() -> torch.device:
    """The first accelerator, or the processor if there is none."""
    present = accelerator()
    return PROCESSOR if present is None else torch.device(present.type, 0)


def expected_devices() -> str:
    """The devices that there are, for a message."""
    present = accelerator()
    return "cpu" if present is None else f"cpu or {present.type}"


def _module(device: torch.device) -> Any:
    """PyTorch's module of an accelerator; None for other devices."""
    return None if on_processor(device) else getattr(torch, device.type, None)


def generator_states(device: torch.device) -> list[Tensor]:
    """Where PyTorch's generator of an accelerator is; empty for other devices."""
    module = _module(device)
    return [module.get_rng_state(device)] if hasattr(module, "get_rng_state") else []


def set_generator(device: torch.device, state: Tensor) -> None:
    """Put PyTorch's generator of an accelerator where it was."""
    _module(device).set_rng_state(state, device)


def all_generator_states() -> list[Tensor]:
    """Where PyTorch's generators of all accelerators of this machine are."""
    module = _module(accelerator() or PROCESSOR)
    return list(module.get_rng_state_all()) if hasattr(module, "get_rng_state_all") else []


def set_all_generators(states: list[Tensor]) -> None:
    """Put PyTorch's generators of all accelerators of this machine where they were."""
    _module(accelerator() or PROCESSOR).set_rng_state_all(states)


def seed_accelerator(seed: int) -> None:
    """Put PyTorch's generators of all accelerators to `seed`."""
    module = _module(accelerator() or PROCESSOR)
    seeded = getattr(module, "manual_seed_all", None) or getattr(module, "manual_seed", None)
    if seeded is not None:
        seeded(seed)


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on an accelerator; None where that is not known."""
    module = _module(device)
    return int(module.mem_get_info(device)[0]) if hasattr(module, "mem_get_info") else None


def reads_pinned(device: torch.device) -> bool:
    """Whether a device reads pinned memory of the host by itself, while the host goes on: one of
    this machine that has streams.
    """
    present = accelerator()
    is_present = present is not None and present.type == device.type
    return is_present and hasattr(_module(device), "Stream")


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`; where that reads pinned memory, the host does not wait for the copy."""
    if not on_processor(tensor) or not reads_pinned(device):
        return tensor.to(device)
    try:
        pinned = tensor.pin_memory()
    except RuntimeError:  # a system may refuse it, and rows that fail would count as absent
        return tensor.to(device)
    return pinned.to(device, non_blocking=True)


def take_device(kind: torch.device, number: int) -> None:
    """Let this process use the accelerator of this number, of as many as there are."""
    module = _module(kind)
    module.set_device(number % module.device_count())


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """A block in which kernels begin on the device of a tensor, of several of a kind."""
    module = _module(tensor.device)
    return module.device_of(tensor) if hasattr(module, "device_of") else nullcontext()


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done all that it was asked for."""
    module = _module(device)
    if hasattr(module, "synchronize"):
        module.synchronize()


def precision_settings(kind: str) -> list[Any]:
    """What decides in how many digits products on a kind of device are computed; of versions of
    PyTorch before 2.9 nothing.
    """
    names = dict.fromkeys((kind, _LIBRARIES.get(kind, kind)))
    places = [getattr(torch.backends, name, None) for name in names]
    every = (getattr(place, setting, None) for place in places for setting in _SETTINGS)
    return [setting for setting in every if hasattr(setting, "fp32_precision")]


def add_rows(into: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Add each of `rows` to the row of `into` that `index` names, in place.

    On an accelerator `index_add_` adds in any order, so that sums of floats differ from call to
    call. There rows are sorted by their index first, which is what `index_put_` does.
    """
    if on_processor(into):
        return into.index_add_(0, index, rows)
    return into.index_put_((index,), rows, accumulate=True)
