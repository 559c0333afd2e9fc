"""Whether a published folder is what a training makes, once an auditor made its result again."""

from __future__ import annotations

import json
import math
from typing import Any

from privlearn._checks import printable
from privlearn._storage import digest, loads
from privlearn.publishing import model
from privlearn.publishing.certificate import HEAD, PAID
from privlearn.publishing.folder import CONFIG, Contents
from privlearn.runs.result import Result

#: Facts that no training of one process makes again: the publisher's, those of its ledger, and how
#: many processes there were.
ELSEWHERE = frozenset({PAID, HEAD, "public_start", "processes"})


def other_certificate(
    certificate: dict[str, Any], result: Result, taken: int, tolerance: float
) -> tuple[list[str], list[str]]:
    """What of a certificate is not as the training makes it, and what was not compared.

    Args:
        certificate: as `certificate.parse` gives it.
        result: what the training made.
        taken: how many steps the recorded run took.
        tolerance: numbers may differ by this share.
    """
    facts = certificate["facts"] if isinstance(certificate["facts"], dict) else {}
    problems = []
    if facts.get("steps") != taken:
        problems.append(
            f"the certificate states {str(facts.get('steps'))[:40]} steps, and the transcript has "
            f"{taken}"
        )
    if digest(result.plan.to_json()) != digest(certificate["plan"]):
        problems.append(
            "the certificate states another plan than that of the training, so that its epsilon is "
            "of another run"
        )
    expected = {"method": result.method, **result.facts}
    elsewhere = ELSEWHERE & {*expected, *facts}
    for name in sorted({*expected, *facts} - elsewhere):
        if (
            name not in expected
            or name not in facts
            or not alike(expected[name], facts[name], tolerance)
        ):
            problems.append(
                f"the certificate has another fact {printable(name)[:60]!r} than the training"
            )
    randomness = "seeded" if result.seeded else "operating system"
    if certificate["randomness"] != randomness:
        problems.append(
            f"the certificate does not state the randomness of the training, {randomness!r}"
        )
    return problems, [f"the fact {name!r}" for name in sorted(elsewhere)]


def other_configuration(contents: Contents, result: Result) -> tuple[list[str], list[str]]:
    """What of a configuration does not describe the model of the training, and what was not
    compared.
    """
    try:
        published = loads(contents.files[CONFIG])
    except (KeyError, ValueError):
        published = None
    if not isinstance(published, dict):
        return [f"{CONFIG} cannot be read"], []
    expected = json.loads(json.dumps(model.describe(result, result.model_spec, result.classes)))
    # How the network is built is the publisher's word where the training does not build it by a
    # name.
    unsaid = {
        name
        for name in ("model", "classes")
        if expected[name] is None and published.get(name) is not None
    }
    names = sorted(set(expected) - unsaid)
    other = [
        name
        for name in names
        if name not in published or not alike(expected[name], published[name])
    ]
    left = [printable(name)[:40] for name in sorted((set(published) - set(expected)) | unsaid)]
    return [f"{CONFIG} has another {name!r} than the model of the training" for name in other], left


def alike(ours: Any, theirs: Any, tolerance: float = 0.0) -> bool:
    """Whether plain values agree; numbers with a fraction within a share."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return set(ours) == set(theirs) and all(
            alike(ours[name], theirs[name], tolerance) for name in ours
        )
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(
            alike(a, b, tolerance) for a, b in zip(ours, theirs, strict=True)
        )
    if tolerance and isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=tolerance)
    return bool(ours == theirs) and isinstance(ours, bool) == isinstance(theirs, bool)


def transcript_of(certificate: dict[str, Any]) -> Any:
    """What a certificate states of the run's transcript; None: nothing."""
    facts = certificate["facts"]
    return facts.get("transcript") if isinstance(facts, dict) else None
