"""Signing on the command line and in Python: the ways that work, and what refusals say."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

import privlearn as pv
from privlearn.cli import main
from privlearn.publishing import keys, signing

TRAIN = ("train", "--data", "breast-cancer", "--examples", "455", "--epsilon", "5", "--epochs", "1")
PEM, OPENSSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
PKCS8, SPKI = serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo
BARE = serialization.NoEncryption()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed model, one that is not signed, and keys of many kinds. Not to be changed."""
    here = tmp_path_factory.mktemp("signed")
    key, other = ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)
    for name, private in (("key", key), ("rsa", other)):
        write(here / name, private.private_bytes(PEM, PKCS8, BARE))
        (here / f"{name}.pub").write_bytes(private.public_key().public_bytes(PEM, SPKI))
    write(here / "ssh", key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, BARE))
    (here / "ssh.pub").write_bytes(
        key.public_key().public_bytes(OPENSSH, serialization.PublicFormat.OpenSSH) + b" me@here\n"
    )
    locked = key.private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"open sesame"))
    write(here / "locked", locked)
    (here / "rsa-ssh.pub").write_bytes(
        other.public_key().public_bytes(OPENSSH, serialization.PublicFormat.OpenSSH)
    )
    (here / "two.pub").write_bytes((here / "key.pub").read_bytes() * 2)
    (here / "two-lines.pub").write_bytes((here / "ssh.pub").read_bytes() * 2)
    (here / "tail.pub").write_bytes((here / "key.pub").read_bytes() + b"and more\n")
    write(here / "two", (here / "key").read_bytes() * 2)
    write(here / "cut", (here / "key").read_bytes()[:60] + b"\n-----END PRIVATE KEY-----\n")
    (here / "cut.pub").write_bytes(b"-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n")
    (here / "cut-ssh.pub").write_bytes((here / "ssh.pub").read_bytes()[:40])
    (here / "small.pub").write_bytes(
        ed25519.Ed25519PublicKey.from_public_bytes(b"\1" + bytes(31)).public_bytes(PEM, SPKI)
    )
    (here / "text").write_text("secret\n")
    (here / "empty").write_text("")
    (here / "large").write_bytes(b"-----BEGIN PRIVATE KEY-----" + b"x" * 100_000)
    (here / "folder").mkdir()
    assert main([*TRAIN, "--out", str(here / "signed"), "--sign", str(here / "key")]) == 0
    assert main([*TRAIN, "--out", str(here / "unsigned")]) == 0
    return here


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def test_make_a_key_sign_and_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["key", str(tmp_path / "mine"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert set(made) == {"fingerprint", "private", "public"}
    assert made["public"] == f"{tmp_path / 'mine'}.pub"
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o600
    assert (tmp_path / "mine").read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert main([*TRAIN, "--out", str(tmp_path / "model"), "--sign", str(tmp_path / "mine")]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "model"), "--key", made["public"], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["signed_by"] == made["fingerprint"]
    assert main(["verify", str(tmp_path / "model"), "--key", made["public"]]) == 0
    assert f"signed with the key that you gave, {made['fingerprint']}" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "model")]) == 0
    shown = capsys.readouterr().out
    assert made["fingerprint"] in shown
    assert "can't be known from here" in shown
    assert (
        main(
            ["predict", str(tmp_path / "model"), "--data", "breast-cancer", "--key", made["public"]]
        )
        == 0
    )
    card = (tmp_path / "model" / "README.md").read_text()
    assert made["fingerprint"] in card
    assert "does not prove that the statement is true" in card


