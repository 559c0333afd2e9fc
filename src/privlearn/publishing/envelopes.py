"""Signatures around a published folder, from outside of its certificate: DSSE envelopes, Sigstore
bundles and the signatures of OpenSSF model signing.

What they say is compared with the folder in any case. Who says it is checked where the reader says
whose signature is expected: a key, or an identity that Sigstore has certified and logged.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, final

from privlearn._checks import checked, printable
from privlearn._storage import loads
from privlearn.errors import BadInput, first_line
from privlearn.publishing import attestation
from privlearn.publishing.folder import ENVELOPES, Contents, bounded
from privlearn.publishing.keys import LARGEST, read_public

#: Bytes of an envelope, and signatures in one.
_LARGEST, _MOST = 1 << 20, 16
#: What model-signing calls its predicate, and how files are hashed in the form that is read.
MODEL_SIGNING = "https://model_signing/signature/v1.0"
#: The extra that brings a package, where it is another than `signing`.
_EXTRAS = {"cyclonedx": "bom", "huggingface_hub": "hub", "mlflow": "mlflow"}
_DSSE_FIELDS = {"payload", "payloadType", "signatures"}
_BUNDLE_FIELDS = {"mediaType", "verificationMaterial", "dsseEnvelope"}


@checked
@final
@dataclass(frozen=True)
class Signer:
    """Whose signature an envelope has to carry.

    Attributes:
        bundle: the file of the envelope, where it is not in the folder.
        public_key: a file: an Ed25519 key for DSSE envelopes that `export` signed, or a key on a
            NIST curve (PEM) for signatures of model-signing.
        identity: an e-mail address, or the address of a workflow, that Sigstore certified.
        identity_provider: who vouched for the identity, such as https://accounts.google.com.
        trust_config: the trust configuration of a Sigstore of your own, a file; None: the public
            one.

    Raises:
        BadInput: no one is named, or an identity without its provider.
    """

    bundle: str | Path | None = None
    public_key: str | Path | None = None
    identity: str | None = None
    identity_provider: str | None = None
    trust_config: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.identity is None) != (self.identity_provider is None):
            raise BadInput(
                "identity= and identity_provider= go together: anyone who runs a provider can "
                "vouch for any name. Give both"
            )
        if self.public_key is None and self.identity is None:
            raise BadInput(
                "nothing says whose signature is expected: give public_key=, or identity= and "
                "identity_provider="
            )

    @property
    def kinds(self) -> set[str]:
        """What is asked for: a key, an identity, or both."""
        asked = {"key": self.public_key, "identity": self.identity}
        return {kind for kind, value in asked.items() if value is not None}


@final
@dataclass
class Attested:
    """What the envelopes of a folder say, and who signed them."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    signers: list[str] = field(default_factory=list)


@final
@dataclass(frozen=True, repr=False)
class Envelope:
    """An envelope that was read.

    Attributes:
        name: of its file.
        content: all of the file.
        payload: what is signed.
        statement: the same, as JSON.
        signatures: of the payload and its type.
        kind: what a signature is checked with.
        material: what a Sigstore bundle holds besides.
    """

    name: str
    content: bytes
    payload: bytes
    statement: dict[str, Any]
    signatures: tuple[bytes, ...]
    kind: Literal["key", "identity"]
    material: dict[str, Any] | None

    @property
    def signed_bytes(self) -> bytes:
        """What DSSE signs: the type and the payload, each behind its length."""
        return encode(self.payload)

    @property
    def predicate_type(self) -> str:
        """What the statement states."""
        return str(self.statement.get("predicateType"))


class _OtherSigner(Exception):
    """Why an envelope is not signed by the expected one, or that cannot be checked."""


