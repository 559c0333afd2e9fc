"""This file checks a published model: anyone can run it, without the data and without torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from privlearn._checks import checked
from privlearn._display import Described, Summary
from privlearn._storage import digest, loads
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Event, from_json
from privlearn.core.accounting.guarantee import Adjacency, Guarantee, PrivacyUnit
from privlearn.core.plan import AbstractPlan
from privlearn.core.transform import public_features
from privlearn.errors import BadInput, PrivlearnError
from privlearn.publishing.certificate import (
    ADAPTIVE,
    ALONE,
    FIXED,
    PARTS,
    RANDOMNESS,
    contradictions,
    header,
    large_delta,
    margin_of_older_prices,
    page_head,
    parse,
    read_plan,
    unpaid,
)
from privlearn.publishing.folder import (
    CARD,
    CERTIFICATE,
    CONFIG,
    ENVELOPES,
    OPTIONAL,
    PAGE,
    Contents,
    read,
)
from privlearn.publishing.keys import PublicKey, read_public, signer_of
from privlearn.publishing.stated_shapes import unfit_facts, unfit_files

if TYPE_CHECKING:
    from privlearn.publishing.envelopes import Signer

#: Relative difference below which a recomputed epsilon confirms the stated one.
_AGREE = 1e-6
_CLAIMS = {"epsilon", "delta", "adjacency", "method", "rho", "unit"}
#: What a card says of who loads the model, an adapter's base, a licence and test figures: no part
#: of the claim.
_LIBRARY = re.compile(
    rb"\A(---\nlibrary_name: )(?:privlearn|transformers|peft(?:\nbase_model: [\w./-]+)?)"
    rb"(?:\nlicense: [a-z0-9.-]{1,40})?"
    rb'(?:\nmodel-index: \[{"name": "model", "results": \[{"task": {"type": "[a-z-]+"}, '
    rb'"dataset": {"type": "private", "name": "test rows"}, "metrics": '
    rb'\[(?:(?:, )?{"type": "\w+", "value": [0-9.e+-]+})+\]}\]}\])?(?=\n)'
)


@final
@dataclass(frozen=True, repr=False)
class Verification(Described):
    """What `verify` found. `ok` is whether the folder agrees with its certificate.

    Attributes:
        ok: no problems were found. Without the publisher's key that says nothing of who wrote the
            folder: anyone can write one that agrees with its own certificate.
        epsilon: recomputed from the events; None if that was impossible.
        delta: as stated.
        adjacency: as stated.
        method: the accountant that gives `epsilon`.
        unit: whose data `epsilon` is for; None if that could not be read.
        problems: what does not agree, each a sentence.
        warnings: what weakens the statement without contradicting it.
        signed_by: fingerprint of the key whose signature the certificate carries, if it fits; None
            without one.
        runs: what the claim is for where the ledger held other runs, in words; None where this run
            was the only one.
        run_epsilon: what this run costs by itself, then.
        attested_by: who signed the envelopes around the folder, where that was asked for.
        plan: the run's plan; None if it could not be read.
        events: what `epsilon` was recomputed from; None if that could not be read.
        claims: what each accountant that covers `events` gives, the least epsilon first.
    """

    ok: bool
    epsilon: float | None
    delta: float | None
    adjacency: str | None
    method: str | None
    unit: str | None
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    signed_by: str | None = None
    runs: str | None = None
    run_epsilon: float | None = None
    attested_by: list[str] = field(default_factory=list)
    plan: AbstractPlan | None = None
    events: Event | None = None
    claims: tuple[Guarantee, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The figures and sentences as plain values, without plan, events and claims."""
        left_out = ("plan", "events", "claims")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def _summary(self) -> Summary:
        rows = [("problem", problem) for problem in self.problems]
        if self.epsilon is not None:
            figures = (
                f"epsilon {self.epsilon:.6g} at delta {self.delta:g}, {self.adjacency} "
                f"neighbours, by {self.method}"
            )
            rows = [("guarantee" if self.ok else "its events give", figures), *rows]
        rows += [("protects", self.unit)] if self.ok and self.unit else []
        rows += [("for", self.runs)] if self.ok and self.runs else []
        signers = ", ".join(filter(None, [self.signed_by, *self.attested_by]))
        rows += [("signed by", signers or "no one: nothing says who the publisher is")]
        rows += [("warning", warning) for warning in self.warnings]
        agrees = "agrees with its certificate" if self.ok else "does not agree with its certificate"
        return Summary(f"Verification: the folder {agrees}", rows)


