"""Signatures on certificates: who says that this was the run, and that nobody has edited it since.

Signed is the certificate as a whole (claim, event, settings, randomness, and the SHA-256 of weights, configuration and
card) in canonical form, together with algorithm and public key, behind a prefix that no other use of the key has.
"""

from __future__ import annotations

import base64
from typing import Any

from privlearn._json import canonical
from privlearn.errors import BadInput
from privlearn.publishing.keys import PublicKey, SigningKey, decoded

_ALGORITHM = "ed25519"
_PREFIX = b"privlearn certificate signature, version 1\0"


def signed(certificate: dict[str, Any], key: SigningKey) -> dict[str, Any]:
    """`certificate` with the signature of `key`."""
    who = {"algorithm": _ALGORITHM, "public_key": base64.b64encode(key.public.raw).decode()}
    value = key.sign(_message(certificate, who))
    return {**certificate, "signature": {**who, "value": base64.b64encode(value).decode()}}


def signer(certificate: dict[str, Any]) -> PublicKey | None:
    """The key that signed `certificate`, or None if it carries no signature.

    Raises:
        BadInput: it carries something that is no signature of it.
    """
    if "signature" not in certificate:
        return None
    found = certificate["signature"]
    if not isinstance(found, dict) or set(found) != {"algorithm", "public_key", "value"}:
        raise BadInput("the signature has other fields than it should: expected algorithm, public_key and value")
    if found["algorithm"] != _ALGORITHM:
        raise BadInput(f"the signature's algorithm is {str(found['algorithm'])[:24]!r}: expected {_ALGORITHM!r}")
    key = PublicKey(decoded(found["public_key"], 32, "the signature's public key"))
    value = decoded(found["value"], 64, "the signature's value")
    if not key.fits(value, _message(certificate, {name: found[name] for name in ("algorithm", "public_key")})):
        raise BadInput(
            "the signature does not fit: certificate or signature were changed after signing, or the signature belongs to "
            "another certificate. Get an unchanged copy"
        )
    return key


def _message(certificate: dict[str, Any], who: dict[str, str]) -> bytes:
    return _PREFIX + canonical({**certificate, "signature": who})
