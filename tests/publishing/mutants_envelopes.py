"""Planted bugs in what is compared of signatures around a folder, each of which a named check must
catch.
"""

from __future__ import annotations

import pytest

from privlearn.publishing import attestation, envelopes, form, verify
from privlearn.publishing.forms import cyclonedx, registry
from tests.publishing import checks_envelopes as envelope_checks
from tests.support.mutant import Mutant, suite_of

FILES = "check_every_signed_file_is_compared"
PREDICATE = "check_every_part_of_the_predicate_is_compared"
SIGNED = "check_another_key_or_an_edited_envelope_is_refused"
READ = "check_files_that_are_no_envelopes_are_refused"
STATED = "check_forms_state_the_claim_and_nothing_better"
RESOURCES = "check_signatures_of_model_signing_are_of_every_file"
MUTANTS = [
    Mutant(
        "digests of subjects are not compared",
        attestation.find_other_files,
        "digests[name] != signed[name]",
        "False",
        FILES,
    ),
    Mutant(
        "a file may be left out of the subjects",
        attestation.find_other_files,
        "sorted(digests.keys() - signed.keys())",
        "()",
        FILES,
    ),
    Mutant(
        "subjects may be of files that are not there",
        attestation.find_other_files,
        "sorted(map(str, signed.keys() - digests.keys()))",
        "()",
        FILES,
    ),
    Mutant(
        "a subject may be there twice",
        attestation.find_other_files,
        "len(signed) == len(subjects)",
        "True",
        FILES,
    ),
    Mutant(
        "subjects may have more digests",
        attestation.find_differences,
        'if statement["subject"] != [',
        "if [] and [",
        FILES,
    ),
    Mutant(
        "the predicate is not compared with the certificate",
        attestation.find_differences,
        "if not _is_same(predicate[part], value)",
        "if False",
        PREDICATE,
    ),
    Mutant(
        "only the claim is compared",
        attestation.find_differences,
        'in expected["predicate"].items()',
        'in [("claim", expected["predicate"]["claim"])]',
        PREDICATE,
    ),
    Mutant(
        "truth values are numbers",
        attestation._with_floats,
        "type(value) is int",
        "isinstance(value, int)",
        "check_whole_numbers_may_be_written_with_a_point",
    ),
    Mutant(
        "more fields in the predicate pass",
        attestation.find_differences,
        'set(predicate) != set(expected["predicate"])',
        'not set(predicate) >= set(expected["predicate"])',
        PREDICATE,
    ),
    Mutant(
        "a statement of anything passes",
        envelopes._compare,
        "case text:",
        "case text if text:\n            return []\n        case text:",
        "check_the_kind_of_statement_is_compared",
    ),
    Mutant(
        "the type of the payload is not compared",
        envelopes.read_envelope,
        'if data["payloadType"] != attestation.PAYLOAD:',
        "if False:",
        "check_the_kind_of_statement_is_compared",
    ),
    Mutant(
        "the signature is of the payload alone",
        envelopes.encode,
        'return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)',
        "return payload",
        "check_an_envelope_is_accepted_as_the_specification_of_dsse_says",
    ),
    Mutant(
        "any signature fits",
        envelopes._find_signer,
        "key.fits(signature, envelope.signed_bytes)",
        "True",
        SIGNED,
    ),
    Mutant(
        "only the first signature is looked at",
        envelopes._find_signer,
        "for signature in envelope.signatures",
        "for signature in envelope.signatures[:1]",
        SIGNED,
    ),
    Mutant(
        "an envelope that is asked for may be missing",
        envelopes._check_signers,
        "if missing:",
        "if missing and envelopes:",
        "check_a_missing_envelope_is_refused",
    ),
    Mutant(
        "an envelope of the folder stands in for the one that was named",
        envelopes.check_envelopes,
        "envelopes = _read_all(named, attested, contents, certificate)",
        "envelopes += _read_all(named, attested, contents, certificate)",
        "check_the_envelope_that_was_named_has_to_be_signed",
    ),
    Mutant(
        "an envelope of the folder is not compared where another is named",
        envelopes.check_envelopes,
        "envelopes = _read_all(files, attested, contents, certificate)",
        "envelopes = [] if named else _read_all(files, attested, contents, certificate)",
        "check_the_envelope_that_was_named_has_to_be_signed",
    ),
    Mutant(
        "envelopes are looked at only where one is asked for",
        verify._around,
        "signer is None and not ENVELOPES & set(contents.strangers)",
        "signer is None",
        "check_envelopes_are_compared_without_being_asked_for",
    ),
    Mutant(
        "keys that stand there twice pass",
        envelopes.read_envelope,
        "statement = loads(payload)",
        "import json\n        statement = json.loads(payload)",
        READ,
    ),
    Mutant(
        "other spellings of base64 pass",
        envelopes._decode,
        "base64.b64encode(raw).decode() != text",
        "False",
        READ,
    ),
    Mutant(
        "an envelope may hold more",
        envelopes.read_envelope,
        "set(data) != _DSSE_FIELDS",
        "not set(data) >= _DSSE_FIELDS",
        READ,
    ),
    Mutant(
        "all files whose names begin like an envelope's pass",
        verify._strangers,
        "if name not in ENVELOPES",
        'if not name.lower().startswith(("model.sig", "privacy.intoto"))',
        "check_other_names_are_strangers",
    ),
    Mutant(
        "model-signing may leave out files",
        envelopes._compare_resources,
        "return attestation.find_other_files(signed, contents.digests)",
        "return attestation.find_other_files(signed, dict(signed) | {name: digest for name, "
        "digest in contents.digests.items() if name in dict(signed)})",
        RESOURCES,
    ),
    Mutant(
        "model-signing may sign with other digests",
        envelopes._compare_resources,
        'each["algorithm"] == "sha256"',
        "True",
        RESOURCES,
    ),
    Mutant(
        "the registry's epsilon is rounded",
        registry._privacy,
        '"epsilon": claim["epsilon"]',
        '"epsilon": round(claim["epsilon"], 2)',
        STATED,
    ),
    Mutant(
        "the registry's entry does not say what weakens the claim",
        registry._privacy,
        "*published.verification.warnings",
        "*[]",
        STATED,
    ),
    Mutant(
        "the bill's epsilon is rounded",
        cyclonedx.make_model_card,
        'repr(claim["epsilon"])',
        'str(round(claim["epsilon"], 2))',
        STATED,
    ),
    Mutant(
        "the bill does not say whether a seed was used",
        cyclonedx.make_model_card,
        "*published.verification.warnings",
        "*[]",
        STATED,
    ),
    Mutant(
        "a folder that does not verify is exported",
        form._read_verified,
        "if not verification.ok:",
        "if False:",
        "check_a_folder_that_does_not_verify_is_not_exported",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[TypeError, ValueError, AttributeError, KeyError]
)


@pytest.fixture(scope="module", autouse=True)
def _published() -> None:
    """The folder is published by the code as it is, before anything is planted."""
    envelope_checks.make_folder()
