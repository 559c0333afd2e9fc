"""Blocks of ChaCha20 by one kernel of an accelerator, compiled by Triton: those of
`chacha_blocks.by_operations`, which it is compared with before its first use.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from privlearn.core.devices import on_device_of

_TOGETHER = 256  # blocks that one program makes


@triton.jit
def _rotate(words, by: tl.constexpr):  # type: ignore[no-untyped-def]
    return (words << by) | (words >> (32 - by))


@triton.jit
def _quarter_round(a, b, c, d):  # type: ignore[no-untyped-def]
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def make_block(key, nonce, counter):  # type: ignore[no-untyped-def]
    """The 16 words of each block, uint32; of a key's words, and nonces and counters in int64."""
    zero = (counter * 0).to(tl.uint32)
    # "expand 32-byte k"
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    s4, s5 = zero + tl.load(key).to(tl.uint32), zero + tl.load(key + 1).to(tl.uint32)
    s6, s7 = zero + tl.load(key + 2).to(tl.uint32), zero + tl.load(key + 3).to(tl.uint32)
    s8, s9 = zero + tl.load(key + 4).to(tl.uint32), zero + tl.load(key + 5).to(tl.uint32)
    s10, s11 = zero + tl.load(key + 6).to(tl.uint32), zero + tl.load(key + 7).to(tl.uint32)
    s12, s13 = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    s14, s15 = nonce.to(tl.uint32), (nonce >> 32).to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, s14, s15
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    first = x0 + s0, x1 + s1, x2 + s2, x3 + s3, x4 + s4, x5 + s5, x6 + s6, x7 + s7
    second = x8 + s8, x9 + s9, x10 + s10, x11 + s11, x12 + s12, x13 + s13, x14 + s14, x15 + s15
    return first, second


@triton.jit
def _make(words, key, nonces, counters, blocks, MANY: tl.constexpr, TOGETHER: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * TOGETHER + tl.arange(0, TOGETHER)
    inside = at < blocks
    counter = tl.load(counters + at, mask=inside, other=0)
    nonce = tl.load(nonces + (at if MANY else at * 0), mask=inside, other=0)
    first, second = make_block(key, nonce, counter)
    for place in tl.static_range(8):
        tl.store(words + place * blocks + at, first[place].to(tl.int32), mask=inside)
        tl.store(words + (8 + place) * blocks + at, second[place].to(tl.int32), mask=inside)


def by_triton(key: Tensor, nonces: Tensor, counters: Tensor) -> Tensor:
    """As `chacha_blocks.by_operations`: of a key's words, and of one nonce or one a block."""
    blocks = len(counters)
    words = torch.empty(16, blocks, dtype=torch.int32, device=counters.device)
    if blocks:
        with on_device_of(counters):
            _make[(-(-blocks // _TOGETHER),)](
                words, key, nonces, counters, blocks, MANY=len(nonces) > 1, TOGETHER=_TOGETHER
            )
    return words
