"""This file reads the Ed25519 keys by which signatures are checked, and names them by their
fingerprint; private ones are in `signing`.

A private key is PEM (PKCS #8) or an OpenSSH file, a public key PEM or the one line of an OpenSSH
`.pub`. Fingerprints are OpenSSH's, so `ssh-keygen -l` prints the same for the same key.

Signatures on certificates: who says that this was the run, and that it was not edited since.

Signed is the certificate as a whole (claim, plan, facts, events, randomness, and the SHA-256 of
weights, configuration and card) in canonical form, together with algorithm and public key, behind a
prefix that no other use of the key has.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from privlearn._storage import canonical
from privlearn.errors import BadInput
from privlearn.publishing.folder import bounded

#: Bytes that a file with a key has at most.
LARGEST = 1 << 14
_PRIME = 2**255 - 19
#: Heights of the points of order 1, 2, 4 and 8. A signature by such a "key" fits many messages.
_SMALL_ORDER = {
    0,
    1,
    _PRIME - 1,
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
}


@final
@dataclass(frozen=True, repr=False)
class PublicKey:
    """A public key: 32 bytes that are one point's only spelling, and not one of small order.

    Raises:
        BadInput: other bytes.
    """

    raw: bytes

    def __post_init__(self) -> None:
        height = int.from_bytes(self.raw, "little") & ((1 << 255) - 1)
        if len(self.raw) != 32 or height >= _PRIME or height in _SMALL_ORDER:
            raise BadInput(
                f"the public key is not a usable Ed25519 key ({len(self.raw)} bytes): expected 32 "
                "bytes that encode a point of large order, as `privlearn key` makes"
            )

    def __repr__(self) -> str:
        return f"PublicKey({self.fingerprint})"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the key in OpenSSH's wire format, as `ssh-keygen -l` prints it."""
        blob = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ssh-ed25519", self.raw))
        return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")

    def fits(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` is this key's for `message`."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def read_public(path: str | Path) -> PublicKey:
    """Read a public key, PEM or the line of an OpenSSH `.pub`; one key, and nothing else in the
    file.

    Raises:
        BadInput: no readable Ed25519 public key, several of them, or a private key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    path = Path(path)
    content = bounded(path, LARGEST).strip()
    if b"PRIVATE KEY-----" in content:
        raise BadInput(
            f"{path} holds a private key: to check, give the public one (FILE.pub), and keep this "
            "one secret"
        )
    ends = content.startswith(b"-----BEGIN PUBLIC KEY-----") and content.endswith(
        b"-----END PUBLIC KEY-----"
    )
    if (
        not is_public(content)
        or content.count(b"-----BEGIN ") > 1
        or (b"-----" in content and not ends)
    ):
        raise BadInput(
            f"{path} holds no single public key: expected a FILE.pub of `privlearn key`, or of "
            "ssh-keygen"
        )
    if not ends and len(content.splitlines()) != 1:
        raise BadInput(
            f"{path} holds {len(content.splitlines())} lines: expected one OpenSSH key, and "
            "nothing else"
        )
    try:
        load = serialization.load_pem_public_key if ends else serialization.load_ssh_public_key
        key = load(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(
            f"{path} cannot be read as a public key: expected Ed25519 in PEM or OpenSSH form"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput(
            f"{path} holds another kind of key ({type(key).__name__}): expected Ed25519, see "
            "`privlearn key`"
        )
    return PublicKey(key.public_bytes_raw())


def decoded(text: object, length: int, what: str) -> bytes:
    """The bytes of canonical base64, `length` of them.

    Raises:
        BadInput: no text, another length, or another spelling than the canonical one.
    """
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != length or base64.b64encode(raw).decode() != text:
        raise BadInput(f"{what} is {str(text)[:24]!r}: expected canonical base64 of {length} bytes")
    return raw


def is_public(content: bytes) -> bool:
    """Whether what a file holds begins as a public key does."""
    return content.startswith((b"-----BEGIN PUBLIC KEY-----", b"ssh-", b"ecdsa-", b"sk-"))


#: What signatures are called.
ALGORITHM = "ed25519"
_PREFIX = b"privlearn certificate signature, version 1\0"


def signer_of(certificate: dict[str, Any]) -> PublicKey | None:
    """The key that signed `certificate`, or None if it carries no signature.

    Raises:
        BadInput: it carries something that is no signature of it.
    """
    if "signature" not in certificate:
        return None
    signature = certificate["signature"]
    if not isinstance(signature, dict) or set(signature) != {"algorithm", "public_key", "value"}:
        raise BadInput(
            "the signature has other fields than it should: expected algorithm, public_key and "
            "value"
        )
    if signature["algorithm"] != ALGORITHM:
        raise BadInput(
            f"the signature's algorithm is {str(signature['algorithm'])[:24]!r}: expected "
            f"{ALGORITHM!r}"
        )
    key = PublicKey(decoded(signature["public_key"], 32, "the signature's public key"))
    value = decoded(signature["value"], 64, "the signature's value")
    if not key.fits(
        value,
        bytes_to_sign(certificate, {name: signature[name] for name in ("algorithm", "public_key")}),
    ):
        raise BadInput(
            "the signature does not fit: certificate or signature were changed after signing, or "
            "the signature belongs to another certificate. Get an unchanged copy"
        )
    return key


def bytes_to_sign(certificate: dict[str, Any], who: dict[str, str]) -> bytes:
    """What a signature is of: all of a certificate, and whose signature it is to carry."""
    return _PREFIX + canonical({**certificate, "signature": who})
