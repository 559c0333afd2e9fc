"""An in-toto statement: alone, in a DSSE envelope with a key's signature, or in a Sigstore bundle
with an identity's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from privlearn._storage import canonical
from privlearn.errors import BadInput, first_line
from privlearn.publishing.attestation import PAYLOAD, make_statement
from privlearn.publishing.envelopes import encode, read_trust, require_package
from privlearn.publishing.form import ExportForm, Published, Signature
from privlearn.publishing.signing import read_private


def write(published: Published, signature: Signature | None, about: Mapping[str, Any]) -> bytes:
    """The statement, signed if a signature is asked for."""
    statement = canonical(make_statement(published.certificate, published.contents.digests))
    if signature is None:
        return statement + b"\n"
    if signature.key is None:
        return _bundle(statement, signature)
    key = read_private(signature.key)
    envelope = {
        "payload": base64.b64encode(statement).decode(),
        "payloadType": PAYLOAD,
        "signatures": [
            {
                "keyid": key.public.fingerprint,
                "sig": base64.b64encode(key.sign(encode(statement))).decode(),
            }
        ],
    }
    return json.dumps(envelope).encode() + b"\n"


def _bundle(statement: bytes, signature: Signature) -> bytes:
    """A Sigstore bundle of the statement, by the identity of a workflow that runs this, or of who
    signs in with a browser.
    """
    dsse, oidc, sign = map(require_package, ("sigstore.dsse", "sigstore.oidc", "sigstore.sign"))
    trust = read_trust(signature.trust_config)
    try:
        workflow = oidc.detect_credential()
        if workflow:
            token = oidc.IdentityToken(workflow)
        else:
            token = oidc.Issuer(trust.signing_config.get_oidc_url()).identity_token()
        with sign.SigningContext.from_trust_config(trust).signer(token) as signer:
            return str(signer.sign_dsse(dsse.Statement(statement)).to_json()).encode() + b"\n"
    except Exception as error:  # of several packages, and of the network
        raise BadInput(
            f"Sigstore did not sign: {first_line(error)[:120] or type(error).__name__}. It needs a "
            "network; with sign= a key signs without one"
        ) from error


FORM = ExportForm(write, signed=True)
