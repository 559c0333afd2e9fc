"""The signature of OpenSSF model signing over all files of a folder, which that package's own
commands verify.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privlearn.errors import BadInput, first_line
from privlearn.publishing.envelopes import require_package
from privlearn.publishing.folder import ENVELOPES
from privlearn.publishing.form import ExportForm, Published, Signature
from privlearn.publishing.signing import PASSPHRASE


def write(published: Published, signature: Signature | None, about: Mapping[str, Any]) -> bytes:
    """The signature, a Sigstore bundle."""
    if signature is None:
        raise BadInput(
            "the form model-signing is a signature: give sign=, a key on the curve P-256, P-384 or "
            "P-521, or keyless= to sign with an identity"
        )
    hashing, signing = map(require_package, ("model_signing.hashing", "model_signing.signing"))
    ignored = sorted(ENVELOPES & set(published.contents.strangers) | {"model.sig"})
    config = signing.Config().set_hashing_config(
        hashing.Config().set_ignored_paths(paths=ignored, ignore_git_paths=True)
    )
    secret = os.environ.get(PASSPHRASE, "").encode(errors="surrogateescape") or None
    trust = None if signature.trust_config is None else Path(signature.trust_config)
    try:
        if signature.key is None:
            config.use_sigstore_signer(use_ambient_credentials=True, trust_config=trust)
        else:
            config.use_elliptic_key_signer(private_key=signature.key, password=secret)
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "model.sig"
            config.sign(published.contents.path, out)
            return out.read_bytes() + b"\n"
    except Exception as error:  # of several packages, and of the network
        advice = (
            "It needs a network; with sign= a key signs without one"
            if signature.key is None
            else "Expected a PEM key on P-256, P-384 or P-521, as `openssl ecparam -name "
            "prime256v1 -genkey -noout` makes; of an encrypted one the passphrase in "
            f"{PASSPHRASE}"
        )
        reason = first_line(error)[:80] or type(error).__name__
        if isinstance(error, AttributeError):  # a key of another kind has no curve
            reason = "the key is on no such curve"
        raise BadInput(f"model-signing did not sign: {reason}. {advice}") from error


FORM = ExportForm(write, signed=True)
