"""Named checks of signatures around a published folder; mutations must make them fail."""

from __future__ import annotations

import base64
import copy
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import privlearn as pv
from privlearn.errors import BadInput, CertificateMismatch
from privlearn.publishing import attestation, envelopes, form, signing
from privlearn.publishing.envelopes import Signer
from privlearn.publishing.forms import cyclonedx, registry
from privlearn.publishing.verify import Verification
from tests.publishing import checks as publishing_checks
from tests.support.checks import check, must_raise

#: Where an envelope lies in a folder.
NAME = "privacy.intoto.jsonl"


@lru_cache(maxsize=1)
def make_folder() -> tuple[Path, Path, Path]:
    """A published folder, the key that signs it, and another key; not to be changed."""
    place = Path(tempfile.mkdtemp(prefix="envelopes-"))
    keys = (publishing_checks.key_in(place), publishing_checks.key_in(place, "other"))
    return publishing_checks.published(place), *keys


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


@contextmanager
def hold_file(content: bytes | None, name: str = NAME) -> Iterator[Path]:
    """The folder with a file, for as long as the context is open."""
    path = make_folder()[0] / name
    if content is not None:
        path.write_bytes(content)
    try:
        yield make_folder()[0]
    finally:
        path.unlink(missing_ok=True)


def export_statement(key: Path | None = None) -> bytes:
    """The envelope as it should be."""
    return form.export(make_folder()[0], "in-toto", sign=key or make_folder()[1])


def statement() -> dict[str, Any]:
    """The statement as it should be."""
    parsed: dict[str, Any] = json.loads(form.export(make_folder()[0], "in-toto"))
    return parsed


def seal(content: Any, *, kind: str = attestation.PAYLOAD, key: Path | None = None) -> bytes:
    """A statement, or the bytes of one, in an envelope that the key signs by the words of DSSE."""
    payload = content if isinstance(content, bytes) else json.dumps(content).encode()
    to_sign = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    signature = signing.read_private(key or make_folder()[1]).sign(to_sign)
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": kind,
        "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}],
    }
    return json.dumps(envelope).encode()


def verify_holding(content: bytes | None, **more: Any) -> Verification:
    """What is said of the folder with this envelope, whose signature by the key is asked for."""
    with hold_file(content) as folder:
        return pv.verify(folder, signer=Signer(**{"public_key": public(make_folder()[1]), **more}))


def require_refused(content: bytes | None, *words: str, **more: Any) -> None:
    """The envelope is no good, and these words are in the problem."""
    verification = verify_holding(content, **more)
    said = " | ".join(verification.problems)
    assert not verification.ok, words
    assert all(word in said for word in words), said


