"""Named checks of published folders on the Hugging Face Hub; mutations must make them fail."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

import privlearn as pv
import privlearn_verify
from privlearn._storage import digest
from privlearn.errors import BadInput, CertificateMismatch
from privlearn.methods.statistics.metric_figures import Metrics, MetricsPlan
from privlearn.publishing import form
from privlearn.publishing.envelopes import Signer
from privlearn.publishing.hub import HubPage, download, push_to_hub, verify_on_hub
from privlearn.publishing.libraries import with_metadata
from tests.publishing import checks as publishing_checks
from tests.publishing.checks_envelopes import NAME as ENVELOPE
from tests.publishing.checks_envelopes import hold_file, make_folder, public
from tests.publishing.small_hub import NAME, Repository, SmallHub, small_hub
from tests.support.checks import check, must_raise

ADDRESS = f"hf://{NAME}"
ATTRIBUTES = ".gitattributes"


def files_of(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def holding_a_model(hub: SmallHub) -> Repository:
    """A repository whose branch `main` is the published folder of the tests."""
    repository = hub.create()
    repository.commit({**repository.files, **files_of(make_folder()[0])})
    return repository


@check
def check_what_is_pushed_is_what_verifies() -> None:
    """The bytes of the folder and no others, in a new repository; its address verifies."""
    published, key, *_ = make_folder()
    statement = form.export(published, "in-toto", sign=key)
    with small_hub() as hub, hold_file(statement) as folder:
        commit = push_to_hub(folder, NAME, private=True)
        repository = hub.repositories[NAME]
        assert repository.private
        assert commit == repository.branches["main"]
        pushed = {name: text for name, text in repository.files.items() if name != ATTRIBUTES}
        assert pushed == files_of(folder)
        weights = pushed["model.safetensors"]
        assert hub.large == {hashlib.sha256(weights).hexdigest(): weights}
        for revision in ("", "@main", f"@{commit}"):
            signer = Signer(public_key=public(make_folder()[1]))
            checked = verify_on_hub(ADDRESS + revision, signer=signer)
            assert checked.verification.ok, checked.verification.problems
            assert checked.verification.attested_by
            assert checked.verification.epsilon == pv.verify(folder).epsilon
            assert (checked.download.name, checked.download.commit) == (NAME, commit)
        assert pv.load_model(checked.download.folder)


@check
def check_a_model_is_published_and_pushed_at_once() -> None:
    """The folder that was written, to the repository that was named; a name that is none is refused
    before anything is written, and a folder that could not be uploaded stays.
    """
    run = publishing_checks.result()
    with small_hub() as hub, publishing_checks.workplace() as place:
        error = must_raise(BadInput, lambda: pv.publish(run, place / "model", hub="model"))
        assert "expected owner/name" in str(error)
        assert not (place / "model").exists()
        assert not hub.asked
        folder = pv.publish(run, place / "model", delta=1e-5, hub=NAME)
        pushed = hub.repositories[NAME].files
        assert {name: pushed[name] for name in pushed if name != ATTRIBUTES} == files_of(folder)
        assert verify_on_hub(ADDRESS).verification.ok
        before = len(hub.asked)
        pv.publish(run, place / "local", delta=1e-5)
        assert len(hub.asked) == before
        repository = hub.repositories[NAME]
        repository.commit({**repository.files, "pytorch_model.bin": b""})
        error = must_raise(BadInput, lambda: pv.publish(run, place / "other", delta=1e-5, hub=NAME))
        assert "is written and complete" in str(error)
        assert pv.verify(place / "other").ok


def head_of(folder: Path) -> Any:
    """What the Hub reads at the top of a card."""
    return yaml.safe_load((folder / "README.md").read_text("utf-8").split("---\n")[1])


def edited(folder: Path, old: str, new: str) -> Path:
    """The folder with another text at the top of its card, and digests that fit."""
    card, certificate = folder / "README.md", folder / "privacy.json"
    text = card.read_text("utf-8")
    assert old in text
    card.write_text(text.replace(old, new, 1), "utf-8")
    body = json.loads(certificate.read_text("utf-8"))
    body["files"]["README.md"] = hashlib.sha256(card.read_bytes()).hexdigest()
    body["digests"] = {part: digest(body[part]) for part in body["digests"]}
    certificate.write_text(json.dumps(body), "utf-8")
    return folder


def require_both(folder: Path, *, ok: bool) -> None:
    """Both verifiers say so."""
    checked = pv.verify(folder)
    assert checked.ok == ok, checked.problems
    report = privlearn_verify.check_folder(folder)
    assert (report.verdict == "ok") == ok, report


@check
def check_the_head_of_a_card_has_what_the_hub_reads() -> None:
    """A licence, and test figures that were released with noise; exact ones are protected by
    nothing. Both verifiers know these lines, and no others.
    """
    run, seen = publishing_checks.result(), {"accuracy": 0.8125, "log_loss": 2e-05}
    noisy = Metrics(seen, 100, plan=MetricsPlan(2, noise_multiplier=5.0))
    card = "---\nlibrary_name: privlearn\ntags: [differential-privacy]\nepsilon: 1\n---\n"
    plain = with_metadata(card.encode(), None, Metrics(seen, 100))
    assert plain == card.encode()
    whole = with_metadata(card.encode(), "mit", noisy).decode()
    lines = whole.split("---\n")[1]
    head = yaml.safe_load(lines)
    assert head["license"] == "mit"
    (entry,) = head["model-index"]
    (result,) = entry["results"]
    assert {each["type"]: each["value"] for each in result["metrics"]} == seen
    assert result["dataset"] == {"type": "private", "name": "test rows"}
    added = lines.partition("tags: ")[0].removeprefix("library_name: privlearn\n")
    with publishing_checks.workplace() as place:
        for licence in ("MIT", "my own", "mit\nepsilon: 0", ""):
            must_raise(BadInput, lambda licence=licence: HubPage(NAME, licence))
        page = HubPage(NAME, "apache-2.0", private=True)
        with small_hub() as hub:
            folder = pv.publish(run, place / "model", delta=1e-5, hub=page, test_metrics=seen)
            assert hub.repositories[NAME].private
        assert head_of(folder)["license"] == "apache-2.0"
        assert "model-index" not in head_of(folder)
        require_both(folder, ok=True)
        require_both(edited(folder, "license: apache-2.0\n", added), ok=True)
        for number, line in enumerate(
            ("license: a b\n", "epsilon: 0.1\n", "model-index: []\n", f"{added}license: mit\n")
        ):
            other = pv.publish(run, place / str(number), delta=1e-5)
            require_both(edited(other, "tags: ", f"{line}tags: "), ok=False)


@check
def check_a_folder_that_does_not_verify_is_not_pushed() -> None:
    """Nothing is sent, and no repository is made."""
    with small_hub() as hub:
        for name, text in (("adapter.bin", b""), (ENVELOPE, b"{}"), ("audit.json", b"{}")):
            with hold_file(text, name) as folder:
                must_raise(CertificateMismatch, lambda: push_to_hub(folder, NAME))
        must_raise(BadInput, lambda: push_to_hub(make_folder()[0].parent, NAME))
        assert not hub.asked


@check
def check_hidden_files_are_not_pushed() -> None:
    """They pass with a warning, and may be of anything, such as an editor's copy of the data."""
    with small_hub() as hub, hold_file(b"private", ".data.csv.swp") as folder:
        assert pv.verify(folder).ok
        push_to_hub(folder, NAME)
        assert ".data.csv.swp" not in hub.repositories[NAME].files


