"""The verifier that was written from the format's page alone agrees with `privlearn verify`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import privlearn_verify
from privlearn.errors import PrivlearnError
from privlearn.publishing import certificate
from privlearn.publishing.folder import in_memory
from privlearn.publishing.verify import verify_contents
from privlearn_verify import claimed_figures, epsilon_methods, folder_verdict, schema_rules
from tests.publishing.checks import body_of, forge, key_in, published
from tests.publishing.many_certificates import Files, draw_certificates
from tests.publishing.many_certificates import forge as forge_many

PRICES = schema_rules.find_schemas() / "prices.json"


def is_ok(files: Files) -> bool:
    """Whether `privlearn verify` says that the folder agrees with its certificate."""
    try:
        return verify_contents(in_memory(Path("model"), files)).ok
    except PrivlearnError:
        return False


def count_verdicts(folders: Iterable[Files]) -> Counter[tuple[bool, str]]:
    """How often each verdict of the second verifier goes with one of `privlearn verify`.

    Raises:
        AssertionError: one says "ok", and the other does not.
    """
    counts: Counter[tuple[bool, str]] = Counter()
    for files in folders:
        expected, report = is_ok(files), privlearn_verify.check(files)
        assert expected == (report.verdict == "ok"), (report, files["privacy.json"])
        counts[expected, report.verdict] += 1
    return counts


def draw_folders(certificates: int, forgeries: int, seed: int) -> Iterator[Files]:
    """Certificates that verify, and forgeries of each."""
    for number, files in enumerate(draw_certificates(certificates, seed)):
        yield files
        yield from forge_many(files, forgeries, seed + number)


def test_figures_are_those_of_the_accountant() -> None:
    for case in json.loads(PRICES.read_text("utf-8")):
        events = case["events"]
        figures = privlearn_verify.compute_epsilons(
            events, case["adjacency"], case["delta"], case["group_size"]
        )
        assert set(figures) == set(case["by_method"]), events
        for method, epsilon in figures.items():
            stated = case["by_method"][method]
            least = 1e-4 if method == "pld" else 1e-6
            most = 3e-3 if method == "pld" and "partitioned" in json.dumps(events) else least
            assert epsilon * (1 - least) <= stated <= epsilon * (1 + most), (events, method)


def test_verdicts_on_certificates_and_forgeries() -> None:
    counts = count_verdicts(draw_folders(24, 5, seed=1))
    print(dict(counts))
    assert counts[True, "ok"] >= 24
    assert counts[False, "not ok"] >= 60


def test_verdicts_on_many_certificates_and_forgeries() -> None:
    counts = count_verdicts(draw_folders(500, 10, seed=2))
    print(dict(counts))
    assert counts[True, "ok"] >= 500
    assert counts[False, "not ok"] >= 3000


@pytest.mark.planted_bug
def test_a_loose_tolerance_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [raise_epsilon(next(draw_certificates(1, 3)), 1.05)]
    assert count_verdicts(folders) == {(False, "not ok"): 1}
    monkeypatch.setattr(claimed_figures, "find_room", lambda tree, method: 0.1)
    with pytest.raises(AssertionError):
        count_verdicts(folders)


@pytest.mark.planted_bug
def test_digests_that_are_not_compared_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    files = next(draw_certificates(1, 3))
    folders = [{**files, "README.md": files["README.md"] + b"more"}]
    assert count_verdicts(folders) == {(False, "not ok"): 1}
    monkeypatch.setattr(folder_verdict, "check_digests", lambda certificate, files: None)
    with pytest.raises(AssertionError):
        count_verdicts(folders)


@pytest.mark.planted_bug
def test_a_wrong_price_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    price = epsilon_methods.find_gaussian_epsilon
    monkeypatch.setattr(
        epsilon_methods, "find_gaussian_epsilon", lambda mu, delta: price(1.001 * mu, delta)
    )
    epsilon_methods.price.cache_clear()
    try:
        with pytest.raises(AssertionError):
            count_verdicts(draw_certificates(24, 1))
    finally:
        epsilon_methods.price.cache_clear()


def raise_epsilon(files: Files, factor: float) -> Files:
    """A certificate with a larger epsilon, with cards and digests that belong to it."""
    body = json.loads(files["privacy.json"])
    old, new = (json.dumps(body["claim"]["epsilon"] * x) for x in (1, factor))
    edited = {name: data.replace(old.encode(), new.encode()) for name, data in files.items()}
    body["claim"]["epsilon"] = float(new)
    for name in body["files"]:
        body["files"][name] = hashlib.sha256(edited[name]).hexdigest()
    digests = {part: certificate.digest(body[part]) for part in certificate.PARTS}
    return {**edited, "privacy.json": json.dumps({**body, "digests": digests}).encode()}


def run(*arguments: object) -> tuple[int, dict[str, Any]]:
    """The exit status and the report of the command."""
    command = [sys.executable, "-m", "privlearn_verify", *map(str, arguments), "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not finished.stderr
    return finished.returncode, json.loads(finished.stdout)


def test_a_folder_by_the_command_line(tmp_path: Path) -> None:
    out = published(tmp_path)
    status, report = run(out)
    assert (status, report["verdict"], report["problems"]) == (0, "ok", [])
    assert report["epsilon"] == body_of(out)["claim"]["epsilon"]
    (out / "notes.txt").write_text("more")
    status, report = run(out)
    assert (status, report["verdict"]) == (1, "not ok")
    (out / "notes.txt").unlink()
    (out / "model.sig").write_text("{}")
    status, report = run(out)
    assert status == 0
    assert "the signature model.sig is not checked" in report["warnings"]
    (out / "model.sig").unlink()
    forge(out, {**body_of(out), "version": 3})
    status, report = run(out)
    assert (status, report["verdict"]) == (2, "cannot check")


def test_a_signature_is_checked(tmp_path: Path) -> None:
    key = key_in(tmp_path)
    out = published(tmp_path, sign=key)
    status, report = run(out, "--key", f"{key}.pub")
    assert (status, report["verdict"]) == (0, "ok")
    assert report["signed_by"].startswith("SHA256:")
    other = key_in(tmp_path, "other")
    assert run(out, "--key", f"{other}.pub")[0] == 1
    forge(out, {**body_of(out), "randomness": "operating system"})
    assert run(out)[0] == 1