def test_an_unsigned_model_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(place / "unsigned")]) == 0
    assert "not signed" in capsys.readouterr().out
    assert main(["verify", str(place / "unsigned"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signed_by"] is None
    assert main(["verify", str(place / "unsigned"), "--key", str(place / "key.pub")]) == 1
    assert "the certificate is not signed" in capsys.readouterr().out
    assert (
        main(
            [
                "predict",
                str(place / "unsigned"),
                "--data",
                "breast-cancer",
                "--key",
                str(place / "key.pub"),
            ]
        )
        == 2
    )


@pytest.mark.parametrize("name", ["key.pub", "ssh.pub"])
@pytest.mark.parametrize("private", ["key", "ssh", "locked"])
def test_every_form_of_a_key_is_the_same_key(
    place: Path, name: str, private: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(signing.PASSPHRASE, "open sesame")
    assert signing.read_private(place / private).public == keys.read_public(place / name)
    assert pv.verify(place / "signed", key=place / name).ok


def test_a_key_is_encrypted_if_there_is_a_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(signing.PASSPHRASE, "open sesame")
    made = signing.make(tmp_path / "key")
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in (tmp_path / "key").read_bytes()
    assert signing.read_private(tmp_path / "key").public == made
    monkeypatch.delenv(signing.PASSPHRASE)
    with pytest.raises(pv.errors.BadInput, match="put its passphrase into the variable"):
        signing.read_private(tmp_path / "key")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_fingerprints_are_those_of_openssh(place: Path) -> None:
    done = subprocess.run(
        ["ssh-keygen", "-lf", place / "ssh.pub"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[1] == keys.read_public(place / "key.pub").fingerprint


def test_a_golden_fingerprint() -> None:
    """Printed by ssh-keygen -l (OpenSSH 9.2) for the public key of RFC 8032, section 7.1, test
    1.
    """
    raw = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert keys.PublicKey(raw).fingerprint == "SHA256:bbXpuKG6zhzdmnxq256TlqzFBzRl2f6OOg722cYNbU8"


def test_the_curves_golden_signature() -> None:
    """RFC 8032, section 7.1, test 2."""
    key = keys.PublicKey(
        bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    )
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert key.fits(signature, b"\x72")
    assert not key.fits(signature, b"\x73")
    assert not key.fits(signature[:-1], b"\x72")


def test_a_key_that_others_may_read_is_used_with_a_warning(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copy(place / "key", tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    assert main([*TRAIN, "--out", str(tmp_path / "model"), "--sign", str(tmp_path / "key")]) == 0
    shown = capsys.readouterr().err
    assert "can be read by others than its owner" in shown
    assert "chmod 600" in shown


def test_where_modes_say_nothing_there_is_no_warning(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows every file has mode 666, and no chmod would end a warning."""
    shutil.copy(place / "key", tmp_path / "key")
    (tmp_path / "key").chmod(0o666)
    assert signing.read_private(tmp_path / "key").warnings
    monkeypatch.setattr(signing, "os", SimpleNamespace(name="nt", environ=os.environ))
    assert signing.read_private(tmp_path / "key").warnings == ()


def test_in_python_the_warning_is_a_warning(place: Path, tmp_path: Path) -> None:
    from tests.publishing.checks import result

    shutil.copy(place / "key", tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    with pytest.warns(UserWarning, match="can be read by others"):
        pv.publish(result(), tmp_path / "model", sign=tmp_path / "key")
    assert pv.verify(tmp_path / "model", key=place / "key.pub").ok


SIGN = "--sign"
REFUSALS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "no private key there": (
        SIGN,
        "gone",
        ("gone cannot be read", "No such file", "gone` makes one, and the public key"),
    ),
    "a folder for a key": (SIGN, "folder", ("folder cannot be read", "Expected a file")),
    "a public key to sign with": (
        SIGN,
        "key.pub",
        ("holds a public key", "to sign, give the private one"),
    ),
    "an OpenSSH public key to sign with": (SIGN, "ssh.pub", ("holds a public key", "without .pub")),
    "an RSA key to sign with": (
        SIGN,
        "rsa",
        ("RSAPrivateKey", "expected Ed25519", "privlearn key"),
    ),
    "a locked key without its passphrase": (
        SIGN,
        "locked",
        ("is encrypted", "PRIVLEARN_KEY_PASSPHRASE"),
    ),
    "two private keys": (SIGN, "two", ("no single private key", "privlearn key")),
    "half a private key": (
        SIGN,
        "cut",
        ("cannot be read as a private key", "expected Ed25519 in PEM"),
    ),
    "text for a key": (
        SIGN,
        "text",
        ("no single private key", "expected a file that `privlearn key` made"),
    ),
    "nothing for a key": (SIGN, "empty", ("no single private key",)),
    "a large file for a key": (SIGN, "large", ("larger than 16384 bytes", "expected a small file")),
    "no public key there": ("--key", "gone.pub", ("gone.pub cannot be read", "No such file")),
    "a private key to check with": (
        "--key",
        "key",
        ("holds a private key", "give the public one", "keep this one secret"),
    ),
    "an OpenSSH private key to check with": ("--key", "ssh", ("holds a private key",)),
    "an RSA key to check with": ("--key", "rsa.pub", ("RSAPublicKey", "expected Ed25519")),
    "an OpenSSH RSA key to check with": (
        "--key",
        "rsa-ssh.pub",
        ("RSAPublicKey", "expected Ed25519"),
    ),
    "two public keys": ("--key", "two.pub", ("no single public key", "expected a FILE.pub")),
    "two OpenSSH public keys": (
        "--key",
        "two-lines.pub",
        ("holds 2 lines", "expected one OpenSSH key"),
    ),
    "something behind a public key": ("--key", "tail.pub", ("no single public key",)),
    "half a public key": (
        "--key",
        "cut.pub",
        ("cannot be read as a public key", "expected Ed25519 in PEM"),
    ),
    "half an OpenSSH public key": ("--key", "cut-ssh.pub", ("cannot be read as a public key",)),
    "a public key of small order": (
        "--key",
        "small.pub",
        ("not a usable Ed25519 key", "large order", "privlearn key"),
    ),
    "text for a public key": ("--key", "text", ("no single public key", "expected a FILE.pub")),
    "nothing for a public key": ("--key", "empty", ("no single public key",)),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_keys_are_refused_before_anything_happens(
    case: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv(signing.PASSPHRASE, raising=False)
    monkeypatch.chdir(tmp_path)
    option, name, expected = REFUSALS[case]
    command = [*TRAIN, "--out", "out"] if option == SIGN else ["verify", str(place / "signed")]
    assert main([*command, option, str(place / name)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.strip().splitlines()
    assert len(lines) == 1, "training began, or more than one message"
    for part in expected:
        assert part in lines[0], lines[0]
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_passphrase_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(signing.PASSPHRASE, "abracadabra")
    assert main([*TRAIN, "--out", "out", "--sign", str(place / "locked")]) == 2
    message = capsys.readouterr().err
    assert "cannot be read as a private key" in message
    assert "the passphrase in PRIVLEARN_KEY_PASSPHRASE is wrong" in message
    assert "abracadabra" not in message


@pytest.mark.parametrize("name", ["key", "nowhere/key", "a" * 300, "a\0b"])
def test_places_for_keys_are_refused(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("precious")
    assert main(["key", str(tmp_path / name)]) == 2
    message = capsys.readouterr().err
    assert "exists already" in message if name == "key" else "cannot be written" in message
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert (tmp_path / "key").read_text() == "precious"


def test_verifying_imports_no_more_than_it_needs(place: Path) -> None:
    """Neither torch, nor cryptography unless there is a signature."""
    code = (
        "import sys\nfrom privlearn.cli import main\ncode = main(['verify', sys.argv[1], "
        "'--json'])\nprint(code, [name for name in ('torch', 'cryptography') if name in "
        "sys.modules], file=sys.stderr)"
    )
    for folder, expected in (("unsigned", "0 []"), ("signed", "0 ['cryptography']")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(place / folder)],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ,
        )
        assert done.stderr.strip().splitlines()[-1] == expected
