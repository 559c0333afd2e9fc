"""Keys, masks and shares of secure sums: what they are made of, and nothing of who sends what.

Keys are agreed upon by X25519 (RFC 7748) and derived by HKDF with SHA-256 (RFC 5869), whose info
names the purpose, the round and the parties. A mask is the key stream of AES-256 in counter mode,
read as integers of 64 bits: uniform modulo 2^64. Shares are Shamir's (Communications of the ACM
22, 1979) over the integers modulo a prime above 2^256, at the node's number.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

#: Bytes of a key, public or secret, and of a seed.
KEY_BYTES = 32
#: The smallest prime above 2^256: each secret of 32 bytes is a number below it.
PRIME = 2**256 + 297
#: Bytes of a share: a number below the prime.
SHARE_BYTES = 33
_NONCE_BYTES, _TAG_BYTES = 12, 16
#: Bytes that encryption adds.
SEALING_BYTES = _NONCE_BYTES + _TAG_BYTES
_NODE_BYTES = 8
_DOMAIN = b"privlearn secure sum 1: "


def draw_secret() -> bytes:
    """A secret of 32 bytes from the operating system: a seed, or a private key of X25519."""
    return secrets.token_bytes(KEY_BYTES)


def public_key(secret: bytes) -> bytes:
    """The public key of a private key, 32 bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def derive_key(secret: bytes, purpose: bytes, *names: bytes) -> bytes:
    """A key of 32 bytes for one purpose.

    Args:
        secret: 32 bytes, uniform or agreed upon.
        purpose: what the key is for; no purpose begins as another one does.
        names: the round and the parties, each of a fixed length.
    """
    info = _DOMAIN + purpose + b"".join(names)
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def name_party(node: int, public: bytes) -> bytes:
    """A node and its public key, of a fixed length."""
    return node.to_bytes(_NODE_BYTES, "big") + public


def agree_on_key(secret: bytes, public: bytes, purpose: bytes, *names: bytes) -> bytes:
    """A key that two parties share, for one purpose.

    Args:
        secret: the private key of one.
        public: the public key of the other.
        purpose: as in `derive_key`.
        names: as in `derive_key`; both have to give them in the same order.

    Raises:
        ValueError: the public key is a point of low order, which makes no secret.
    """
    shared = X25519PrivateKey.from_private_bytes(secret).exchange(
        X25519PublicKey.from_public_bytes(public)
    )
    return derive_key(shared, purpose, *names)


def expand_mask(key: bytes, size: int) -> NDArray[np.uint64]:
    """Uniform integers modulo 2^64 from the whole key, which is for one mask alone.

    Args:
        key: 32 bytes.
        size: how many integers.
    """
    # counting from 0 is sound, because no key is used for two masks
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), "<u8").astype(np.uint64, copy=False)


def seal(key: bytes, plaintext: bytes) -> bytes:
    """Encrypt and authenticate by AES-256-GCM under a random nonce, which goes first."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, None)


def unseal(key: bytes, ciphertext: bytes) -> bytes:
    """What `seal` encrypted.

    Raises:
        Exception: it was made under another key, or changed.
    """
    return AESGCM(key).decrypt(ciphertext[:_NONCE_BYTES], ciphertext[_NONCE_BYTES:], None)


def split_secret(secret: bytes, threshold: int, holders: Sequence[int]) -> list[bytes]:
    """Shares of a secret: any `threshold` of them give it, and fewer say nothing about it.

    Args:
        secret: 32 bytes.
        threshold: how many shares give the secret.
        holders: distinct numbers from 1 to 2^64 - 1, one for each share.
    """
    polynomial = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    shares = []
    for holder in holders:
        value = 0
        for coefficient in polynomial:
            value = (value + coefficient) * holder % PRIME
        value = (value + int.from_bytes(secret, "big")) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from as many shares as its threshold says, by holder.

    Raises:
        OverflowError: they are not shares of one secret. That they are can't be seen otherwise.
    """
    weights = _weights_at_zero(tuple(shares))
    value = sum(
        weight * int.from_bytes(share, "big")
        for weight, share in zip(weights, shares.values(), strict=True)
    )
    return (value % PRIME).to_bytes(KEY_BYTES, "big")


@lru_cache(maxsize=1024)
def _weights_at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights of values at these points for the value at 0."""
    weights = []
    for holder in holders:
        above, below = 1, 1
        for other in holders:
            if other != holder:
                above = above * other % PRIME
                below = below * (other - holder) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
