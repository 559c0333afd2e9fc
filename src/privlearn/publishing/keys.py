"""Ed25519 keys in files: made, read, and named by their fingerprint.

A private key is PEM (PKCS #8) or an OpenSSH file, a public key PEM or the one line of an OpenSSH `.pub`. Fingerprints
are OpenSSH's, so `ssh-keygen -l` prints the same for the same key.

Signatures on certificates: who says that this was the run, and that it was not edited since.

Signed is the certificate as a whole (claim, event, settings, randomness, and the SHA-256 of weights, configuration and
card) in canonical form, together with algorithm and public key, behind a prefix that no other use of the key has.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from privlearn._storage import canonical
from privlearn.errors import BadInput
from privlearn.publishing.folder import bounded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


#: The environment variable with the passphrase of an encrypted private key.
PASSPHRASE = "PRIVLEARN_KEY_PASSPHRASE"
_LARGEST = 1 << 14
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
                f"the public key is not a usable Ed25519 key ({len(self.raw)} bytes): expected 32 bytes that encode a "
                "point of large order, as `privlearn key` makes"
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


@final
@dataclass(frozen=True)
class SigningKey:
    """A private key that was read and can sign.

    Attributes:
        public: the public key that belongs to it.
        warnings: what is unwise about the file that it came from.
    """

    public: PublicKey
    _private: Ed25519PrivateKey = field(repr=False, compare=False)
    warnings: tuple[str, ...] = ()

    def sign(self, message: bytes) -> bytes:
        """The signature of `message`, 64 bytes."""
        return self._private.sign(message)


def make(path: str | Path) -> PublicKey:
    """Make a key pair: the private key in `path`, for its owner only, and the public one in `path`.pub.

    Encrypted if PRIVLEARN_KEY_PASSPHRASE is set.

    Raises:
        BadInput: one of the files is there already, or cannot be written; nothing is left behind.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    secret = _passphrase()
    pem = serialization.Encoding.PEM
    lock = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, lock)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    path = Path(path)
    twin = Path(f"{path}.pub")
    _write_new(path, private, 0o600)
    try:
        _write_new(twin, public, 0o644)
    except BaseException:
        path.unlink()
        raise
    return PublicKey(key.public_key().public_bytes_raw())


def _write_new(path: Path, content: bytes, mode: int) -> None:
    made = False
    try:
        # O_EXCL: nothing is overwritten, and no link is followed
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            made = True
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise BadInput(f"{path} exists already: choose another name; a key is never overwritten") from None
    except (OSError, ValueError) as error:
        if made:
            with suppress(OSError):
                path.unlink()
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{path} cannot be written: {reason}. Choose another place for the key") from error