def encode(payload: bytes) -> bytes:
    """The bytes that a DSSE signature of a statement is of (DSSE v1, "PAE")."""
    kind = attestation.PAYLOAD.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def check_envelopes(
    contents: Contents, certificate: Mapping[str, Any], signer: Signer | None = None
) -> tuple[list[str], list[str], list[str]]:
    """Compare the envelopes of a folder, and the one beside it, with what the folder holds.

    Returns:
        Problems, warnings, and who signed.

    Raises:
        BadInput: the bundle, the key or the trust configuration cannot be read, or a package is
            missing that checks a signature that was asked for.
    """
    attested = Attested()
    outside = None if signer is None or signer.bundle is None else Path(signer.bundle)
    if signer is not None and signer.public_key is not None:
        bounded(Path(signer.public_key), LARGEST)  # refused before anything is compared
    named = [] if outside is None else [(str(outside), bounded(outside, _LARGEST))]
    files = []
    for name in sorted(ENVELOPES & set(contents.strangers)):
        try:
            files.append((name, bounded(contents.path / name, _LARGEST)))
        except BadInput as error:
            attested.problems.append(str(error))
    envelopes = _read_all(files, attested, contents, certificate)
    if outside is not None:  # the one that was named has to be signed
        envelopes = _read_all(named, attested, contents, certificate)
    if signer is not None:
        _check_signers(attested, signer, envelopes, contents)
    else:
        attested.warnings += [
            f"the signature of {envelope.name} was not checked: give the publisher's key or "
            "identity"
            for envelope in envelopes
        ]
    return attested.problems, attested.warnings, attested.signers


def _read_all(
    files: list[tuple[str, bytes]],
    attested: Attested,
    contents: Contents,
    certificate: Mapping[str, Any],
) -> list[Envelope]:
    """The envelopes that can be read; what they contradict is entered."""
    envelopes = []
    for name, content in files:
        try:
            envelope = read_envelope(name, content)
        except BadInput as error:
            attested.problems.append(str(error))
            continue
        envelopes.append(envelope)
        attested.problems += [
            f"{name}: {problem}" for problem in _compare(envelope, contents, certificate)
        ]
    return envelopes


def _check_signers(
    attested: Attested, signer: Signer, envelopes: list[Envelope], contents: Contents
) -> None:
    """Enter who signed, or that the expected one did not."""
    missing, reasons = signer.kinds, []
    for envelope in envelopes:
        try:
            if envelope.kind not in signer.kinds:
                raise _OtherSigner(f"{envelope.name} is signed with a {envelope.kind}")
            attested.signers.append(_find_signer(envelope, signer, contents))
            missing -= {envelope.kind}
        except _OtherSigner as error:
            reasons.append(str(error))
    if missing:
        reason = "; ".join(reasons) or _say_there_is_none(contents, signer)
        attested.problems.append(
            f"no envelope has the signature that was asked for, by {' and '.join(sorted(missing))}:"
            f" {printable(reason)[:400]}"
        )
    else:
        attested.warnings += reasons


def _say_there_is_none(contents: Contents, signer: Signer) -> str:
    """Why no envelope was looked at, and what was perhaps meant."""
    if signer.bundle is not None:
        return f"{signer.bundle} is none that can be read"
    if ENVELOPES & set(contents.strangers):
        return "those in the folder cannot be read"
    return (
        f"the folder has none ({', '.join(sorted(ENVELOPES))}). The signature of the certificate "
        "itself is checked with --key, or key="
    )


