"""Normal draws in single precision by one kernel of an accelerator, compiled by Triton: those of
`noise.normals_of`, but for rounding, with which it is compared before its first use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from privlearn.core import chacha
from privlearn.core.chacha_blocks import by_operations, counters_of, key_words
from privlearn.core.chacha_kernel import make_block
from privlearn.core.devices import on_device_of
from privlearn.core.mechanisms.noise import normals_of

_TOGETHER = 128  # blocks that one program makes
_PI = tl.constexpr(math.pi)
_ROUNDINGS = 2.0**-18  # by which draws in single precision differ from device to device


@triton.jit  # type: ignore[untyped-decorator]
def _draw(draws, key, start, nonce, blocks, TOGETHER: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * TOGETHER + tl.arange(0, TOGETHER)
    inside = at < blocks
    first, second = make_block(key, at * 0 + nonce, at + start)
    for place in tl.static_range(4):
        upper, lower = first[place].to(tl.int64), first[4 + place].to(tl.int64)
        uniform = ((upper << 32) | lower).to(tl.float64) * 2.0**-64
        uniform = tl.where(uniform < 0, uniform + 1, uniform) + 2.0**-65
        radius = tl.sqrt_rn((tl.log(uniform) * -2.0).to(tl.float32))
        angle = second[place].to(tl.int32).to(tl.float32) * (2.0**-31 * _PI)
        tl.store(draws + at * 8 + place, radius * tl.cos(angle), mask=inside)
        tl.store(draws + at * 8 + 4 + place, radius * tl.sin(angle), mask=inside)


def draw_normals(
    key: bytes, nonce: int, ranges: Sequence[chacha.Range], device: torch.device
) -> Tensor:
    """Independent N(0, 1) draws, float32, eight for each block of the cipher."""
    draws = torch.empty(8 * sum(last - first for first, last in ranges), device=device)
    words, done = key_words(key, device), 0
    for first, last in ranges:
        blocks = last - first
        here = draws[8 * done :]
        with on_device_of(draws):
            _draw[(-(-blocks // _TOGETHER),)](
                here, words, first, chacha.to_signed(nonce), blocks, TOGETHER=_TOGETHER
            )
        done += blocks
    return draws


def works_on(device: torch.device) -> bool:
    """Whether the kernel makes the draws of the operations there, but for rounding, at any
    place.
    """
    key, blocks = bytes(range(32)), [(0, 4000), (2**32 - 1, 2**32 + 300)]
    words = by_operations(key, chacha.REFINEMENT, counters_of(blocks, device))
    expected = normals_of(words, torch.float32)
    drawn = draw_normals(key, chacha.REFINEMENT, blocks, device)
    alike = (drawn - expected).abs() <= _ROUNDINGS * (1 + expected.abs())
    return bool(alike.all())