def seal_edited(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """A statement that was changed and then signed by the key."""
    changed = copy.deepcopy(statement())
    change(changed)
    return seal(changed)


@check
def check_an_envelope_is_accepted_as_the_specification_of_dsse_says() -> None:
    for content in (export_statement(), seal(statement())):
        verification = verify_holding(content)
        assert verification.ok, verification.problems
        fingerprint = signing.read_private(make_folder()[1]).public.fingerprint
        assert verification.attested_by == [f"the key {fingerprint}"]
        assert not any("not checked" in warning for warning in verification.warnings)


@check
def check_every_signed_file_is_compared() -> None:
    """Each subject, changed, left out, doubled or added, is refused though the key signed it."""
    subjects = statement()["subject"]
    assert {each["name"] for each in subjects} == {
        "README.md",
        "card.html",
        "config.json",
        "model.safetensors",
        "privacy.json",
    }
    for place, subject in enumerate(subjects):
        zeros = {"name": subject["name"], "digest": {"sha256": "0" * 64}}
        require_refused(
            seal_edited(lambda body: body["subject"].__setitem__(place, zeros)),  # noqa: B023
            f"{subject['name']} is not the signed file",
        )
        require_refused(
            seal_edited(lambda body: body["subject"].pop(place)),  # noqa: B023
            f"{subject['name']} is not among the signed files",
        )
        require_refused(seal_edited(lambda body: body["subject"].append(subject)), "named twice")  # noqa: B023
    more = {"name": "adapter.bin", "digest": {"sha256": "0" * 64}}
    require_refused(
        seal_edited(lambda body: body["subject"].append(more)), "adapter.bin is not in the folder"
    )
    two = {"sha256": subjects[0]["digest"]["sha256"], "sha512": "0"}
    require_refused(seal_edited(lambda body: body["subject"][0].update(digest=two)), "other fields")
    require_refused(seal_edited(lambda body: body.update(subject=None)), "no list")


@check
def check_every_part_of_the_predicate_is_compared() -> None:
    """Another epsilon is refused though the key signed it, and so is every other value."""
    predicate = statement()["predicate"]
    for name in predicate["claim"]:
        require_refused(
            seal_edited(lambda body: body["predicate"]["claim"].update({name: 0.5})),  # noqa: B023
            "the predicate's claim",
        )
    for name in predicate["digests"]:
        require_refused(
            seal_edited(lambda body: body["predicate"]["digests"].update({name: "0"})),  # noqa: B023
            "the predicate's digests",
        )
    for name in ("randomness", "format", "version"):
        require_refused(
            seal_edited(lambda body: body["predicate"].update({name: True})),  # noqa: B023
            f"the predicate's {name}",
        )
    require_refused(seal_edited(lambda body: body["predicate"].pop("claim")), "other fields")
    require_refused(seal_edited(lambda body: body["predicate"].update(note="")), "other fields")
    require_refused(seal_edited(lambda body: body.update(note="")), "other fields")


@check
def check_whole_numbers_may_be_written_with_a_point() -> None:
    """Protocol Buffers, by which other tools sign, know no whole numbers."""
    assert verify_holding(seal_edited(lambda body: body["predicate"].update(version=2.0))).ok
    require_refused(seal_edited(lambda body: body["predicate"].update(version=2.5)), "version")
    assert attestation._is_same({"a": [1, "b", None, True]}, {"a": [1.0, "b", None, True]})
    assert not attestation._is_same(True, 1)


@check
def check_the_kind_of_statement_is_compared() -> None:
    other = "https://slsa.dev/provenance/v1"
    require_refused(
        seal_edited(lambda body: body.update(predicateType=other)), "its predicate is", other
    )
    require_refused(
        seal_edited(lambda body: body.update(_type="https://in-toto.io/Statement/v0.1")), "in-toto"
    )
    require_refused(
        seal(statement(), kind="application/json"), "expected application/vnd.in-toto+json"
    )
    require_refused(form.export(make_folder()[0], "in-toto"), "not hold a DSSE envelope")


@check
def check_an_envelope_of_another_folder_is_refused() -> None:
    with publishing_checks.workplace() as place:
        other = publishing_checks.published(place, seed=1)
        content = form.export(other, "in-toto", sign=make_folder()[1])
    require_refused(content, "model.safetensors is not the signed file", "another certificate")


@check
def check_another_key_or_an_edited_envelope_is_refused() -> None:
    require_refused(
        export_statement(make_folder()[2]), "the signature that was asked for", "did not sign"
    )
    good = json.loads(export_statement())
    spaced = json.dumps(statement(), indent=1).encode()  # the same values in other bytes
    for change in (
        {"payload": base64.b64encode(spaced).decode()},
        {"signatures": [{"sig": base64.b64encode(bytes(64)).decode()}]},
    ):
        require_refused(json.dumps({**good, **change}).encode(), "did not sign")
    # any one of several signatures will do
    both = good["signatures"] + json.loads(export_statement(make_folder()[2]))["signatures"]
    for signatures in (both, both[::-1]):
        assert verify_holding(json.dumps({**good, "signatures": signatures}).encode()).ok


@check
def check_signatures_have_lengths_in_front() -> None:
    """What is signed can be split in one way only: without lengths a type could end in the text of
    a payload.
    """
    payload = export_statement()
    assert envelopes.encode(b"ab") == b"DSSEv1 28 application/vnd.in-toto+json 2 ab"
    assert envelopes.encode(payload).endswith(b" %d %b" % (len(payload), payload))


@check
def check_a_missing_envelope_is_refused() -> None:
    require_refused(None, "the folder has none", "--key")
    error = must_raise(
        BadInput,
        lambda: verify_holding(export_statement(), bundle=make_folder()[0] / "nothing.json"),
    )
    assert "nothing.json cannot be read" in str(error)


@check
def check_the_envelope_that_was_named_has_to_be_signed() -> None:
    """A good one in the folder does not stand in for it."""
    with publishing_checks.workplace() as place:
        bundle = place / "bundle.json"
        bundle.write_bytes(export_statement(make_folder()[2]))
        require_refused(export_statement(), "did not sign", bundle=bundle)
        bundle.write_bytes(export_statement())
        assert verify_holding(export_statement(make_folder()[2]), bundle=bundle).ok
        assert verify_holding(None, bundle=bundle).ok
        require_refused(seal_edited(lambda body: body["subject"].pop()), "not among", bundle=bundle)


@check
def check_envelopes_are_compared_without_being_asked_for() -> None:
    """Whoever loads the folder learns that an envelope in it is of something else."""
    with hold_file(
        seal_edited(lambda body: body["predicate"]["claim"].update(epsilon=0.1))
    ) as folder:
        assert not pv.verify(folder).ok
        must_raise(CertificateMismatch, lambda: pv.load_model(folder))
    with hold_file(export_statement()) as folder:
        verification = pv.verify(folder)
        assert verification.ok
        assert not verification.attested_by
        assert "was not checked" in verification.warnings[-1]


@check
def check_files_that_are_no_envelopes_are_refused() -> None:
    good = json.loads(export_statement())
    signature = good["signatures"][0]["sig"]
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    assert signature.endswith("==")  # four bits of the last letter spell nothing
    respelled = f"{signature[:-3]}{letters[letters.index(signature[-3]) + 1]}=="
    assert base64.b64decode(respelled) == base64.b64decode(signature)
    texts = {
        "not readable JSON": [
            export_statement()[:-40],
            b"",
            b"\xff",
            b'{"payload": 1, "payload": 1}',
        ],
        "not hold a DSSE envelope": [b"[]", b"1", json.dumps({**good, "more": 1}).encode()],
        "canonical base64": [
            json.dumps({**good, "payload": good["payload"] + "="}).encode(),
            json.dumps({**good, "signatures": [{"sig": None}]}).encode(),
            json.dumps({**good, "signatures": [{"sig": respelled}]}).encode(),
        ],
        "signatures": [
            json.dumps({**good, "signatures": value}).encode() for value in ([], None, {}, [1] * 17)
        ],
        "verificationMaterial": [
            json.dumps({"mediaType": "", "verificationMaterial": 1, "dsseEnvelope": good}).encode()
        ],
    }
    for word, contents in texts.items():
        for content in contents:
            require_refused(content, word)
    twice = json.dumps(statement()).replace('"_type"', '"subject": [], "_type"')
    require_refused(seal(twice.encode()), "the statement", "twice")
    require_refused(seal(b"[]"), "no in-toto statement")


@check
def check_other_names_are_strangers() -> None:
    """A folder holds envelopes under three names, and nothing else."""
    for name in ("privacy.intoto.json", "model.sig.bak", "Model.sig"):
        with hold_file(export_statement(), name) as folder:
            assert any("also holds" in problem for problem in pv.verify(folder).problems), name


@check
def check_signatures_of_model_signing_are_of_every_file() -> None:
    """What its statement leaves out, or has with another digest, is refused."""
    digests = {each["name"]: each["digest"]["sha256"] for each in statement()["subject"]}

    def resources(**changed: str) -> dict[str, Any]:
        return {
            "_type": attestation.STATEMENT,
            "subject": [{"name": "model", "digest": {"sha256": "0" * 64}}],
            "predicateType": envelopes.MODEL_SIGNING,
            "predicate": {
                "serialization": {"method": "files"},
                "resources": [
                    {"name": name, "algorithm": "sha256", "digest": digest}
                    for name, digest in {**digests, **changed}.items()
                    if digest
                ],
            },
        }

    assert verify_holding(seal(resources())).ok
    assert verify_holding(seal(resources(**{".gitattributes": "1", "model.sig": "2"}))).ok
    for name in digests:
        require_refused(seal(resources(**{name: ""})), f"{name} is not among the signed files")
        require_refused(seal(resources(**{name: "0"})), f"{name} is not the signed file")
    require_refused(seal(resources(**{"adapter.bin": "0"})), "adapter.bin is not in the folder")
    shards = resources()
    shards["predicate"]["serialization"]["method"] = "shards"
    require_refused(seal(shards), "not of whole files")
    other = resources()
    other["predicate"]["resources"][0]["algorithm"] = "blake3"
    require_refused(seal(other), "other digests")
    require_refused(seal({**resources(), "predicate": []}), "not as model-signing writes it")


@check
def check_forms_state_the_claim_and_nothing_better() -> None:
    """Epsilon, delta, rho, neighbours and unit of a bill of materials and of a registry's entry are
    those of the certificate; so is what weakens it, and nothing of signatures is added.
    """
    claim = statement()["predicate"]["claim"]
    assert claim["rho"] is None
    with hold_file(export_statement()):
        published = form._read_verified(make_folder()[0])
        alone = form._read_verified(make_folder()[0]).verification.warnings
    assert len(alone) == 1
    assert "seed" in alone[0]
    loss = registry.make_entry(published, {})["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {name: claim[name] for name in ("epsilon", "delta")}
    assert loss["privacy_unit"] == claim["unit"]
    assert "(add_remove)" in loss["privacy_unit_details"]
    assert "seed" in loss["privacy_parameters_details"]
    card = cyclonedx.make_model_card(published)
    figures = {each["name"]: each["value"] for each in card["properties"]}
    for name in ("epsilon", "delta"):
        assert float(figures[f"privlearn:{name}"]) == claim[name]
    assert figures["privlearn:adjacency"] == claim["adjacency"]
    assert figures["privlearn:unit"] == claim["unit"]
    assert figures["privlearn:randomness"] == "seeded"
    limits = card["considerations"]["technicalLimitations"]
    assert any("seed" in each for each in limits)
    assert not any("not checked" in each for each in limits)


@check
def check_a_folder_that_does_not_verify_is_not_exported() -> None:
    for name, content in ((NAME, b"{}"), ("adapter.bin", b"")):
        with hold_file(content, name) as folder:
            for kind in ("in-toto", "registry"):
                must_raise(CertificateMismatch, lambda: form.export(folder, kind))  # noqa: B023


@check
def check_a_signer_is_asked_for_by_its_class() -> None:
    """A key alone is no signer: the folder would pass with a signature that no one looked at."""
    for signer in (str(public(make_folder()[1])), 5, {}):
        with hold_file(export_statement()) as folder:
            must_raise(BadInput, lambda: pv.verify(folder, signer=signer))  # noqa: B023
    must_raise(BadInput, lambda: Signer(public_key=5))
    must_raise(BadInput, lambda: Signer(identity="a@example.org"))
    must_raise(BadInput, lambda: Signer(bundle="model.sig"))
