"""Blocks of ChaCha20 (`core.chacha`) by operations on whole numbers, on any device, with the bits
of OpenSSL; where Triton compiles it, by one kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from privlearn.core.chacha import WORDS, Range, by_openssl, to_signed
from privlearn.core.devices import on_processor

_CONSTANTS = struct.unpack("<4i", b"expand 32-byte k")
#: Blocks of one call, and calls in a process, from which on a kernel is compiled for a device.
_COMPILED_FROM, _COMPILED_AFTER = 1 << 17, 50
_asked: dict[torch.device, int] = {}


def by_operations(key: bytes, nonces: int | Tensor, counters: Tensor) -> Tensor:
    """Blocks by tensor operations, on the device of `counters`; int32, shape (16, blocks).

    Nothing is copied to the device: words of the key come with the calls.

    Args:
        key: 32 bytes.
        nonces: what they are for; or for each block, int64, shape (blocks,).
        counters: int64, shape (blocks,).
    """
    start = torch.empty(WORDS, len(counters), dtype=torch.int32, device=counters.device)
    for place, word in enumerate(_CONSTANTS):
        start[place].fill_(word)
    start[4:12].copy_(key_words(key, counters.device)[:, None])
    _halve(counters, start[12:14])
    if isinstance(nonces, int):
        for place, word in enumerate(struct.unpack("<2i", struct.pack("<Q", nonces))):
            start[14 + place].fill_(word)
    else:
        _halve(nonces, start[14:])
    a, b, c, d = (start[4 * row : 4 * row + 4].clone() for row in range(4))
    for _ in range(10):
        a, b, c, d = _quarter_round(a, b, c, d)
        a, b, c, d = _quarter_round(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([a, b, c, d]).add_(start)


def key_words(key: bytes, device: torch.device) -> Tensor:
    """The words of a key, int32, shape (8,), without a copy from the processor."""
    words = torch.empty(8, dtype=torch.int32, device=device)
    for place, word in enumerate(struct.unpack("<8i", key)):
        words[place].fill_(word)
    return words


def _quarter_round(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def _rotate(words: Tensor, by: int) -> Tensor:
    """To the left. The right shift of an int32 fills in its sign, which is masked; the left shift
    is a product, which is added at once.
    """
    return torch.add((words >> (32 - by)) & ((1 << by) - 1), words, alpha=1 << by)


def _halve(numbers: Tensor, out: Tensor) -> None:
    """The lower and the upper 32 bits of int64, as int32."""
    out[0].copy_((numbers << 32) >> 32)
    out[1].copy_(numbers >> 32)


@lru_cache
def _kernel(device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """What makes the blocks of `by_operations` by one call, if it can be compiled and does."""
    key, counters = bytes(range(32)), counters_of([(0, 300), (2**32 - 1, 2**32 + 300)], device)
    try:
        from privlearn.core.chacha_kernel import by_triton  # Triton is not everywhere

        words = key_words(key, device)
        for nonces in (counters[:1] + 2**40, counters * -(2**33)):
            blocks = by_triton(words, nonces, counters)
            if not torch.equal(blocks, by_operations(key, nonces.expand_as(counters), counters)):
                return None
    except Exception:  # whatever a compiler may raise: the operations are there
        return None
    return by_triton


def blocks_of(key: bytes, nonces: int | Tensor, counters: Tensor) -> Tensor:
    """The blocks of `by_operations`, on an accelerator by one kernel where that pays.

    The operations are some five hundred calls, whatever the number of blocks: 4.3 ms on an H200,
    where the kernel takes 0.1 ms, and 0.8 s to compile once. So it waits for many blocks, or for
    some calls. The blocks are the same, to the last bit.
    """
    device = counters.device
    if not on_processor(device):
        _asked[device] = _asked.get(device, 0) + 1
        pays = are_many([(0, len(counters))]) or _asked[device] > _COMPILED_AFTER
        if pays and (kernel := _kernel(device)) is not None:
            each = (
                torch.full((1,), to_signed(nonces), device=device)
                if isinstance(nonces, int)
                else nonces
            )
            return kernel(key_words(key, device), each, counters)
    return by_operations(key, nonces, counters)


def are_many(ranges: Sequence[Range]) -> bool:
    """Whether there are so many blocks that a kernel is worth its compilation at once."""
    return sum(last - first for first, last in ranges) >= _COMPILED_FROM


def counters_of(ranges: Sequence[Range], device: torch.device) -> Tensor:
    """The counters of blocks, int64."""
    parts = [torch.arange(first, last, device=device) for first, last in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def words_at(key: bytes, nonce: int, ranges: Sequence[Range], device: torch.device) -> Tensor:
    """The words of blocks, where they are made fastest: int32, shape (16, blocks), on `device`.

    Args:
        key: 32 bytes.
        nonce: what the blocks are for.
        ranges: their counters.
        device: where to; one where the cipher works (`works_on`), or the processor.
    """
    if not on_processor(device):
        return blocks_of(key, nonce, counters_of(ranges, device))
    blocks = [by_openssl(key, nonce, first, last - first) for first, last in ranges]
    return torch.from_numpy(
        blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    ).T.contiguous()


@lru_cache
def works_on(device: torch.device, *, in_double: bool = False) -> bool:
    """Whether a device makes the blocks of the known answers; with `in_double` it has double
    precision, too.

    Where it does not, words are made on the processor and copied: the same bits.
    """
    if on_processor(device):
        return True
    try:
        blocks = [
            by_operations(key, nonce, torch.tensor([counter], device=device)).cpu()
            for key, nonce, counter, _ in _KNOWN
        ]
        if in_double:
            torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):  # among them NotImplementedError
        return False
    return all(
        block.numpy().tobytes().startswith(known[3])
        for block, known in zip(blocks, _KNOWN, strict=True)
    )


#: Key, nonce, counter, and what the block begins with: RFC 8439, sections 2.3.2 and A.1 (vectors 1,
#: 2, 3 and 5). The first word of a nonce there is the upper half of the counter here.
_KNOWN: list[tuple[bytes, int, int, bytes]] = [
    (
        bytes(range(32)),
        0x4A000000,
        0x09000000_00000001,
        bytes.fromhex(
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
        ),
    ),
    (
        bytes(32),
        0,
        0,
        bytes.fromhex(
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        ),
    ),
    (
        bytes(32),
        0,
        1,
        bytes.fromhex("9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"),
    ),
    (
        bytes(31) + b"\1",
        0,
        1,
        bytes.fromhex("3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"),
    ),
    (
        bytes(32),
        2 << 56,
        0,
        bytes.fromhex("c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"),
    ),
]


def known_answer() -> tuple[bytes, bytes]:
    """Blocks of published keys and counters, made in both ways, and what they have to be."""
    computed, expected = b"", b""
    for key, nonce, counter, known in _KNOWN:
        at = torch.tensor([counter], device="cpu")
        for blocks in (by_openssl(key, nonce, counter, 1), by_operations(key, nonce, at).numpy()):
            computed, expected = computed + blocks.tobytes()[: len(known)], expected + known
    return computed, expected