@checked
def verify(
    folder: str | Path, *, key: str | Path | None = None, signer: Signer | None = None
) -> Verification:
    """Recompute the guarantee, the hashes and the signature of a published model.

    Args:
        folder: what `publish` wrote.
        key: the publisher's public key, a file. The certificate must then be signed with it.
            Without it a signature, if there is one, is only checked against the key that comes
            along, which anyone could have made.
        signer: who must have signed an envelope in the folder, or beside it.

    Raises:
        BadInput: the folder, its certificate or a key cannot be read at all.
    """
    trusted = None if key is None else read_public(key)
    return verify_contents(read(folder), trusted, signer)


def verify_contents(
    contents: Contents, trusted: PublicKey | None = None, signer: Signer | None = None
) -> Verification:
    """As `verify`, for contents that were read already.

    Raises:
        BadInput: the certificate cannot be read at all.
    """
    certificate = parse(contents.files[CERTIFICATE])
    claim = certificate["claim"] if isinstance(certificate["claim"], dict) else {}
    problems, signed_by = _signature(certificate, trusted)
    problems += _find_changed_parts(certificate) + _find_changed_files(contents, certificate)
    strangers, hidden = _strangers(contents)
    contradicted, unchecked, attested_by = _around(contents, certificate, signer)
    problems += strangers + unfit_files(contents) + contradicted
    event, plan = None, None
    claims: tuple[Guarantee, ...] = ()
    try:
        event = from_json(certificate["events"])
        claims = _recompute(event, claim)
        guarantee = claims[0]
        problems += _contradictions(guarantee, claim, margin_of_older_prices(event))
        problems += _card_contradictions(contents, claim, signed_by)
        plan = read_plan(certificate["plan"])
        problems += _of_the_plan(plan, certificate, event, guarantee)
        problems += _other_features(contents, certificate)
        problems += _other_rows(contents, certificate["facts"])
    except PrivlearnError as error:
        problems.append(f"the guarantee cannot be recomputed: {error}")
    # as of logarithms and roots of numbers at the ends of their range
    except (ArithmeticError, ValueError):
        problems.append(
            "the guarantee cannot be recomputed: a number is too small or too large to compute with"
        )
    adjacency, recomputed = claim.get("adjacency"), claims[0] if claims else None
    return Verification(
        ok=not problems,
        epsilon=recomputed.epsilon if recomputed else None,
        delta=_number(claim.get("delta")),
        adjacency=adjacency if isinstance(adjacency, str) else None,
        method=recomputed.method if recomputed else None,
        unit=str(recomputed.unit) if recomputed else None,
        problems=problems,
        warnings=_warnings(certificate, recomputed) + hidden + unchecked,
        signed_by=signed_by,
        attested_by=attested_by,
        plan=plan,
        events=event,
        claims=claims,
        **_of_other_runs(claim),
    )


def _of_other_runs(claim: dict[str, Any]) -> dict[str, Any]:
    """What the claim says of other runs, if that can be read."""
    said = claim.get("ledger")
    if not isinstance(said, dict) or said.get("runs") not in (FIXED, ADAPTIVE, ALONE):
        return {}
    return {"runs": said["runs"], "run_epsilon": _number(said.get("run_epsilon"))}


def _signature(
    certificate: dict[str, Any], trusted: PublicKey | None
) -> tuple[list[str], str | None]:
    """What is wrong with the signature, and the fingerprint of the key that it fits."""
    try:
        signer = signer_of(certificate)
    except BadInput as error:
        return [str(error)], None
    if signer is None:
        missing = (
            "the certificate is not signed, and a signature with the key {} was asked for: get "
            "the signed copy"
        )
        return ([missing.format(trusted.fingerprint)] if trusted else []), None
    if trusted and signer.raw != trusted.raw:
        other = f"it is signed with the key {signer.fingerprint}, and not with the one that was "
        return [f"{other}given, {trusted.fingerprint}"], signer.fingerprint
    return [], signer.fingerprint


def _find_changed_parts(certificate: dict[str, Any]) -> list[str]:
    digests = certificate["digests"]
    if not isinstance(digests, dict) or set(digests) != set(PARTS):
        return [f"{CERTIFICATE} has no digests of its parts {', '.join(PARTS)}"]
    known = certificate["randomness"] in RANDOMNESS
    problems = [] if known else [f"{CERTIFICATE} does not say whether the run was seeded"]
    return problems + [
        f"part {part!r} of {CERTIFICATE} was changed after publishing: its digest does not match"
        for part in PARTS
        if digests[part] != digest(certificate[part])
    ]


