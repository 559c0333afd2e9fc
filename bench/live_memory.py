"""Which tensors a step holds when its memory peaks: plain, and clipped by privlearn.

`python bench/live_memory.py NETWORK` (one of `networks.FULL`: cnn, transformer, ...). Counted are
the bytes of all tensors that operations made during a step and that are still held; memory that the
allocator keeps, and what a kernel needs inside, are not. A tensor that is never written takes no
memory, and is counted nevertheless.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[1]))

import networks
import steps

MIB = 1 << 20


class Held(NamedTuple):
    """A piece of memory.

    Attributes:
        size: in bytes.
        source: the operation, and the shape of its result.
    """

    size: int
    source: str


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows which results of operations are alive.

    Attributes:
        peak: the largest number of bytes that were alive at once.
        at_peak: what was alive then.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak, self.at_peak = 0, list[Held]()
        self._alive: dict[int, Held] = {}
        self._references: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, list | tuple) else [out]:
            if isinstance(value, Tensor) and value.layout is torch.strided:
                self._follow(value, str(func))
        return out

    def _follow(self, tensor: Tensor, name: str) -> None:
        self._let_go()
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or not storage.nbytes():
            return
        self._alive[key] = Held(storage.nbytes(), f"{name} {tuple(tensor.shape)}")
        self._references[key] = storage._weak_ref()
        total = sum(held.size for held in self._alive.values())
        if total > self.peak:
            self.peak, self.at_peak = total, list(self._alive.values())

    def _let_go(self) -> None:
        """Forget memory that nothing holds any more."""
        for key, reference in list(self._references.items()):
            if torch.UntypedStorage._expired(reference):
                torch.UntypedStorage._free_weak_ref(reference)
                del self._references[key], self._alive[key]


def measure(network: networks.Network, make: steps.Maker) -> LiveMemory:
    """What a step holds, after two others that load and allocate what stays."""
    step = make(network, "cpu")
    x, y = network.rows("cpu")
    for _ in range(2):
        step.take(x, y)
    live = LiveMemory()
    with live:
        step.take(x, y)
    return live


def main() -> None:
    """Print the largest pieces by the operations that they come from."""
    by_name = {network.name: network for network in networks.FULL}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=by_name)
    network = by_name[parser.parse_args().network]
    torch.set_num_threads(1)
    ways = {"plain": steps.plain, "privlearn": steps.by_privlearn("none", fast_kernels=None)}
    for name, make in ways.items():
        live = measure(network, make)
        print(f"{name}: {live.peak / MIB:.1f} MiB")
        sizes = Counter[str]()
        for held in live.at_peak:
            sizes[held.source] += held.size
        for source, size in sizes.most_common(8):
            print(f"  {size / MIB:7.2f}  {source}")


if __name__ == "__main__":
    main()
