"""Noise on a tensor: privlearn's generators beside torch's, which is not secure, and others.

`python bench/noise.py [--quick] [--json] [--threads N]`. Each way adds normal noise to every number
of a tensor, as a release does; the baseline is torch's own generator.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import common
import numpy as np
import torch
from common import Case, Variant
from randomgen import AESCounter
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from privlearn.core import chacha_blocks
from privlearn.core.mechanisms import noise as noise_of_releases
from privlearn.core.mechanisms.noise import add_gaussian, add_on_grid
from privlearn.core.streams import Streams

#: Adds standard normal noise to a tensor, in place.
Noise = Callable[[Tensor], object]
Ranges = Sequence[tuple[int, int]]


def by_torch() -> Noise:
    """torch's generator (Mersenne twister)."""
    return lambda value: value.add_(torch.empty_like(value).normal_())


def by_privlearn() -> Noise:
    """AES-128 in counter mode; by the compiled kernel where it was built."""
    stream = Streams.new().noise
    return lambda value: add_gaussian([value], 1.0, stream)


def by_operations() -> Noise:
    """The same draws by PyTorch's operations."""
    add = by_privlearn()

    def run(value: Tensor) -> None:
        with patch.object(noise_of_releases, "kernel", lambda: None):
            add(value)

    return run


def by_privlearn_on_a_grid() -> Noise:
    """The same, rounded to a grid in exact arithmetic."""
    stream = Streams.new(discrete=True).noise
    return lambda value: add_on_grid([value], 1.0, 1.0, stream)


def by_chacha() -> Noise:
    """ChaCha20 by OpenSSL on the processor, as a run on an accelerator is replayed there."""
    stream = Streams.new(cipher="chacha20").noise
    return lambda value: add_gaussian([value], 1.0, stream)


def by_chacha_operations() -> Noise:
    """The same draws with words by PyTorch's operations, as on an accelerator without a kernel."""
    add = by_chacha()

    def words_at(key: bytes, nonce: int, ranges: Ranges, device: torch.device) -> Tensor:
        return chacha_blocks.by_operations(key, nonce, chacha_blocks.counters_of(ranges, device))

    def run(value: Tensor) -> None:
        with patch.object(chacha_blocks, "words_at", words_at):
            add(value)

    return run


def by_chacha_on_a_grid() -> Noise:
    """ChaCha20, rounded to a grid in exact arithmetic."""
    stream = Streams.new(discrete=True, cipher="chacha20").noise
    return lambda value: add_on_grid([value], 1.0, 1.0, stream)


def cost_on_a_device() -> str:
    """What noise asks of an accelerator, whose operations are counted on the processor."""
    calls = [0]

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            aliases = [value.alias_info for value in func._schema.returns]
            calls[0] += not any(alias and not alias.is_write for alias in aliases)  # no views
            return func(*args, **(kwargs or {}))

    draws = 1 << 12
    with Counted():
        words = chacha_blocks.by_operations(bytes(32), 0, torch.arange(draws // 8))
        noise_of_releases.normals_of(words, torch.float32)
    return (
        "Bytes that are copied to an accelerator for a number in single precision: 4 with AES, 0 "
        f"with ChaCha20. Kernels that it launches for up to 2^22 numbers: 1 with AES, {calls[0]} "
        "with ChaCha20 by operations."
    )


def by_numpy() -> Noise:
    """numpy's normal draws over an AES stream."""
    stream = np.random.Generator(AESCounter())
    kind = {torch.float32: np.float32, torch.float64: np.float64}
    return lambda value: value.add_(
        torch.from_numpy(stream.standard_normal(tuple(value.shape), dtype=kind[value.dtype]))
    )


def by_system(value: Tensor) -> Tensor:
    """The operating system's random bits, by Box and Muller's transform; an even number of
    draws.
    """
    words = torch.frombuffer(bytearray(os.urandom(4 * value.numel())), dtype=torch.int32)
    # never 0
    uniform, turn = ((words & 0x7FFFFFFF).double() + 0.5).mul_(2.0**-31).to(value.dtype).view(2, -1)
    radius, angle = uniform.log_().mul_(-2.0).sqrt_(), turn * (2 * math.pi)
    return value.add_(torch.cat([radius * angle.cos(), radius * angle.sin()]))


WAYS: dict[str, Callable[[], Noise]] = {
    "torch normal_, not secure": by_torch,
    "privlearn": by_privlearn,
    "privlearn, without the kernel": by_operations,
    "privlearn, on a grid": by_privlearn_on_a_grid,
    "privlearn, ChaCha20": by_chacha,
    "privlearn, ChaCha20 by operations": by_chacha_operations,
    "privlearn, ChaCha20 on a grid": by_chacha_on_a_grid,
    "numpy over AES": by_numpy,
    "os.urandom and Box-Muller": lambda: by_system,
}


def noise(draws: int, dtype: torch.dtype, rounds: int) -> Case:
    """Noise on a tensor of `draws` numbers."""

    def of(name: str, way: Callable[[], Noise]) -> Variant:
        def prepared() -> common.Run:
            add, value = way(), torch.empty(draws, dtype=dtype)

            def run() -> Callable[[], float]:
                add(value.zero_())
                return lambda: float(value.std())

            return run

        return Variant(name, prepared, within=0.02, prepared=True)

    title = f"noise on {draws:,} numbers of {str(dtype).removeprefix('torch.')}"
    return Case(title, "deviation", tuple(of(name, way) for name, way in WAYS.items()), rounds)


def cases(draws: int, rounds: int) -> list[Case]:
    """Both types that noise is added to."""
    return [noise(draws, dtype, rounds) for dtype in (torch.float32, torch.float64)]


if __name__ == "__main__":
    parser = common.parser(__file__, "Noise on a tensor: time and memory.")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(cost_on_a_device(), file=sys.stderr)  # a process that measures memory prints a number
    common.main(__file__, options, cases(1_000_000, 11 if options.quick else 51))