def read_private(path: str | Path) -> SigningKey:
    """Read a private key, PEM (PKCS #8) or OpenSSH; an encrypted one with the passphrase in PRIVLEARN_KEY_PASSPHRASE.

    Raises:
        BadInput: no readable Ed25519 private key, or a passphrase that is missing or wrong.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = Path(path)
    content = bounded(path, _LARGEST).strip()
    if _is_public(content):
        raise BadInput(f"{path} holds a public key: to sign, give the private one (the file without .pub)")
    if not content.startswith(b"-----BEGIN ") or content.count(b"-----BEGIN ") != 1:
        raise BadInput(f"{path} holds no single private key: expected a file that `privlearn key` made")
    openssh = content.startswith(b"-----BEGIN OPENSSH ")
    load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    key = _unlocked(path, content, load)
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(
            f"{path} holds another kind of key ({type(key).__name__}): expected Ed25519, see `privlearn key`"
        )
    return SigningKey(PublicKey(key.public_key().public_bytes_raw()), key, _open_to_others(path))


def _unlocked(path: Path, content: bytes, load: Any) -> object:
    """The key in `content`, with the passphrase if it needs one."""
    from cryptography.exceptions import UnsupportedAlgorithm

    secret = _passphrase()
    try:
        try:
            return load(content, None)
        except TypeError:  # it is encrypted
            if secret is None:
                raise BadInput(f"{path} is encrypted: put its passphrase into the variable {PASSPHRASE}") from None
            return load(content, secret)
    except BadInput:
        raise
    except (ValueError, TypeError) as error:
        advice = f"; or the passphrase in {PASSPHRASE} is wrong" if b"ENCRYPTED" in content or secret else ""
        raise BadInput(
            f"{path} cannot be read as a private key: expected Ed25519 in PEM (PKCS #8) or OpenSSH form{advice}"
        ) from error
    except UnsupportedAlgorithm as error:
        raise BadInput(
            f"{path} is a key of an unknown kind, or encrypted in a way that cannot be undone here (OpenSSH's needs "
            "the package bcrypt): expected Ed25519. `privlearn key` makes one"
        ) from error


def read_public(path: str | Path) -> PublicKey:
    """Read a public key, PEM or the line of an OpenSSH `.pub`; one key, and nothing else in the file.

    Raises:
        BadInput: no readable Ed25519 public key, several of them, or a private key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    path = Path(path)
    content = bounded(path, _LARGEST).strip()
    if b"PRIVATE KEY-----" in content:
        raise BadInput(
            f"{path} holds a private key: to check, give the public one (FILE.pub), and keep this one secret"
        )
    ends = content.startswith(b"-----BEGIN PUBLIC KEY-----") and content.endswith(b"-----END PUBLIC KEY-----")
    if not _is_public(content) or content.count(b"-----BEGIN ") > 1 or (b"-----" in content and not ends):
        raise BadInput(f"{path} holds no single public key: expected a FILE.pub of `privlearn key`, or of ssh-keygen")
    if not ends and len(content.splitlines()) != 1:
        raise BadInput(f"{path} holds {len(content.splitlines())} lines: expected one OpenSSH key, and nothing else")
    try:
        load = serialization.load_pem_public_key if ends else serialization.load_ssh_public_key
        key = load(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{path} cannot be read as a public key: expected Ed25519 in PEM or OpenSSH form") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput(
            f"{path} holds another kind of key ({type(key).__name__}): expected Ed25519, see `privlearn key`"
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


def _is_public(content: bytes) -> bool:
    return content.startswith((b"-----BEGIN PUBLIC KEY-----", b"ssh-", b"ecdsa-", b"sk-"))


def _passphrase() -> bytes | None:
    return os.environ.get(PASSPHRASE, "").encode(errors="surrogateescape") or None


def _open_to_others(path: Path) -> tuple[str, ...]:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return (f"{path} can be read by others than its owner: anyone who reads it can sign as you; chmod 600 {path}",)
    return ()


_ALGORITHM = "ed25519"
_PREFIX = b"privlearn certificate signature, version 1\0"


def sign(certificate: dict[str, Any], key: SigningKey) -> dict[str, Any]:
    """`certificate` with the signature of `key`."""
    who = {"algorithm": _ALGORITHM, "public_key": base64.b64encode(key.public.raw).decode()}
    value = key.sign(_message(certificate, who))
    return {**certificate, "signature": {**who, "value": base64.b64encode(value).decode()}}


def signer_of(certificate: dict[str, Any]) -> PublicKey | None:
    """The key that signed `certificate`, or None if it carries no signature.

    Raises:
        BadInput: it carries something that is no signature of it.
    """
    if "signature" not in certificate:
        return None
    signature = certificate["signature"]
    if not isinstance(signature, dict) or set(signature) != {"algorithm", "public_key", "value"}:
        raise BadInput("the signature has other fields than it should: expected algorithm, public_key and value")
    if signature["algorithm"] != _ALGORITHM:
        raise BadInput(f"the signature's algorithm is {str(signature['algorithm'])[:24]!r}: expected {_ALGORITHM!r}")
    key = PublicKey(decoded(signature["public_key"], 32, "the signature's public key"))
    value = decoded(signature["value"], 64, "the signature's value")
    if not key.fits(value, _message(certificate, {name: signature[name] for name in ("algorithm", "public_key")})):
        raise BadInput(
            "the signature does not fit: certificate or signature were changed after signing, or the signature belongs "
            "to another certificate. Get an unchanged copy"
        )
    return key


def _message(certificate: dict[str, Any], who: dict[str, str]) -> bytes:
    return _PREFIX + canonical({**certificate, "signature": who})
