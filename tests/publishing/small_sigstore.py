"""A Sigstore in memory: its authority certifies an identity, its log promises to hold a signature,
and the package sigstore verifies both without a network.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

WHO, PROVIDER = "author@example.org", "https://accounts.example.org"
#: When everything is signed.
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
_ISSUER = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_TIMESTAMPS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ORIGIN = "log.example.org"


def public_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


class SmallSigstore:
    """Keys of the authority, the certificates' log and the signatures' log; each is new."""

    def __init__(self, who: str = WHO, provider: str = PROVIDER) -> None:
        self.who, self.provider = who, provider
        self.authority, self.certificates, self.log = (
            ec.generate_private_key(ec.SECP256R1()) for _ in range(3)
        )
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        key = self.authority.public_key()
        self.root = (
            self._builder(name, name, key, days=3650)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: Any, days: float
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - timedelta(minutes=1))
            .not_valid_after(NOW + timedelta(days=days))
        )

    def certify(self, request: x509.CertificateSigningRequest) -> x509.Certificate:
        """A certificate of the identity, with the time stamp of the certificates' log."""
        key = request.public_key()
        draft = (
            self._builder(x509.Name([]), self.root.subject, key, days=1 / 144)
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(self.who)]), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CODE_SIGNING]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()),
                critical=False,
            )
            .add_extension(
                x509.UnrecognizedExtension(_ISSUER, self.provider.encode()), critical=False
            )
        )
        body = draft.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        issuer = hashlib.sha256(public_bytes(self.authority)).digest()
        at = int(NOW.timestamp() * 1000)
        entry = issuer + len(body).to_bytes(3, "big") + body
        signature = self.certificates.sign(
            struct.pack("!BBQH", 0, 0, at, 1) + entry + b"\0\0", ec.ECDSA(hashes.SHA256())
        )
        name = hashlib.sha256(public_bytes(self.certificates)).digest()
        stamp = b"\0" + name + struct.pack("!QHBBH", at, 0, 4, 3, len(signature)) + signature
        stamps = struct.pack("!HH", len(stamp) + 2, len(stamp)) + stamp
        octets = b"\x04" + (
            bytes([len(stamps)]) if len(stamps) < 128 else bytes([0x81, len(stamps)])
        )
        return draft.add_extension(
            x509.UnrecognizedExtension(_TIMESTAMPS, octets + stamps), critical=False
        ).sign(self.authority, hashes.SHA256())

    def enter(self, body: bytes) -> dict[str, Any]:
        """What the log answers when a signature is entered."""
        leaf = hashlib.sha256(b"\0" + body).digest()
        log = hashlib.sha256(public_bytes(self.log)).digest()
        note = f"{_ORIGIN}\n1\n{text(leaf)}\n"
        signed_note = self.log.sign(note.encode(), ec.ECDSA(hashes.SHA256()))
        promised = {
            "body": text(body),
            "integratedTime": int(NOW.timestamp()),
            "logID": log.hex(),
            "logIndex": 0,
        }
        canonical = json.dumps(promised, sort_keys=True, separators=(",", ":")).encode()
        return {
            "0": {
                **promised,
                "verification": {
                    "inclusionProof": {
                        "logIndex": 0,
                        "rootHash": leaf.hex(),
                        "treeSize": 1,
                        "hashes": [],
                        "checkpoint": f"{note}\n— {_ORIGIN} {text(log[:4] + signed_note)}\n",
                    },
                    "signedEntryTimestamp": text(
                        self.log.sign(canonical, ec.ECDSA(hashes.SHA256()))
                    ),
                },
            }
        }

    def trust_config(self, path: Path) -> Path:
        """Write what those who verify trust."""
        period = {"start": "2020-01-01T00:00:00Z"}

        def describe(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            return {
                "baseUrl": "https://log.example.org",
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": text(public_bytes(key)),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": period,
                },
                "logId": {"keyId": text(hashlib.sha256(public_bytes(key)).digest())},
            }

        root = text(self.root.public_bytes(serialization.Encoding.DER))
        start = "application/vnd.dev.sigstore"
        config = {
            "mediaType": f"{start}.clienttrustconfig.v0.1+json",
            "trustedRoot": {
                "mediaType": f"{start}.trustedroot+json;version=0.1",
                "tlogs": [describe(self.log)],
                "certificateAuthorities": [
                    {
                        "subject": {"organization": "example", "commonName": "authority"},
                        "uri": "https://authority.example.org",
                        "certChain": {"certificates": [{"rawBytes": root}]},
                        "validFor": period,
                    }
                ],
                "ctlogs": [describe(self.certificates)],
                "timestampAuthorities": [],
            },
            "signingConfig": {
                "mediaType": f"{start}.signingconfig.v0.2+json",
                **{
                    name: [
                        {
                            "url": f"https://{name.lower()}.example.org",
                            "majorApiVersion": 1,
                            "validFor": period,
                            "operator": "example",
                        }
                    ]
                    for name in ("caUrls", "oidcUrls", "rekorTlogUrls")
                },
                "rekorTlogConfig": {"selector": "ANY"},
                "tsaConfig": {"selector": "ANY"},
            },
        }
        path.write_text(json.dumps(config))
        return path

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Within it, the package sigstore signs by this Sigstore, for its identity."""
        import jwt
        from sigstore import oidc, sign
        from sigstore._internal.rekor.client import RekorClient
        from sigstore.models import TransparencyLogEntry

        class Certificates:
            def post(_, request: Any, token: Any) -> Any:  # noqa: N805
                return SimpleNamespace(cert=self.certify(request), chain=[self.root])

        class Log(RekorClient):
            def create_entry(_, request: Any) -> Any:  # noqa: N805
                proposed = request["spec"]["proposedContent"]
                envelope = json.loads(proposed["envelope"])
                payload = base64.b64decode(envelope["payload"])
                body = {
                    "apiVersion": "0.0.1",
                    "kind": "dsse",
                    "spec": {
                        "envelopeHash": _sha256(proposed["envelope"].encode()),
                        "payloadHash": _sha256(payload),
                        "signatures": [
                            {
                                "signature": envelope["signatures"][0]["sig"],
                                "verifier": proposed["verifiers"][0],
                            }
                        ],
                    },
                }
                content = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
                return TransparencyLogEntry._from_v1_response(self.enter(content))

        now = datetime.now(UTC)
        token = jwt.encode(
            {
                "iss": self.provider,
                "sub": self.who,
                "email": self.who,
                "aud": "sigstore",
                "iat": now - timedelta(seconds=5),
                "exp": now + timedelta(minutes=5),
            },
            "a key that is long enough for this",
        )

        def context(config: Any) -> Any:
            return sign.SigningContext(
                fulcio=SimpleNamespace(signing_cert=Certificates()),
                rekor=Log("https://log.example.org"),
                trusted_root=config.trusted_root,
            )

        # the certificates are of a day that is past: signing by one asks what day it is
        today = SimpleNamespace(now=lambda _: NOW)
        with (
            mock.patch.object(oidc, "detect_credential", return_value=token),
            mock.patch.object(oidc, "Issuer"),
            mock.patch.object(sign.SigningContext, "from_trust_config", context),
            mock.patch.object(sign, "datetime", today),
        ):
            yield


def _sha256(content: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": hashlib.sha256(content).hexdigest()}


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
