"""The cipher ChaCha20 makes random words: here by OpenSSL on the processor, and with the same bits
on any device (`core.chacha_blocks`).

A block is 16 words of 32 bits. It follows from a key of 256 bits, a number of 64 bits that says
what the block is for, and a counter of 64 bits, which is the block's place. So any block can be
made anywhere, in any order. These are the counter and the nonce of the original cipher (Bernstein
2008): no counter wraps before 2^64 blocks. RFC 8439 gives half of the counter to the nonce, and has
the same blocks below 2^32.

What is derived (`derive_key`) and what blocks are for (`NOISE`, `REFINEMENT`) keeps uses apart: no
two of them share a block.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from numpy.typing import NDArray

#: Words of 32 bits in a block, and its bytes.
WORDS, BLOCK = 16, 64
#: What blocks of a noise stream are for: words in the order of the stream, and further bits of
#: numbers that the first ones do not decide. The upper half says which further bits.
NOISE, REFINEMENT = 0, 1
#: Blocks first to last, without the last.
Range = tuple[int, int]


def derive_key(secret: bytes, use: bytes, *, of: bytes = b"") -> bytes:
    """A key of the cipher, 32 bytes, from a shorter secret: for one use, and one value `of` it.

    It is as hard to guess as the secret, whose 16 bytes are 128 bits.
    """
    return hashlib.blake2b(of, key=secret, digest_size=32, person=use).digest()


def by_openssl(key: bytes, nonce: int, first: int, blocks: int) -> NDArray[np.int32]:
    """Blocks by OpenSSL on the processor, shape (blocks, 16).

    Args:
        key: 32 bytes.
        nonce: what they are for.
        first: the counter of the first.
        blocks: how many.
    """
    # not to verify or plan
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    out = np.empty(blocks * BLOCK + BLOCK, np.uint8)
    done = 0
    while done < blocks:
        # Whether a library carries from the lower half of the counter into the upper is its
        # business: no call goes beyond the lower half.
        many = min(blocks - done, 2**32 - (first + done) % 2**32)
        counter = struct.pack("<QQ", first + done, nonce)
        encryptor = Cipher(algorithms.ChaCha20(key, counter), mode=None).encryptor()
        encryptor.update_into(bytes(many * BLOCK), out[done * BLOCK :].data)
        done += many
    return out[: blocks * BLOCK].view(np.int32).reshape(blocks, WORDS)


def to_signed(number: int) -> int:
    """A number of 64 bits, as int64 has it."""
    return number - (number >> 63 << 64)