def read_envelope(name: str, content: bytes) -> Envelope:
    """The envelope in a file.

    Raises:
        BadInput: it is neither a DSSE envelope nor a Sigstore bundle of one, or what it holds is no
            in-toto statement.
    """
    try:
        data = loads(content)
    except ValueError as error:
        raise BadInput(f"{name} is not readable JSON: {error}. Get an unchanged copy") from error
    material = None
    if isinstance(data, dict) and set(data) == _BUNDLE_FIELDS:
        material, data = data.get("verificationMaterial"), data.get("dsseEnvelope")
        if not isinstance(material, dict):
            raise BadInput(
                f"{name} is a bundle without verificationMaterial: get an unchanged copy"
            )
    if not isinstance(data, dict) or set(data) != _DSSE_FIELDS:
        raise BadInput(
            f"{name} does not hold a DSSE envelope, alone or in a Sigstore bundle: expected "
            "payload, payloadType and signatures, as `privlearn export` writes"
        )
    if data["payloadType"] != attestation.PAYLOAD:
        raise BadInput(
            f"{name} holds {str(data['payloadType'])[:60]!r}: expected {attestation.PAYLOAD}"
        )
    payload = _decode(data["payload"], f"the payload of {name}")
    entries = data["signatures"]
    if not isinstance(entries, list) or not 1 <= len(entries) <= _MOST:
        raise BadInput(f"{name} has no list of 1 to {_MOST} signatures: get the signed copy")
    if not all(isinstance(entry, dict) and set(entry) <= {"sig", "keyid"} for entry in entries):
        raise BadInput(f"a signature of {name} has other fields than sig and keyid")
    signatures = tuple(_decode(entry.get("sig"), f"a signature of {name}") for entry in entries)
    try:
        statement = loads(payload)
    except ValueError as error:
        raise BadInput(f"the statement in {name} is not readable JSON: {error}") from error
    if not isinstance(statement, dict) or statement.get("_type") != attestation.STATEMENT:
        raise BadInput(f"{name} holds no in-toto statement: expected {attestation.STATEMENT}")
    certified = material is not None and ({"certificate", "x509CertificateChain"} & set(material))
    kind: Literal["key", "identity"] = "identity" if certified else "key"
    return Envelope(name, content, payload, statement, signatures, kind, material)


def _decode(text: object, what: str) -> bytes:
    """The bytes of base64 in its one spelling."""
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        raw = b""
    if not raw or base64.b64encode(raw).decode() != text:
        raise BadInput(f"{what} is not canonical base64: get an unchanged copy")
    return raw


def _compare(envelope: Envelope, contents: Contents, certificate: Mapping[str, Any]) -> list[str]:
    """What the signed statement says that is not so of the folder."""
    match envelope.predicate_type:
        case attestation.PREDICATE:
            return attestation.find_differences(envelope.statement, certificate, contents.digests)
        case text if text == MODEL_SIGNING:
            return _compare_resources(envelope.statement.get("predicate"), contents)
        case text:
            return [
                f"its predicate is {text[:60]!r}: expected {attestation.PREDICATE} or "
                f"{MODEL_SIGNING}"
            ]


def _compare_resources(predicate: Any, contents: Contents) -> list[str]:
    """The same for a signature of model-signing, which may also be of other envelopes and of hidden
    files.
    """
    try:
        if predicate["serialization"]["method"] != "files":
            return ["it is not of whole files: sign with --to model-signing, or by model_signing"]
        resources = predicate["resources"]
        signed = [(each["name"], each["digest"]) for each in resources]
        if not all(each["algorithm"] == "sha256" for each in resources):
            return ["it has other digests than SHA-256, which can't be compared"]
        signed = [
            (name, digest)
            for name, digest in signed
            if name in contents.digests or not (name in ENVELOPES or name.startswith("."))
        ]
        return attestation.find_other_files(signed, contents.digests)
    except (TypeError, KeyError, AttributeError):
        return ["its predicate is not as model-signing writes it"]


def _find_signer(envelope: Envelope, signer: Signer, contents: Contents) -> str:
    """Who signed: the expected one.

    Raises:
        _OtherSigner: someone else did, or that cannot be checked.
    """
    if envelope.kind == "identity":
        return _by_identity(envelope, signer)
    assert signer.public_key is not None
    if envelope.material is not None and envelope.predicate_type == MODEL_SIGNING:
        return _by_model_signing(envelope, Path(signer.public_key), contents)
    try:
        key = read_public(signer.public_key)
    except BadInput as error:
        raise _OtherSigner(f"{envelope.name} needs an Ed25519 key: {error}") from error
    if not any(
        len(signature) == 64 and key.fits(signature, envelope.signed_bytes)
        for signature in envelope.signatures
    ):
        raise _OtherSigner(f"the key {key.fingerprint} did not sign {envelope.name} as it is")
    return f"the key {key.fingerprint}"


