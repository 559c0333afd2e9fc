"""The signature of a certificate."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from privlearn_verify.ed25519 import verify_ed25519
from privlearn_verify.strict_json import write_canonical
from privlearn_verify.verdicts import Findings, demand


def decode_base64(text: str) -> bytes:
    """Return what canonical base64 with padding encodes."""
    data = base64.b64decode(text, validate=True)
    demand(base64.b64encode(data).decode() == text, "base64 that is not canonical")
    return data


def read_key(data: bytes) -> bytes:
    """Return the 32 bytes of an OpenSSH line or of a PEM public key."""
    text = bytes(data).decode(errors="replace").strip()
    if text.startswith("-----BEGIN PUBLIC KEY-----"):
        raw = base64.b64decode("".join(text.splitlines()[1:-1]))
        head = bytes.fromhex("302a300506032b6570032100")
    else:
        words = text.split()
        demand(len(words) > 1 and words[0] == "ssh-ed25519", "the given key is no Ed25519 key")
        raw, head = base64.b64decode(words[1]), b"\0\0\0\x0bssh-ed25519\0\0\0 "
    whole = raw.startswith(head) and len(raw) == len(head) + 32
    demand(whole, "the given key is no Ed25519 key")
    return raw[-32:]


def check_signature(certificate: Any, expected: bytes | None, findings: Findings) -> None:
    """Check the signature, if there is one, and note the fingerprint of its key."""
    if "signature" not in certificate:
        demand(expected is None, "there is no signature")
        return
    signature = certificate["signature"]
    key, value = decode_base64(signature["public_key"]), decode_base64(signature["value"])
    wire = hashlib.sha256(b"\0\0\0\x0bssh-ed25519\0\0\0 " + key).digest()
    findings.signed_by = "SHA256:" + base64.b64encode(wire).decode().rstrip("=")
    unsigned = {name: signature[name] for name in ("algorithm", "public_key")}
    message = b"privlearn certificate signature, version 1\0"
    verify_ed25519(key, message + write_canonical(certificate | {"signature": unsigned}), value)
    demand(expected is None or read_key(expected) == key, "the signature is by another key")