@check
def check_repositories_with_other_files_are_refused() -> None:
    """Before anything is written: what is there would not verify."""
    for path in ("pytorch_model.bin", "onnx/model.onnx"):
        with small_hub() as hub:
            repository = hub.create()
            before = repository.commit({**repository.files, path: b""})
            error = must_raise(BadInput, lambda: push_to_hub(make_folder()[0], NAME))
            assert path.partition("/")[0] in str(error)
            assert repository.branches["main"] == before


@check
def check_an_earlier_model_is_replaced_as_a_whole() -> None:
    """What only the earlier folder held would not be certified by the new one."""
    with small_hub() as hub:
        repository = hub.create()
        earlier = {"rows.csv": b"a,label\n", "README.md": b"---\n---\n", ENVELOPE: b"{}"}
        repository.commit({**repository.files, **earlier})
        push_to_hub(make_folder()[0], NAME)
        assert set(repository.files) == {ATTRIBUTES, *files_of(make_folder()[0])}
        assert verify_on_hub(ADDRESS).verification.ok


@check
def check_what_the_hub_leaves_out_is_noticed() -> None:
    with small_hub() as hub:
        hub.ignored = frozenset({"card.html"})
        error = must_raise(BadInput, lambda: push_to_hub(make_folder()[0], NAME))
        assert "left out card.html" in str(error)


