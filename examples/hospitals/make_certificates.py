"""Makes what TLS and the hospitals' identities need: `python make_certificates.py FOLDER SITES`.

The folder gets `ca.pem`, which everybody may have, `server.pem` and `server.key` for the server,
and for each hospital a pair of keys, `site-0` and `site-0.pub`. Each private key belongs on its
party's machine alone: here all are made in one place, to try things out on one machine.
"""

from __future__ import annotations

import datetime
import ipaddress
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

#: How long the certificates hold: this is for trying things out.
_DAYS = 7


def make_certificates(folder: Path, sites: int) -> None:
    """Write all of it into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer, subject = _name("hospitals' authority"), _name("localhost")
    root = (
        _certificate(issuer, issuer, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = (
        _certificate(subject, issuer, server)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.public_bytes(pem))
    _write_secret(folder / "server.key", _private(server, serialization.PrivateFormat.PKCS8))
    for site in range(sites):
        key = ec.generate_private_key(ec.SECP384R1())
        openssh = serialization.PrivateFormat.OpenSSH
        _write_secret(folder / f"site-{site}", _private(key, openssh))
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        (folder / f"site-{site}.pub").write_bytes(public)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


if __name__ == "__main__":
    make_certificates(Path(sys.argv[1]), int(sys.argv[2]))