def _find_changed_files(contents: Contents, certificate: dict[str, Any]) -> list[str]:
    files = certificate["files"]
    expected = sorted(contents.names, reverse=True)
    if not isinstance(files, dict) or set(files) != set(expected):
        gone = sorted(OPTIONAL & set(files) - contents.names) if isinstance(files, dict) else []
        if gone and set(files) == {*expected, *gone}:
            return [*(f"{name} is missing" for name in gone), *contents.problems]
        said = f"{', '.join(expected[:-1])} and {expected[-1]}"
        return [f"{CERTIFICATE} does not speak of exactly {said}", *contents.problems]
    return [
        *contents.problems,
        *(
            f"{name} is not the file that was certified: its SHA-256 does not match"
            for name in expected
            if name in contents.digests and files[name] != contents.digests[name]
        ),
    ]


def _recompute(event: Event, claim: dict[str, Any]) -> tuple[Guarantee, ...]:
    delta = claim.get("delta")
    if isinstance(delta, bool) or not isinstance(delta, int | float):
        raise BadInput(f"the stated delta is {str(delta)[:40]}: expected a number in (0, 1)")
    unit = PrivacyUnit(claim.get("group_size", 1), claim.get("rows_per_person"))
    adjacency = Adjacency.parse(str(claim.get("adjacency"))[:40])
    claims = accountant.guarantees(event, adjacency, delta, unit.group_size)
    return tuple(replace(each, rows_per_person=unit.rows_per_person) for each in claims)


def _contradictions(guarantee: Guarantee, claim: dict[str, Any], more: float) -> list[str]:
    expected = _CLAIMS | set(guarantee.unit.figures()) | ({"ledger"} & set(claim))
    if set(claim) != expected:
        return [f"the claim has the fields {sorted(claim)}: expected {sorted(expected)}"]
    problems = []
    if not _bears_out(guarantee.epsilon, claim["epsilon"], more):
        problems.append(
            f"the events give epsilon {guarantee.epsilon:.6g} at delta {guarantee.delta:g}, and "
            f"the certificate states {str(claim['epsilon'])[:40]}"
        )
    if claim["rho"] != guarantee.rho and not (
        guarantee.rho is not None and _agrees(claim["rho"], guarantee.rho)
    ):
        problems.append(
            f"the events give rho {guarantee.rho}, and the certificate states "
            f"{str(claim['rho'])[:40]}"
        )
    for key, true in {"unit": str(guarantee.unit), "method": guarantee.method}.items():
        if claim[key] != true:
            problems.append(
                f"the certificate states {key} {str(claim[key])[:60]!r}: for these events it is "
                f"{true!r}"
            )
    return problems


def _bears_out(true: float, claimed: Any, more: float) -> bool:
    """Whether a stated epsilon is the price, or exceeds it by the share `more` at most."""
    return _agrees(claimed, true) or (
        isinstance(claimed, float) and true <= claimed <= true * (1 + more)
    )


def _agrees(claimed: Any, true: float) -> bool:
    if isinstance(claimed, bool) or not isinstance(claimed, int | float) or abs(claimed) > 1e300:
        return False
    return math.isclose(claimed, true, rel_tol=_AGREE, abs_tol=1e-12)


def _card_contradictions(
    contents: Contents, claim: dict[str, Any], signed_by: str | None
) -> list[str]:
    """The heads of both cards must repeat the claim and name the key. What follows the heads is
    not read.
    """
    if not set(claim) >= _CLAIMS:
        return []  # reported already
    figures = (*(claim[name] for name in ("epsilon", "delta", "adjacency", "unit")), signed_by)
    claim_text = ", ".join(
        f"{name} {str(claim[name])[:40]}" for name in ("epsilon", "delta", "adjacency")
    )
    return [
        f"{name} does not begin with what is certified: {claim_text}, signed by "
        f"{signed_by or 'no one'}"
        for name, head in ((CARD, header(*figures)), (PAGE, page_head(*figures)))
        if name in contents.files
        and not _LIBRARY.sub(rb"\1privlearn", contents.files[name], count=1).startswith(
            head.encode(errors="replace")
        )
    ]


def _other_features(contents: Contents, certificate: dict[str, Any]) -> list[str]:
    """The public features that the run is said to have had must be those in front of the
    network.
    """
    facts = certificate["facts"]
    try:
        certified = [_identity(part) for part in public_features(facts)]
    except (KeyError, TypeError, AttributeError):
        return [f"the facts in {CERTIFICATE} do not say what the public features are"]
    try:
        transforms = loads(contents.files[CONFIG])["transforms"]
        configured = [_identity(part) for part in transforms if "spec" in part]
    except (ValueError, KeyError, TypeError, AttributeError):
        # what is wrong with it is reported already, or when a model is to be built from it
        configured = []
    if configured == certified:
        return []
    return [
        (
            f"{CERTIFICATE} states other public features than {CONFIG}: {str(certified)[:80]} and "
            f"{str(configured)[:80]}"
        )
    ]


