"""Signatures by other packages around a published folder, and forms that others read: each beside
the package or the schema that defines it.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

import privlearn as pv
from privlearn.cli import main
from privlearn.errors import BadInput, CertificateMismatch
from privlearn.publishing import attestation, form, forms
from privlearn.publishing.envelopes import Signer
from privlearn.publishing.form import export
from tests.publishing import checks_envelopes as envelope_checks
from tests.publishing.checks_envelopes import NAME, hold_file, make_folder, public, statement
from tests.publishing.deployment_fields import find_strange_fields
from tests.publishing.small_sigstore import PROVIDER, WHO, SmallSigstore

PEM = serialization.Encoding.PEM


@pytest.fixture(scope="module")
def curve_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key on P-256, `FILE.pub` beside it."""
    path = tmp_path_factory.mktemp("curve") / "curve"
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(
        key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public(path).write_bytes(
        key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return path


@pytest.fixture
def unsigned() -> Iterator[Path]:
    """The folder without envelopes, in which a test may put some."""
    folder = make_folder()[0]
    yield folder
    for name in ("model.sig", "privacy.sigstore.json", NAME):
        (folder / name).unlink(missing_ok=True)


# -- in-toto and DSSE


def test_securesystemslib_verifies_the_envelope() -> None:
    """The library of in-toto and TUF reads the envelope, and refuses it for another key."""
    dsse = pytest.importorskip("securesystemslib.dsse", reason="securesystemslib is not installed")
    signer = pytest.importorskip("securesystemslib.signer")
    envelope = dsse.Envelope.from_dict(json.loads(envelope_checks.export_statement()))
    (keyid,) = envelope.signatures
    for path, fits in ((make_folder()[1], True), (make_folder()[2], False)):
        key = serialization.load_pem_public_key(public(path).read_bytes())
        assert isinstance(key, ed25519.Ed25519PublicKey)
        known = signer.SSlibKey.from_crypto(key, keyid=keyid)
        if fits:
            assert set(envelope.verify([known], 1)) == {keyid}
        else:
            with pytest.raises(Exception, match="do not match"):
                envelope.verify([known], 1)


def test_in_toto_attestation_reads_the_statement() -> None:
    """The specification's own classes accept it, and what they write of it is accepted here."""
    v1 = pytest.importorskip(
        "in_toto_attestation.v1.statement", reason="in-toto-attestation is not installed"
    )
    json_format = pytest.importorskip("google.protobuf.json_format")
    empty = v1.Statement([], "", {}).pb
    parsed = v1.Statement.copy_from_pb(json_format.ParseDict(statement(), empty))
    parsed.validate()
    written = json_format.MessageToJson(parsed.pb).encode()
    assert b'"version": 2.0' in written
    assert envelope_checks.verify_holding(envelope_checks.seal(written)).ok


def test_a_key_signs_and_verifies_on_the_command_line(
    unsigned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, key, other = str(unsigned), make_folder()[1], make_folder()[2]
    out = str(unsigned / NAME)
    command = ["export", folder, "--to", "in-toto", "--sign", str(key), "--out", out]
    assert main(command) == 0
    assert main(command) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["verify", folder, "--public-key", str(public(key))]) == 0
    assert "is signed by the key SHA256:" in capsys.readouterr().out
    assert main(["verify", folder, "--public-key", str(public(other)), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["attested_by"] == []
    assert "did not sign" in answer["problems"][0]
    assert main(["verify", folder]) == 0
    assert "was not checked" in capsys.readouterr().out
    for words, said in (
        (["--bundle", "nothing.json", "--public-key", str(public(key))], "nothing.json"),
        (["--bundle", out], "--public-key"),
        (["--identity", WHO], "--identity-provider"),
        (["--public-key", "nothing.pub"], "nothing.pub"),
    ):
        assert main(["verify", folder, *words]) == 2
        assert said in capsys.readouterr().err
    assert main(["export", folder, "--to", "registry", "--out", f"{folder}/entry.yaml"]) == 2
    assert "choose another place" in capsys.readouterr().err
    assert main(["export", folder, "--to", "in-toto"]) == 0
    assert json.loads(capsys.readouterr().out) == statement()


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    folder, key = make_folder()[0], make_folder()[1]
    for more, said in (
        ({"form": "slsa"}, "one of cyclonedx, in-toto"),
        ({"form": "registry", "sign": key}, "holds no signature"),
        ({"form": "in-toto", "sign": key, "keyless": True}, "two ways"),
        ({"form": "in-toto", "trust_config": key}, "keyless=True"),
        ({"form": "in-toto", "about": {"name": "x"}}, "takes nothing"),
        ({"form": "model-signing"}, "is a signature"),
        ({"form": "registry", "about": {"publication_date": "May"}}, "2026-07-15"),
        ({"form": "registry", "about": {"publication_date": "2026-13-01"}}, "2026-07-15"),
        ({"form": "registry", "about": {"data_product_sector": "Arts"}}, "Healthcare"),
    ):
        with pytest.raises(BadInput, match=said):
            export(folder, **more)
    with (
        hold_file(b"{}") as changed,
        pytest.raises(CertificateMismatch, match="does not verify"),
    ):
        export(changed, "registry")


# -- model-signing


def test_model_signing_signs_and_verifies_with_a_key(unsigned: Path, curve_key: Path) -> None:
    pytest.importorskip("model_signing", reason="model-signing is not installed")
    signed = export(unsigned, "model-signing", sign=curve_key)
    (unsigned / "model.sig").write_bytes(signed)
    signer = Signer(public_key=public(curve_key))
    verification = pv.verify(unsigned, signer=signer)
    assert verification.ok, verification.problems
    assert "the key in curve.pub" in verification.attested_by[0]
    # the package's own command agrees
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(unsigned)]
    command += ["--signature", f"{unsigned}/model.sig", "--public_key", str(public(curve_key))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # an envelope beside it changes nothing, and another key of the same or another kind does
    with hold_file(envelope_checks.export_statement()):
        assert pv.verify(unsigned, signer=signer).ok
    other = pv.verify(unsigned, signer=Signer(public_key=public(make_folder()[1])))
    assert "model.sig needs a public key on P-256" in " ".join(other.problems)
    bundle = json.loads(signed)
    for change in (
        {"signatures": [{"sig": base64.b64encode(b"0" * 70).decode(), "keyid": ""}]},
        {"payload": respaced_payload(bundle)},
    ):
        edited = {**bundle, "dsseEnvelope": {**bundle["dsseEnvelope"], **change}}
        (unsigned / "model.sig").write_text(json.dumps(edited))
        problems = pv.verify(unsigned, signer=signer).problems
        assert "model-signing refuses model.sig" in " ".join(problems), problems
    (unsigned / "model.sig").write_text(json.dumps({**bundle, "dsse_envelope": {}}))
    assert "not hold a DSSE envelope" in pv.verify(unsigned, signer=signer).problems[0]


def respaced_payload(bundle: dict[str, Any]) -> str:
    """The signed statement in other bytes."""
    said = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    return base64.b64encode(json.dumps(said).encode()).decode()


def test_a_signature_of_model_signing_is_of_this_folder(
    unsigned: Path, curve_key: Path, tmp_path: Path
) -> None:
    """That of another folder, and one that leaves out a file, are refused."""
    signing = pytest.importorskip("model_signing.signing", reason="model-signing is not installed")
    hashing = pytest.importorskip("model_signing.hashing")
    signer = Signer(public_key=public(curve_key))
    other = pv.publish(envelope_checks.publishing_checks.result(1), tmp_path / "other")
    (unsigned / "model.sig").write_bytes(export(other, "model-signing", sign=curve_key))
    assert any(
        "model.safetensors is not the signed file" in problem
        for problem in pv.verify(unsigned, signer=signer).problems
    )
    (unsigned / "model.sig").unlink()
    config = hashing.Config().set_ignored_paths(paths=["README.md"])
    signing.Config().use_elliptic_key_signer(private_key=curve_key).set_hashing_config(config).sign(
        unsigned, tmp_path / "part.sig"
    )
    partly = pv.verify(unsigned, signer=Signer(tmp_path / "part.sig", public_key=public(curve_key)))
    assert any("README.md is not among the signed files" in each for each in partly.problems)


# -- identities


@pytest.mark.parametrize(
    ("name", "file"), [("in-toto", "privacy.sigstore.json"), ("model-signing", "model.sig")]
)
def test_an_identity_signs_and_is_logged(
    name: str, file: str, unsigned: Path, tmp_path: Path
) -> None:
    """By a Sigstore in memory: signed as by the public one, and verified without a network."""
    pytest.importorskip("model_signing", reason="model-signing and sigstore are not installed")
    sigstore, stranger = SmallSigstore(), SmallSigstore()
    trust = sigstore.trust_config(tmp_path / "trust.json")
    with sigstore.serving():
        content = export(unsigned, name, keyless=True, trust_config=trust)
    (unsigned / file).write_bytes(content)
    whom = {"identity": WHO, "identity_provider": PROVIDER, "trust_config": trust}
    verification = pv.verify(unsigned, signer=Signer(**whom))
    assert verification.ok, verification.problems
    assert verification.attested_by == [
        f"{WHO} (vouched for by {PROVIDER}), logged at 2026-03-04 05:06:07 UTC"
    ]
    other = stranger.trust_config(tmp_path / "other.json")
    for change in (
        {"identity": "someone@example.org"},
        {"identity_provider": "https://accounts.example.com"},
        {"trust_config": other},
    ):
        problems = pv.verify(unsigned, signer=Signer(**{**whom, **change})).problems
        assert f"Sigstore refuses {file}" in " ".join(problems), change
    assert not pv.verify(unsigned, signer=Signer(public_key=public(make_folder()[1]))).ok
    # nothing of a bundle can be edited: statement, time of the log, signature
    bundle = json.loads(content)
    entry = bundle["verificationMaterial"]["tlogEntries"][0]
    entry["integratedTime"] = str(int(entry["integratedTime"]) + 60)
    spaced = json.loads(content)
    spaced["dsseEnvelope"]["payload"] = respaced_payload(spaced)
    for edited in (bundle, spaced):
        (unsigned / file).write_text(json.dumps(edited))
        problems = pv.verify(unsigned, signer=Signer(**whom)).problems
        assert "Sigstore refuses" in " ".join(problems), problems


def test_sigstore_and_its_log_are_needed_to_sign(unsigned: Path, tmp_path: Path) -> None:
    """A log that is not reached, or a configuration that is none, is one message."""
    pytest.importorskip("sigstore", reason="sigstore is not installed")
    sigstore = SmallSigstore()
    trust = sigstore.trust_config(tmp_path / "trust.json")
    with (
        sigstore.serving(),
        mock.patch.object(SmallSigstore, "enter", side_effect=OSError("no network")),
        pytest.raises(BadInput, match="Sigstore did not sign: no network"),
    ):
        export(unsigned, "in-toto", keyless=True, trust_config=trust)
    trust.write_text("{}")
    with pytest.raises(BadInput, match="not a trust configuration"):
        export(unsigned, "in-toto", keyless=True, trust_config=trust)


def test_missing_packages_are_named(
    unsigned: Path, curve_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("model_signing.hashing", "sigstore.models", "cyclonedx.model.bom"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "sigstore.dsse", None)
    for more, extra in (
        ({"form": "model-signing", "sign": curve_key}, "signing"),
        ({"form": "in-toto", "keyless": True}, "signing"),
        ({"form": "cyclonedx"}, "bom"),
    ):
        with pytest.raises(BadInput, match=rf"pip install 'privlearn\[{extra}\]'"):
            export(unsigned, **more)


# -- bills of materials, and the registry


def test_the_bill_of_materials_is_valid() -> None:
    """By the schema that CycloneDX publishes; a card with another field is not."""
    validation = pytest.importorskip(
        "cyclonedx.validation.json", reason="cyclonedx-python-lib is not installed"
    )
    version = pytest.importorskip("cyclonedx.schema").SchemaVersion.V1_6
    content = export(make_folder()[0], "cyclonedx", about={"name": "Mine", "version": "2"})
    validator = validation.JsonStrictValidator(version)
    assert validator.validate_str(content.decode()) is None
    bill = json.loads(content)
    (component,) = bill["components"]
    assert (component["name"], component["version"]) == ("Mine", "2")
    assert component["type"] == "machine-learning-model"
    digests = {
        file["name"]: {"sha256": file["hashes"][0]["content"]} for file in component["components"]
    }
    assert digests == {each["name"]: each["digest"] for each in statement()["subject"]}
    figures = {each["name"]: each["value"] for each in component["modelCard"]["properties"]}
    claim = statement()["predicate"]["claim"]
    assert float(figures["privlearn:epsilon"]) == claim["epsilon"]
    assert float(figures["privlearn:delta"]) == claim["delta"]
    assert figures["privlearn:adjacency"] == claim["adjacency"]
    assert figures["privlearn:unit"] == claim["unit"]
    assert bill["serialNumber"] == json.loads(export(make_folder()[0], "cyclonedx"))["serialNumber"]
    component["modelCard"]["epsilon"] = 1
    assert validator.validate_str(json.dumps(bill)) is not None


def test_the_registrys_entry_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the fields that the registry knows, as a reader of YAML has them; another one is not."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    about = tmp_path / "about.toml"
    about.write_text(
        'name = "No"\ndata_curators = ["A: B", "Ünïcode \U0001f512"]\n'
        'intended_use = "\\"quoted\\" # and more"\npublication_date = 2026-07-15\n'
        'data_product_sector = "Healthcare"\nregistry_authors = "me"\nsources = "2026-01-01"\n'
    )
    assert main(["export", str(make_folder()[0]), "--to", "registry", "--about", str(about)]) == 0
    entry = yaml.safe_load(capsys.readouterr().out)
    draft = yaml.safe_load(export(make_folder()[0], "registry"))
    for each in (entry, draft):
        assert find_strange_fields(each) == []
        loss = each["deployment"]["privacy_loss"]
        claim = statement()["predicate"]["claim"]
        assert loss["privacy_parameters"] == {
            name: claim[name] for name in ("epsilon", "delta", "rho") if claim[name] is not None
        }
        assert claim["adjacency"] in loss["privacy_unit_details"]
        assert loss["privacy_unit"] == claim["unit"]
        assert each["status"] == "Draft"
        each["deployment"]["epsilon"] = 1
        assert find_strange_fields(each) == ["/deployment/epsilon"]
    basic = entry["deployment"]["basic"]
    assert basic["name"] == "No"
    assert basic["data_curators"] == ["A: B", "Ünïcode \U0001f512"]
    assert basic["intended_use"] == '"quoted" # and more'
    assert basic["publication_date"] == "2026-07-15"
    assert entry["url_slug"] == "no-a-b-ünïcode--2026"  # as the registry's script makes it
    assert basic["description"].startswith("To be completed")
    date.fromisoformat(draft["deployment"]["basic"]["publication_date"])


def test_each_form_is_a_module() -> None:
    """A form needs no other file: its module is found by its name."""
    for name in forms.form_names():
        assert isinstance(form.find_form(name), form.ExportForm)
    assert statement()["predicateType"] == attestation.PREDICATE
