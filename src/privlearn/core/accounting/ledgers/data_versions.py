"""A ledger recognises the rows that its runs are on.

It keeps a few keyed numbers of each version of the rows. To those who have the key and the rows
they say whether other rows are the same, and about how many are. Without the key they are random
numbers, of which two can't be compared, and their number does not follow from that of the rows.

How much two versions have in common is estimated by one-permutation hashing with short digests (Li,
Owen and Zhang 2012; Li and Koenig 2010): rows are dealt to slots by their digests, and versions are
compared in the least row of each slot.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SLOTS = 128
_BYTES = 2  # of a slot: two rows that differ agree in it by chance once in 65,536 times
#: Bytes of the digest of all rows, of a nonce and of what tells keys apart.
_WHOLE, _NONCE, _ID = 32, 16, 8
#: Versions that a data set keeps, at most: the latest.
MOST = 20


@final
@dataclass(frozen=True)
class DataVersion:
    """What is kept of the rows of a run.

    Attributes:
        key: tells the key that it was computed with from others.
        nonce: differs from version to version.
        masked: the digests of the rows, masked by key and nonce: without the key two versions can't
            be compared.
    """

    key: str
    nonce: str
    masked: str

    @classmethod
    def of(cls, digests: NDArray[np.uint64], key: bytes) -> DataVersion:
        """The version of rows with these digests, shape (rows,)."""
        ordered = np.sort(digests)
        content = _compute_hmac(key, "rows", ordered.tobytes())
        for slot, row in enumerate(_least_of_slots(ordered)):
            content += _compute_hmac(key, "slot", slot.to_bytes(2, "big") + row.tobytes())[:_BYTES]
        nonce = secrets.token_bytes(_NONCE)
        return cls(identify_key(key), nonce.hex(), _mask(content, key, nonce).hex())

    def share_in_common(self, other: DataVersion, key: bytes) -> float:
        """An estimate of how many of the rows of both are in both, from 0 to 1; exactly 1 if all
        are. Its standard deviation is at most 0.045.

        Args:
            other: another version.
            key: the key of both.
        """
        (rows, slots), (other_rows, other_slots) = self._unmask(key), other._unmask(key)
        if rows == other_rows:
            return 1.0
        equal = sum(
            slots[place : place + _BYTES] == other_slots[place : place + _BYTES]
            for place in range(0, _BYTES * _SLOTS, _BYTES)
        )
        return equal / _SLOTS

    def _unmask(self, key: bytes) -> tuple[bytes, bytes]:
        """The digest of all rows, and those of the slots."""
        content = _mask(bytes.fromhex(self.masked), key, bytes.fromhex(self.nonce))
        return content[:_WHOLE], content[_WHOLE:]

    def to_json(self) -> dict[str, str]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> DataVersion:
        """What `to_json` wrote.

        Raises:
            ValueError: anything else.
        """
        sizes = {"key": _ID, "nonce": _NONCE, "masked": _WHOLE + _BYTES * _SLOTS}
        if not isinstance(data, dict) or set(data) != set(sizes):
            raise ValueError(f"a version of the data has other fields than {', '.join(sizes)}")
        for name, size in sizes.items():
            if not isinstance(data[name], str) or len(bytes.fromhex(data[name])) != size:
                raise ValueError(f"{name} of a version of the data: expected {size} bytes")
        return cls(**data)


def identify_key(key: bytes) -> str:
    """What tells a key from others, and nothing else of it."""
    return _compute_hmac(key, "key").hex()[: 2 * _ID]


def _mask(content: bytes, key: bytes, nonce: bytes) -> bytes:
    """`content` with a stream of bytes of key and nonce added to it, or taken off it."""
    seed = _compute_hmac(key, "mask", nonce)
    stream = hashlib.shake_256(seed).digest(len(content))
    return bytes(one ^ other for one, other in zip(content, stream, strict=True))


def _least_of_slots(ordered: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """For each slot the least of its rows; for an empty one that of the next slot that has rows."""
    least = np.zeros(_SLOTS, np.uint64)
    if not len(ordered):
        return least
    slots, first = np.unique(ordered % np.uint64(_SLOTS), return_index=True)
    following = np.searchsorted(slots, np.arange(_SLOTS)) % len(slots)
    least[:] = ordered[first[following]]
    return least


def _compute_hmac(key: bytes, purpose: str, content: bytes = b"") -> bytes:
    return hmac.digest(key, purpose.encode() + b"\0" + content, hashlib.sha256)
