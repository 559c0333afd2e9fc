"""A simulated accelerator, by PyTorch's Python backend for `PrivateUse1`: device "simulated".

Its memory is the host's, and it computes what the processor computes, to the bit but for kernels
that the processor has not. But it refuses and costs what a GPU refuses and costs:

- Tensors of the device can't be mixed with those of the processor.
- Launches, waits of the host and copied bytes are counted by line of the source (`counts`).
- An index out of range kills the device; the host hears of it when it next waits.
- Empty memory is full of NaN, -1 or True.
- A tensor of more than `memory.Limits.largest` bytes is an out-of-memory error.
- Only a copy from pinned memory with `non_blocking` lets the host go on at once.

Tensors are plain `torch.Tensor`s, with autograd, views and functorch as PyTorch has them: each
operation that the processor has a kernel for is registered for the device, too, and others are
composed of these.

What `install` does to a process can't be undone: PyTorch has one backend of this kind, whose name
is set once, and asks it where it asks for any accelerator. So it is called in processes of its own
(`plugin`), never in one that runs other tests.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.support.simulated import operations
from tests.support.simulated.memory import NAME, Limits, device, install_storages

_PINS = Path(__file__).parents[3] / "constraints.txt"


def reason_to_skip() -> str:
    """Why the device can't be simulated here; "" if it can."""
    pins = _PINS.read_text(encoding="utf-8").splitlines()
    pinned = next(line.partition("==")[2] for line in pins if line.startswith("torch=="))
    here = torch.__version__.partition("+")[0]
    if here == pinned:
        return ""
    return f"the simulated device is made for torch {pinned}, and this is torch {here}"


class _AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    """Calls each of PyTorch's generators an instance."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_AnyGenerator):
    """`torch.Generator`, also of the device: then the processor's, which says it is the
    device's.
    """

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != NAME:
            return torch._C.Generator(device)
        new = super().__new__(cls)
        operations.generators.add(new._cdata)
        return new

    def __del__(self) -> None:
        operations.generators.discard(self._cdata)

    @property
    def device(self) -> torch.device:
        """The device."""
        return device()


class _Block:
    """`torch.simulated.device`: a block that computes on the device."""

    def __init__(self, device: Any) -> None:
        self.idx = 0

    def __enter__(self) -> _Block:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class _Module(ModuleType):
    """`torch.simulated`."""

    device = _Block
    #: A device that has streams reads pinned memory by itself.
    Stream = _Block

    def is_available(self) -> bool:
        """It is."""
        return True

    is_initialized = is_available

    def device_count(self) -> int:
        """There is one."""
        return 1

    def current_device(self) -> int:
        """The first."""
        return 0

    def set_device(self, device: Any) -> None:
        """There is one only."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def init(self) -> None:
        """It is ready."""

    _lazy_init = init
    empty_cache = init

    def synchronize(self, device: Any = None) -> None:
        """Wait for it."""
        operations.wait("synchronize")

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """What autocast may compute in."""
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Where its generator is."""
        return operations.generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Put its generator there."""
        operations.generator.set_state(state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Where the generators of all devices are."""
        return [self.get_rng_state()]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        """Put the generators of all devices there."""
        self.set_rng_state(states[0])

    def manual_seed(self, seed: int) -> None:
        """Seed its generator."""
        operations.generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Bytes that are free, and bytes in all."""
        return Limits.free, Limits.total

    def memory_allocated(self, device: Any = None) -> int:
        """None, as far as it knows."""
        return 0

    max_memory_allocated = memory_allocated


_libraries: list[torch.library.Library] = []


def is_installed() -> bool:
    """Whether this process has the device."""
    return bool(_libraries)


def install() -> None:
    """Let this process have the device, for as long as it lives."""
    if _libraries:
        return
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    module = _Module(f"torch.{NAME}")
    _setup_privateuseone_for_python_backend(NAME, backend_module=module)
    every = torch.library.Library("_", "IMPL")
    every.fallback(operations.run_function, "PrivateUse1")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    operations.register(aten)
    operations.register_autocast(aten)
    _libraries.extend([every, aten])
    torch.Generator = Generator
    torch.accelerator.synchronize = module.synchronize
    install_storages()


def reset() -> None:
    """Let a device that an index has killed work again, as in a new process."""
    operations.Health.reset()