def _other_rows(contents: Contents, facts: Any) -> list[str]:
    """Released rows must be those that are stated, and the other way round."""
    claims = facts if isinstance(facts, dict) else {}
    if contents.rows is None and "released_rows" not in claims:
        return []
    from privlearn.publishing import rows_file  # for the few folders that have rows

    return rows_file.contradictions(contents.rows, claims)


def _identity(features: dict[str, Any]) -> tuple[str, ...]:
    """What public features go by: kind and spec, and the digest of an encoder that is not
    privlearn's.
    """
    return (str(features["kind"]), str(features["spec"]), str(features.get("digest", "")))


def _of_the_plan(
    plan: AbstractPlan, certificate: dict[str, Any], event: Event, guarantee: Guarantee
) -> list[str]:
    """What is wrong with the plan: its events must be those of the certificate, or go together with
    what is said of other runs; it must be for the neighbours that are claimed; and the facts of the
    run must follow from it.
    """
    facts = certificate["facts"]
    if not isinstance(facts, dict):
        return [f"the facts in {CERTIFICATE} are not a table of fields"]
    planned = plan.event()
    problems = contradictions(certificate["claim"], event, planned, guarantee)
    problems += unpaid(certificate["facts"], event, planned)
    if (plan.neighbours, plan.unit) != (guarantee.adjacency, guarantee.unit):
        problems.append(
            f"the plan is for {plan.neighbours} neighbours and protects {plan.unit}: the claim is "
            "another"
        )
    if plan.budget is not None and not plan.budget.covers(
        plan.budget.spent(planned, plan.neighbours)
    ):
        problems.append(
            f"the plan's events cost more than the {plan.budget} that it is said to be calibrated "
            "to"
        )
    problems += unfit_facts(plan, facts)
    try:
        return problems + plan.follows(facts)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
        said = f": {error}" if isinstance(error, PrivlearnError) else ""
        return [*problems, f"the facts in {CERTIFICATE} are not those of a run of its plan{said}"]


def _around(
    contents: Contents, certificate: dict[str, Any], signer: Signer | None
) -> tuple[list[str], list[str], list[str]]:
    """Problems and warnings of signatures around the folder, and who signed."""
    if signer is None and not ENVELOPES & set(contents.strangers):
        return [], [], []
    from privlearn.publishing import envelopes  # for the few folders that have any

    return envelopes.check_envelopes(contents, certificate, signer)


def _strangers(contents: Contents) -> tuple[list[str], list[str]]:
    """What is wrong with files that the certificate does not speak of, and what is odd about the
    hidden ones.

    Another library may load any file of a folder, such as an adapter. No loader reads hidden files,
    which file systems, version control and download caches leave.
    """
    names = [name for name in contents.strangers if name not in ENVELOPES]
    hidden = [name for name in names if name.startswith(".")]
    others = [name for name in names if not name.startswith(".")]
    strange = _also_holds(others, "another library might load them. Move them to another folder")
    return strange, _also_holds(hidden, "no loader reads hidden files")


def _also_holds(names: list[str], more: str) -> list[str]:
    if not names:
        return []
    listed = f"{', '.join(names[:5])}{' and more' if len(names) > 5 else ''}"
    return [f"the folder also holds {listed}, not in the certificate: {more}"]


def _number(value: Any) -> float | None:
    """`value` if it is a finite number: JSON has no others."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _warnings(certificate: dict[str, Any], guarantee: Guarantee | None) -> list[str]:
    warnings = []
    if certificate.get("randomness") == "seeded":
        warnings.append(
            "the run used a fixed seed: anyone who knows the seed can take the noise off the "
            "weights, and then nothing is protected"
        )
    facts, claim = certificate.get("facts"), certificate.get("claim")
    if not isinstance(facts, dict) or not isinstance(claim, dict) or guarantee is None:
        return warnings
    if isinstance(claim.get("ledger"), dict) and claim["ledger"].get("runs") == ALONE:
        warnings.append(
            "the guarantee is for this run alone: other runs were made on the same data, perhaps "
            "chosen after earlier results, and nothing limits what they tell together"
        )
    if large := large_delta(facts, guarantee.delta):
        warnings.append(large)
    return warnings
