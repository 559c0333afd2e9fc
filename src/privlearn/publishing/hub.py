"""A published folder in a repository of the Hugging Face Hub: `push_to_hub` uploads one, and
`verify_on_hub` checks one at an address such as `hf://owner/name@revision`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from privlearn._checks import checked
from privlearn.errors import BadInput, CertificateMismatch, PrivlearnError, first_line
from privlearn.publishing.envelopes import Signer, require_package
from privlearn.publishing.folder import (
    ADAPTER_FILES,
    CERTIFICATE,
    ENVELOPES,
    MODEL_FILES,
    OPTIONAL,
    bounded,
    content,
    read,
)
from privlearn.publishing.keys import read_public
from privlearn.publishing.libraries import require_licence
from privlearn.publishing.verify import Verification, verify_contents

#: How an address of a repository on the Hub begins.
SCHEME = "hf://"
#: What may lie in a published folder: its certificate, what that speaks of, and envelopes.
PUBLISHED = frozenset({CERTIFICATE}) | MODEL_FILES | ADAPTER_FILES | OPTIONAL | ENVELOPES
#: Bytes of an envelope that `verify` reads.
_LARGEST_ENVELOPE = 1 << 20
_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"


@final
@dataclass(frozen=True)
class Download:
    """The files of a published folder, as they are in one commit of a repository.

    Attributes:
        name: the repository, `owner/name`.
        commit: the commit's hash, in full, as the Hub gives it.
        folder: where its files lie in the cache of downloads.
        strangers: what else the commit holds, which was not downloaded: names of files and folders.
    """

    name: str
    commit: str
    folder: Path
    strangers: frozenset[str]

    def verify(
        self, *, key: str | Path | None = None, signer: Signer | None = None
    ) -> Verification:
        """As `pv.verify` of a copy of the whole commit: strangers count, though they were not
        downloaded.

        Raises:
            BadInput: the certificate or a key cannot be read at all.
        """
        trusted = None if key is None else read_public(key)
        contents = read(self.folder)
        strangers = tuple(sorted(self.strangers | set(contents.strangers)))
        return verify_contents(replace(contents, strangers=strangers), trusted, signer)


@final
@dataclass(frozen=True)
class HubPage:
    """Where a model is uploaded when it is published, and what its card says there.

    Attributes:
        name: `owner/name` of the repository, which is made if it is not there.
        licence: of the model, as the Hub names it (`apache-2.0`), for the head of the card; None:
            nothing is said.
        private: whether a new repository is private; None: as the owner's settings on the Hub say.

    Raises:
        BadInput: no such name, or no name of a licence.
    """

    name: str
    licence: str | None = None
    private: bool | None = None

    def __post_init__(self) -> None:
        _require_name(self.name)
        require_licence(self.licence)


@final
@dataclass(frozen=True)
class HubVerification:
    """What was checked, and what came of it.

    Attributes:
        download: the repository, its commit and the files.
        verification: as of a folder.
    """

    download: Download
    verification: Verification


def is_address(folder: str | Path) -> bool:
    """Whether it is an address on the Hub, and no folder on this machine."""
    return isinstance(folder, str) and folder.startswith(SCHEME)


@checked
def verify_on_hub(
    address: str, *, key: str | Path | None = None, signer: Signer | None = None
) -> HubVerification:
    """Download the files of a published folder from the Hub and verify them.

    Guarantee: what was verified are files of the one commit whose hash is in the result. A branch
    or a tag may mean another commit later.

    Args:
        address: `hf://owner/name`, or `hf://owner/name@revision`: a branch, a tag or a commit.
        key: the publisher's public key, a file, as for `pv.verify`.
        signer: who must have signed an envelope, as for `pv.verify`.

    Raises:
        BadInput: no such address, repository or revision, no network, huggingface_hub is missing,
            or what is there has no certificate.
    """
    downloaded = download(address)
    return HubVerification(downloaded, downloaded.verify(key=key, signer=signer))


@checked
def download(address: str) -> Download:
    """Download the files that a published folder may hold, and no others, into the Hub's cache.

    Args:
        address: as for `verify_on_hub`.

    Raises:
        BadInput: as `verify_on_hub`.
    """
    name, revision = _read_address(address)
    with _asking_the_hub(address) as hub:
        commit, files = _list_files(hub, name, revision)
        if CERTIFICATE not in files:
            raise BadInput(
                f"{address} is not a published model: {CERTIFICATE} is missing in its commit "
                f"{commit}. Expected what push_to_hub uploaded"
            )
        api = hub.HfApi()
        paths = [
            Path(api.hf_hub_download(name, file, revision=commit))
            for file in sorted(files & PUBLISHED)
        ]
    if {(path.parent.name, path.parent) for path in paths} != {(commit, paths[0].parent)}:
        raise BadInput(
            f"the files of {address} came from other commits than {commit[:40]}: try again, or "
            "ask for that commit by its hash"
        )
    return Download(name, commit, paths[0].parent, _find_strangers(files))


@checked
def push_to_hub(
    folder: str | Path,
    name: str,
    *,
    private: bool | None = None,
    message: str = "Publish a model with its privacy certificate",
) -> str:
    """Upload a published folder that verifies to a repository of the Hugging Face Hub.

    Guarantee: the files are the bytes that were verified: the certificate, those that it speaks of,
    and the envelopes of the folder. Files of an earlier published model are replaced, and taken
    away where the new one has none of that name, in the same commit.

    Args:
        folder: what `publish` wrote. Its files are held in memory.
        name: `owner/name` of the repository, which is made if it is not there.
        private: whether a new repository is private; None: as the owner's settings on the Hub say.
        message: of the commit.

    Returns:
        The hash of the commit, for `hf://owner/name@hash`.

    Raises:
        CertificateMismatch: the folder does not verify; nothing was sent.
        BadInput: no such name, other files are in the repository, no network or no right to write,
            or huggingface_hub is missing.
    """
    _require_name(name)
    files = _read_verified_files(folder)
    with _asking_the_hub(name) as hub:
        api = hub.HfApi()
        api.create_repo(name, exist_ok=True, private=private)
        parent, present = _list_files(hub, name, None)
        _require_no_others(name, present)
        operations = [
            *(hub.CommitOperationAdd(each, files[each]) for each in sorted(files)),
            *(hub.CommitOperationDelete(each) for each in sorted(present & PUBLISHED - set(files))),
        ]
        # if anyone else has written to it since, the Hub refuses
        commit = str(
            api.create_commit(name, operations, commit_message=message, parent_commit=parent).oid
        )
        _, present = _list_files(hub, name, commit)
    # such as one that a .gitignore there left out
    if missing := sorted(set(files) - present):
        raise BadInput(
            f"the Hub left out {', '.join(missing)} of {name}: its commit {commit[:40]} does not "
            "verify. Look for a .gitignore in the repository, and push again"
        )
    return commit


def require_ready(name: str) -> None:
    """Refuse what `push_to_hub` would refuse whatever the folder: for those who are about to write
    it. The Hub is not asked.

    Raises:
        BadInput: no such name, or huggingface_hub is missing.
    """
    _require_name(name)
    require_package("huggingface_hub")


def _require_name(name: str) -> None:
    if re.fullmatch(_NAME, name, re.ASCII) is None:
        raise BadInput(f"{name[:80]!r} is not a repository: expected owner/name")


def _read_verified_files(folder: str | Path) -> dict[str, bytes]:
    """The files of a folder by name, as they were verified.

    Raises:
        CertificateMismatch: it does not verify.
    """
    contents = read(folder)
    verification = verify_contents(contents)
    if not verification.ok:
        raise CertificateMismatch(
            f"{str(folder)[-80:]} does not verify: {verification.problems[0][:120]}. Push an "
            "unchanged copy"
        )
    certified = {name: content(contents, name) for name in {CERTIFICATE, *contents.names}}
    around = {
        name: bounded(contents.path / name, _LARGEST_ENVELOPE)
        for name in ENVELOPES & set(contents.strangers)
    }
    return certified | around


def _require_no_others(name: str, present: frozenset[str]) -> None:
    """Refuse a repository with files that no loader of the folder should find.

    Raises:
        BadInput: it has some.
    """
    others = sorted(each for each in _find_strangers(present) if not each.startswith("."))
    if others:
        raise BadInput(
            f"{name} also holds {', '.join(others)[:80]}, and a published model there would not "
            "verify: another library might load them. Delete them, or name another repository"
        )


def _list_files(hub: Any, name: str, revision: str | None) -> tuple[str, frozenset[str]]:
    """The commit that a revision means now, and the paths of all its files."""
    info = hub.HfApi().model_info(name, revision=revision)
    return str(info.sha), frozenset(each.rfilename for each in info.siblings or ())


def _find_strangers(files: frozenset[str]) -> frozenset[str]:
    """What lies at the top beside the files of a published folder."""
    return frozenset(path.partition("/")[0] for path in files - PUBLISHED)


def _read_address(address: str) -> tuple[str, str | None]:
    parts = re.fullmatch(rf"{SCHEME}({_NAME})(?:@([^\s@]+))?", address, re.ASCII)
    if parts is None:
        raise BadInput(
            f"{address[:80]!r} is not an address on the Hub: expected hf://owner/name or "
            "hf://owner/name@revision"
        )
    return parts[1], parts[2]


@contextmanager
def _asking_the_hub(what: str) -> Iterator[Any]:
    """The package huggingface_hub; its errors become ours.

    Raises:
        BadInput: it is not installed, or the Hub did not answer as asked.
    """
    hub = require_package("huggingface_hub")
    try:
        yield hub
    except PrivlearnError:
        raise
    except Exception as error:  # of several packages
        reason = f"{type(error).__name__}: {first_line(error)[:80]}"
        raise BadInput(
            f"the Hub did not do what was asked for {what[:80]} ({reason}): look at the name, the "
            "network and, for private ones or to write, your login (hf auth login)"
        ) from error