def _by_model_signing(envelope: Envelope, key: Path, contents: Contents) -> str:
    _require_curve(key, envelope.name)
    verifying = require_package("model_signing.verifying")
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(sys.stderr):
        copy = Path(place) / "model.sig"
        copy.write_bytes(envelope.content)  # what was compared, whatever the file is by now
        try:
            config = verifying.Config().use_elliptic_key_verifier(public_key=key)
            config.set_ignore_unsigned_files(True).verify(contents.path, copy)
        except Exception as error:  # of several packages
            reason = first_line(error) or type(error).__name__
            raise _OtherSigner(
                f"model-signing refuses {envelope.name} with {key.name}: {reason[:120]}"
            ) from error
    return f"the key in {key.name}, SHA-256 {hashlib.sha256(bounded(key, LARGEST)).hexdigest()}"


def _require_curve(path: Path, name: str) -> None:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(bounded(path, LARGEST))
    except Exception:  # of several kinds, by what is wrong with the file
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        raise _OtherSigner(f"{name} needs a public key on P-256, P-384 or P-521, in PEM form")


def _by_identity(envelope: Envelope, signer: Signer) -> str:
    models = require_package("sigstore.models")
    verifier, policy = require_package("sigstore.verify"), require_package("sigstore.verify.policy")
    trusted = read_trust(signer.trust_config)
    whom = policy.Identity(identity=signer.identity, issuer=signer.identity_provider)
    try:
        bundle = models.Bundle.from_json(envelope.content)
        kind, payload = verifier.Verifier(trusted_root=trusted.trusted_root).verify_dsse(
            bundle, whom
        )
    except Exception as error:  # of several packages
        reason = first_line(error) or type(error).__name__
        raise _OtherSigner(f"Sigstore refuses {envelope.name}: {reason[:120]}") from error
    if (kind, payload) != (attestation.PAYLOAD, envelope.payload):
        raise _OtherSigner(f"Sigstore reads another statement in {envelope.name}")
    return f"{signer.identity} (vouched for by {signer.identity_provider}){_logged(envelope)}"


def _logged(envelope: Envelope) -> str:
    """When the signature was logged: a time that the log has signed, and that was verified."""
    material = envelope.material or {}
    for entry in material.get("tlogEntries", []):
        if entry.get("inclusionPromise") and entry.get("integratedTime"):
            at = datetime.fromtimestamp(int(entry["integratedTime"]), UTC)
            return f", logged at {at:%Y-%m-%d %H:%M:%S} UTC"
    return ", logged; the time is in its time stamp"


def read_trust(config: str | Path | None) -> Any:
    """The keys of a Sigstore: of your own, by its configuration, or of the public one; without a
    network those that the package sigstore came with.

    Raises:
        BadInput: no readable configuration, or the package is missing.
    """
    models = require_package("sigstore.models")
    if config is None:
        try:
            return models.ClientTrustConfig.production()
        except Exception:  # no network: the copy of the package, which may be older
            return models.ClientTrustConfig.production(offline=True)
    try:
        return models.ClientTrustConfig.from_json(bounded(Path(config), _LARGEST).decode())
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"{config} is not a trust configuration of Sigstore: {first_line(error)[:80]}. "
            "Expected clienttrustconfig.v0.1+json"
        ) from error


def require_package(name: str) -> Any:
    """A module of an optional package.

    Raises:
        BadInput: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        extra = _EXTRAS.get(package, "signing")
        raise BadInput(
            f"{package} is needed for this, and {error.name} is not installed: pip "
            f"install 'privlearn[{extra}]'"
        ) from error