@check
def check_a_commit_of_another_meanwhile_is_not_overwritten() -> None:
    """Another writes to the repository just before the commit comes."""
    with small_hub() as hub:
        repository = hub.create()
        write = hub.write

        def write_later(place: Repository, lines: list) -> str | None:  # type: ignore[type-arg]
            place.commit({**place.files, "pytorch_model.bin": b""})
            return write(place, lines)

        hub.write = write_later  # type: ignore[method-assign]
        error = must_raise(BadInput, lambda: push_to_hub(make_folder()[0], NAME))
        assert "the Hub did not do" in str(error)
        assert "privacy.json" not in repository.files


@check
def check_strangers_in_the_repository_are_problems() -> None:
    """They are not downloaded, and another library would load them: as in a copy of it all."""
    for path in ("adapter.bin", "onnx/model.onnx", "rows.csv/part"):
        with small_hub() as hub:
            repository = holding_a_model(hub)
            repository.commit({**repository.files, path: b""})
            checked = verify_on_hub(ADDRESS)
            assert any(
                "also holds" in problem and path.partition("/")[0] in problem
                for problem in checked.verification.problems
            ), path
            assert not any(line.endswith(path) for line in hub.asked)
            assert any(ATTRIBUTES in each for each in checked.verification.warnings)


@check
def check_the_revision_that_was_asked_for_is_verified() -> None:
    """Another revision of the same repository is another folder, good or bad."""
    with small_hub() as hub, publishing_checks.workplace() as place:
        repository = holding_a_model(hub)
        good = repository.branches["main"]
        other = repository.commit(files_of(publishing_checks.published(place, seed=1)))
        bad = repository.commit({**repository.commits[good], "config.json": b"{}"}, "refs/pr/1")
        seen = {}
        for revision in (good, "main", "refs/pr/1"):
            checked = verify_on_hub(f"{ADDRESS}@{revision}")
            kept = {each.name: each.read_bytes() for each in checked.download.folder.iterdir()}
            commit = repository.commits[checked.download.commit]
            assert kept == {name: commit[name] for name in kept}
            seen[revision] = (checked.download.commit, checked.verification.ok)
        assert seen == {good: (good, True), "main": (other, True), "refs/pr/1": (bad, False)}


@check
def check_a_branch_that_moves_meanwhile_is_read_at_one_commit() -> None:
    """Files are asked for by the commit's hash, and each has to say that it is of that commit."""
    with small_hub() as hub:
        repository = holding_a_model(hub)
        commit = repository.branches["main"]
        assert verify_on_hub(ADDRESS).download.commit == commit
        downloads = [line for line in hub.asked if "/resolve/" in line]
        assert downloads
        assert all(f"/resolve/{commit}/" in line for line in downloads)
    with small_hub() as hub:
        holding_a_model(hub)
        hub.moved = "0" * 40
        must_raise(BadInput, lambda: verify_on_hub(ADDRESS))


@check
def check_an_edited_file_on_the_hub_does_not_verify() -> None:
    for name in files_of(make_folder()[0]):
        with small_hub() as hub:
            repository = holding_a_model(hub)
            edited = {**repository.files, name: repository.files[name] + b" "}
            repository.commit(edited)
            verification = verify_on_hub(ADDRESS).verification
            # JSON may end in spaces, and a certificate is not certified as a file
            assert verification.ok == (name == "privacy.json"), name


@check
def check_the_publishers_key_is_asked_for() -> None:
    with small_hub() as hub:
        holding_a_model(hub)
        checked = verify_on_hub(ADDRESS, key=public(make_folder()[1]))
        assert "not signed" in " ".join(checked.verification.problems)
        signer = Signer(public_key=public(make_folder()[1]))
        assert not verify_on_hub(ADDRESS, signer=signer).verification.ok


@check
def check_what_is_not_there_is_refused() -> None:
    """Each with what to look at."""
    with small_hub() as hub:
        hub.create()
        for address, words in {
            f"hf://{NAME}": "privacy.json is missing",
            f"hf://{NAME}@nothing": "RevisionNotFound",
            "hf://someone/other": "RepositoryNotFound",
            "hf://someone": "not an address on the Hub",
            f"hf://{NAME}@": "not an address on the Hub",
            f"hf://datasets/{NAME}": "not an address on the Hub",
            "hf://../model": "not an address on the Hub",
        }.items():
            error = must_raise(BadInput, lambda: download(address))  # noqa: B023
            assert words in str(error), str(error)
            assert len(str(error)) <= 300
        for name in ("model", "a/b/c", "hf://a/b", "../b", ""):
            must_raise(BadInput, lambda: push_to_hub(make_folder()[0], name))  # noqa: B023
