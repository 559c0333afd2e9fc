"""An in-toto Statement (v1) about a published folder: its files, by SHA-256, are the subjects, and
what the certificate claims is the predicate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privlearn._storage import canonical
from privlearn.publishing.certificate import FORMAT, VERSION

#: What the specification of in-toto calls a statement, and the media type of its JSON.
STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD = "application/vnd.in-toto+json"
#: What the predicate is: a claim of a certificate.
PREDICATE = "urn:privlearn:attestation:1"
_FIELDS = {"_type", "subject", "predicateType", "predicate"}


def make_statement(certificate: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """The statement about a folder.

    Args:
        certificate: of the folder.
        digests: SHA-256 of each file, the certificate's included, by name.
    """
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": name, "digest": {"sha256": digests[name]}} for name in sorted(digests)
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "format": FORMAT,
            "version": VERSION,
            "claim": certificate["claim"],
            "randomness": certificate["randomness"],
            "digests": certificate["digests"],
        },
    }


def find_differences(
    statement: Mapping[str, Any], certificate: Mapping[str, Any], digests: Mapping[str, str]
) -> list[str]:
    """What a statement says that is not so of a folder, each a sentence; arguments as above."""
    expected = make_statement(certificate, digests)
    if set(statement) != _FIELDS:
        return [f"the statement has other fields than {', '.join(sorted(_FIELDS))}"]
    try:
        subjects = [(each["name"], each["digest"]["sha256"]) for each in statement["subject"]]
        problems = find_other_files(subjects, digests)
        if statement["subject"] != [
            {"name": name, "digest": {"sha256": value}} for name, value in subjects
        ]:
            problems.append("the subjects have other fields than name and digest, a SHA-256")
    except (TypeError, KeyError):
        problems = ["the subjects are no list of names with a SHA-256 each"]
    predicate = statement["predicate"]
    if not isinstance(predicate, dict) or set(predicate) != set(expected["predicate"]):
        return [*problems, "the predicate has other fields than privlearn writes"]
    return problems + [
        f"the predicate's {part} is not that of privacy.json: the statement is of another "
        "certificate, or one of both was changed"
        for part, value in expected["predicate"].items()
        if not _is_same(predicate[part], value)
    ]


def find_other_files(subjects: list[tuple[str, str]], digests: Mapping[str, str]) -> list[str]:
    """Where names and SHA-256 that were signed are not those of the files."""
    signed = dict(subjects)
    problems = [] if len(signed) == len(subjects) else ["a file is named twice"]
    for name in sorted(digests.keys() - signed.keys()):
        problems.append(f"{name} is not among the signed files")
    for name in sorted(map(str, signed.keys() - digests.keys())):
        problems.append(f"the signed file {name[:60]} is not in the folder")
    for name in sorted(digests.keys() & signed.keys()):
        if digests[name] != signed[name]:
            problems.append(f"{name} is not the signed file: its SHA-256 is another")
    return problems


def _is_same(value: Any, expected: Any) -> bool:
    """Whether two JSON values are equal; Protocol Buffers write whole numbers as 2.0."""
    try:
        return canonical(_with_floats(value)) == canonical(_with_floats(expected))
    except (OverflowError, TypeError, ValueError):
        return False


def _with_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_floats(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_floats(inner) for inner in value]
    return float(value) if type(value) is int else value
