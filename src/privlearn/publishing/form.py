"""A form that others read a certificate in, and the way into each: `export`.

A form states what a published folder certifies, and nothing else. The folder has to verify.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast, final

from privlearn._checks import checked, one_of
from privlearn.core.accounting.events import Event, from_json
from privlearn.core.accounting.guarantee import Adjacency, Guarantee
from privlearn.core.plan import AbstractPlan
from privlearn.errors import BadInput, CertificateMismatch
from privlearn.publishing import forms
from privlearn.publishing.certificate import parse, read_plan
from privlearn.publishing.folder import CERTIFICATE, ENVELOPES, Contents, read
from privlearn.publishing.verify import Verification, verify_contents


@final
@dataclass(frozen=True)
class Published:
    """A folder that verified.

    Attributes:
        contents: its files.
        certificate: as it was read.
        plan: of the run.
        event: what the claim is about.
        guarantee: the claim.
        verification: what was computed again.
    """

    contents: Contents
    certificate: dict[str, Any]
    plan: AbstractPlan
    event: Event
    guarantee: Guarantee
    verification: Verification


@final
@dataclass(frozen=True)
class Signature:
    """How a form is signed.

    Attributes:
        key: a private key, a file; None: none.
        keyless: sign with an identity that Sigstore certifies for this signature, and logs.
        trust_config: of a Sigstore of your own, a file; None: the public one.
    """

    key: str | Path | None = None
    keyless: bool = False
    trust_config: str | Path | None = None


@final
@dataclass(frozen=True)
class ExportForm:
    """A form.

    Attributes:
        write: its file's bytes, of a folder, a signature (None: none) and what the publisher adds.
        signed: whether it can be signed.
        fields: what the publisher may add, by name, and what it is.
    """

    write: Callable[[Published, Signature | None, Mapping[str, Any]], bytes]
    signed: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)


def find_form(name: str) -> ExportForm:
    """A form by its name.

    Raises:
        BadInput: there is none of that name.
    """
    one_of("form", name, forms.form_names())
    return cast(ExportForm, import_module(f"{forms.__name__}.{name.replace('-', '_')}").FORM)


@checked
def export(
    folder: str | Path,
    form: str,
    *,
    sign: str | Path | None = None,
    keyless: bool = False,
    trust_config: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
) -> bytes:
    """What a published folder certifies, in the form that others read.

    Args:
        folder: what `publish` wrote. It has to verify.
        form: `in-toto`, `model-signing`, `cyclonedx` or `registry`.
        sign: a private key, a file: Ed25519 for `in-toto`, on a NIST curve for `model-signing`.
        keyless: sign with an identity that Sigstore certifies and logs, in place of a key; this
            needs a network.
        trust_config: of a Sigstore of your own, a file.
        about: what the certificate does not hold and the form has a field for, by name.

    Returns:
        The bytes of a file.

    Raises:
        BadInput: no such form, key or field, or a package is missing.
        CertificateMismatch: the folder does not verify.
    """
    chosen, about = find_form(form), dict(about or {})
    signature = Signature(sign, keyless, trust_config) if sign is not None or keyless else None
    if sign is not None and keyless:
        raise BadInput("sign= and keyless= are two ways to sign: give one of them")
    if trust_config is not None and not keyless:
        raise BadInput("trust_config= is of a Sigstore: add keyless=True, or leave it out")
    if signature is not None and not chosen.signed:
        raise BadInput(f"the form {form} holds no signature: leave out sign= and keyless=")
    if strange := sorted(set(about) - set(chosen.fields)):
        known = ", ".join(chosen.fields) or "nothing"
        raise BadInput(
            f"about= has {', '.join(map(str, strange))[:80]}: the form {form} takes {known}"
        )
    return chosen.write(_read_verified(folder), signature, about)


def require_place(folder: str | Path, out: str | Path) -> None:
    """Refuse a file in the published folder that would be a stranger there.

    Raises:
        BadInput: it lies in the folder, and is no envelope by its name.
    """
    out = Path(out)
    if out.name not in ENVELOPES and out.absolute().parent.resolve() == Path(folder).resolve():
        raise BadInput(
            f"{out} lies in the published folder, which holds no other files than the certified "
            f"ones and {', '.join(sorted(ENVELOPES))}: choose another place"
        )


def _read_verified(folder: str | Path) -> Published:
    contents = read(folder)
    verification = verify_contents(contents)
    if not verification.ok:
        raise CertificateMismatch(
            f"{folder} does not verify: {verification.problems[0]}. Export an unchanged copy"
        )
    if around := ENVELOPES & set(contents.strangers):
        # warnings of signatures are no part of the certificate
        others = tuple(name for name in contents.strangers if name not in around)
        verification = verify_contents(replace(contents, strangers=others))
    certificate = parse(contents.files[CERTIFICATE])
    claim, plan = certificate["claim"], read_plan(certificate["plan"])
    guarantee = Guarantee(
        claim["epsilon"],
        claim["delta"],
        Adjacency(claim["adjacency"]),
        claim["method"],
        rho=claim["rho"],
        group_size=plan.unit.group_size,
        rows_per_person=plan.unit.rows_per_person,
    )
    event = from_json(certificate["events"])
    return Published(contents, certificate, plan, event, guarantee, verification)
