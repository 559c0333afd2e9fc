"""Noise on a tensor: privlearn's generators beside torch's, which is not secure, and others.

`python bench/noise.py [--quick] [--json] [--threads N]`. Each way adds normal noise to every number
of a tensor, as a release does; the baseline is torch's own generator.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from unittest.mock import patch

import common
import numpy as np
import torch
from common import Case, Variant
from randomgen import AESCounter
from torch import Tensor

from privlearn.core.mechanisms import noise as noise_of_releases
from privlearn.core.mechanisms.noise import add_gaussian, add_on_grid
from privlearn.core.streams import Streams

#: Adds standard normal noise to a tensor, in place.
Noise = Callable[[Tensor], object]


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
    options = common.parser(__file__, "Noise on a tensor: time and memory.")
    options.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    common.main(__file__, given, cases(1_000_000, 11 if given.quick else 51))
