"""Private Ed25519 keys in files, and what they sign: made and used by publishers, and not by those
who verify.
"""

from __future__ import annotations

import base64
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from privlearn.errors import BadInput
from privlearn.publishing.folder import bounded
from privlearn.publishing.keys import ALGORITHM, LARGEST, PublicKey, bytes_to_sign, is_public

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: The environment variable with the passphrase of an encrypted private key.
PASSPHRASE = "PRIVLEARN_KEY_PASSPHRASE"


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
    """Make a key pair: the private key in `path`, for its owner only, and the public one in
    `path`.pub.

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
    created = False
    try:
        # O_EXCL: nothing is overwritten, and no link is followed
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            created = True
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise BadInput(
            f"{path} exists already: choose another name; a key is never overwritten"
        ) from None
    except (OSError, ValueError) as error:
        if created:
            with suppress(OSError):
                path.unlink()
        reason = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{path} cannot be written: {reason}. Choose another place for the key"
        ) from error


def read_private(path: str | Path) -> SigningKey:
    """Read a private key, PEM (PKCS #8) or OpenSSH; an encrypted one with the passphrase in
    PRIVLEARN_KEY_PASSPHRASE.

    Raises:
        BadInput: no readable Ed25519 private key, or a passphrase that is missing or wrong.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = Path(path)
    if not path.exists():
        raise BadInput(
            f"{path} cannot be read: No such file or directory. Expected a private key: `privlearn "
            f"key {path}` makes one, and the public key beside it"
        )
    content = bounded(path, LARGEST).strip()
    if is_public(content):
        raise BadInput(
            f"{path} holds a public key: to sign, give the private one (the file without .pub)"
        )
    if not content.startswith(b"-----BEGIN ") or content.count(b"-----BEGIN ") != 1:
        raise BadInput(
            f"{path} holds no single private key: expected a file that `privlearn key` made"
        )
    openssh = content.startswith(b"-----BEGIN OPENSSH ")
    load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    key = _unlock(path, content, load)
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(
            f"{path} holds another kind of key ({type(key).__name__}): expected Ed25519, see "
            "`privlearn key`"
        )
    return SigningKey(PublicKey(key.public_key().public_bytes_raw()), key, _warn_of_readers(path))


def _unlock(path: Path, content: bytes, load: Any) -> object:
    """The key in `content`, with the passphrase if it needs one."""
    from cryptography.exceptions import UnsupportedAlgorithm

    secret = _passphrase()
    try:
        try:
            return load(content, None)
        except TypeError:  # it is encrypted
            if secret is None:
                raise BadInput(
                    f"{path} is encrypted: put its passphrase into the variable {PASSPHRASE}"
                ) from None
            return load(content, secret)
    except BadInput:
        raise
    except (ValueError, TypeError) as error:
        advice = (
            f"; or the passphrase in {PASSPHRASE} is wrong"
            if b"ENCRYPTED" in content or secret
            else ""
        )
        raise BadInput(
            f"{path} cannot be read as a private key: expected Ed25519 in PEM (PKCS #8) or OpenSSH "
            f"form{advice}"
        ) from error
    except UnsupportedAlgorithm as error:
        raise BadInput(
            f"{path} is a key of an unknown kind, or encrypted in a way that cannot be undone here "
            "(OpenSSH's needs the package bcrypt): expected Ed25519. `privlearn key` makes one"
        ) from error


def sign(certificate: dict[str, Any], key: SigningKey) -> dict[str, Any]:
    """`certificate` with the signature of `key`."""
    who = {"algorithm": ALGORITHM, "public_key": base64.b64encode(key.public.raw).decode()}
    value = key.sign(bytes_to_sign(certificate, who))
    return {**certificate, "signature": {**who, "value": base64.b64encode(value).decode()}}


def _passphrase() -> bytes | None:
    return os.environ.get(PASSPHRASE, "").encode(errors="surrogateescape") or None


def _warn_of_readers(path: Path) -> tuple[str, ...]:
    # On Windows the mode says nothing of who may read: access lists do, which Python cannot see.
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        return (
            (
                f"{path} can be read by others than its owner: anyone who reads it can sign as "
                f"you; chmod 600 {path}"
            ),
        )
    return ()
