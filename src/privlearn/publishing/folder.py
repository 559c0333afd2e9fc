"""A published folder is read from disk once and within bounds."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, final

from privlearn.errors import BadInput, CertificateMismatch
from privlearn.publishing import weights_file

if TYPE_CHECKING:
    from privlearn.publishing.rows_file import RowsFile

#: File names of a published model.
WEIGHTS, CERTIFICATE, CONFIG, CARD = "model.safetensors", "privacy.json", "config.json", "README.md"
#: The card as a page for people, which folders that were published earlier do not have.
PAGE = "card.html"
#: Those of an adapter of PEFT, which is published without the model that it is for.
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
#: What a certificate speaks of: the files of a model, or of an adapter.
MODEL_FILES = frozenset({WEIGHTS, CONFIG, CARD})
ADAPTER_FILES = frozenset({ADAPTER, ADAPTER_CONFIG, CONFIG, CARD})
#: What lies in a folder of `privlearn certify`, which has no certificate.
DECLARED = "declared-run.json"
#: The report of an attack on the run's claim, if there is one.
AUDIT = "audit.json"
#: Noisy rows and their labels, where these were released, too.
RELEASED = "rows.csv"
#: What a folder may hold besides: where it does, the certificate has to speak of it, and the other
#: way round.
OPTIONAL = frozenset({PAGE, AUDIT, RELEASED})
#: Signatures over the certificate and its files, of which a certificate can't speak.
ENVELOPES = frozenset({"privacy.intoto.jsonl", "privacy.sigstore.json", "model.sig"})
#: The largest files, in bytes, that are read at once. Weights and rows may have any size: they are
#: read in pieces.
LARGEST = {
    CERTIFICATE: 1 << 25,
    CONFIG: 1 << 20,
    CARD: 1 << 20,
    ADAPTER_CONFIG: 1 << 20,
    AUDIT: 1 << 20,
    PAGE: 1 << 22,
}


@final
@dataclass(frozen=True, repr=False)
class Contents:
    """What lay in a published folder when it was read, once: what is checked and what is used are
    the same bytes.

    Attributes:
        path: the folder.
        files: the content of certificate, configurations and card, where they could be read.
        digests: SHA-256 of each file that could be read, weights included.
        problems: which files are missing or cannot be read, or hold something else than they
            should, each a sentence.
        strangers: names of everything else, in order.
        names: the files that are expected beside the certificate: a model's or an adapter's, and
            which of `OPTIONAL` there are.
        rows: what `RELEASED` holds; None: there is none that can be read.
    """

    path: Path
    files: dict[str, bytes]
    digests: dict[str, str]
    problems: tuple[str, ...]
    strangers: tuple[str, ...]
    names: frozenset[str] = MODEL_FILES
    rows: RowsFile | None = None


def read(folder: str | Path) -> Contents:
    """Read a published folder. Links are followed (download caches are made of them); only content
    counts.

    Raises:
        BadInput: it has no certificate, or one that cannot be read.
    """
    path = Path(folder)
    files, digests, problems = {}, {}, []
    names = (
        ADAPTER_FILES
        if (path / ADAPTER).exists() and not (path / WEIGHTS).exists()
        else MODEL_FILES
    )
    names |= {name for name in OPTIONAL if os.path.lexists(path / name)}
    for name in sorted({CERTIFICATE, *names} & set(LARGEST), key=list(LARGEST).index):
        try:
            files[name] = _small(path / name, LARGEST[name])
            digests[name] = hashlib.sha256(files[name]).hexdigest()
        except _Unreadable as error:
            if name == CERTIFICATE:
                if os.path.lexists(path / DECLARED):
                    raise BadInput(
                        f"{path} is a declared run of another library, and not a published model: "
                        "it has no certificate. `privlearn verify` computes its figures again"
                    ) from error
                if not os.path.lexists(path):
                    raise BadInput(
                        f"there is no folder {path}: expected one that train or publish wrote"
                    ) from error
                raise BadInput(
                    f"{path} is not a published model: {error}. Expected the folder that train or "
                    "publish wrote; unpack an archive of one first"
                ) from error
            problems.append(str(error))
    rows = None
    for heavy in sorted(names - set(LARGEST)):
        try:
            with _open(path / heavy) as file:
                if heavy == RELEASED:
                    rows, wrong = _look_at_rows(file)
                else:
                    wrong = weights_file.problem_of(file, os.fstat(file.fileno()).st_size)
                file.seek(0)
                digests[heavy] = hashlib.file_digest(file, "sha256").hexdigest()
            kind = "rows" if heavy == RELEASED else "weights"
            problems += [f"{heavy} is not a file of {kind} alone: {wrong}"] if wrong else []
        except _Unreadable as error:
            problems.append(str(error))
    return Contents(path, files, digests, tuple(problems), _strangers(path, names), names, rows)


def _look_at_rows(file: BinaryIO) -> tuple[RowsFile | None, str]:
    from privlearn.publishing import rows_file  # for the few folders that have rows

    return rows_file.look_at(file)


def in_memory(path: Path, files: dict[str, bytes]) -> Contents:
    """What `read` would give, were `files` written to `path`."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    small = {name: files[name] for name in LARGEST if name in files}
    rows = _look_at_rows(BytesIO(files[RELEASED]))[0] if RELEASED in files else None
    return Contents(path, small, digests, (), (), frozenset(files) - {CERTIFICATE}, rows)


def weights_in(names: frozenset[str]) -> str:
    """The file of the weights among the files of a published folder."""
    return ADAPTER if ADAPTER in names else WEIGHTS


def weights(contents: Contents) -> bytes:
    """The weights that `contents` were checked with.

    Raises:
        CertificateMismatch: the file was changed or taken away since.
    """
    return content(contents, weights_in(contents.names))


def content(contents: Contents, name: str) -> bytes:
    """The file `name`, as `contents` were checked with it.

    Raises:
        CertificateMismatch: the file was changed or taken away since.
    """
    try:
        with _open(contents.path / name) as file:
            read_now = file.read()
    except _Unreadable as error:
        raise CertificateMismatch(
            f"{error}: it was there when {contents.path} was checked"
        ) from error
    if hashlib.sha256(read_now).hexdigest() != contents.digests.get(name):
        raise CertificateMismatch(
            f"{name} in {contents.path} was changed while it was being checked: get an unchanged "
            "copy, and keep others from writing to it"
        )
    return read_now


def bounded(path: Path, most: int) -> bytes:
    """The content of a file of at most `most` bytes; pipes may be read, too.

    Raises:
        BadInput: there is none, it cannot be read, or it is larger.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {reason_of(error)}. Expected a file") from error
    if len(content) > most:
        raise BadInput(f"{path} is larger than {most} bytes: expected a small file")
    return content


class _Unreadable(Exception):
    """Why a file of the folder cannot be read; a sentence."""


@contextmanager
def _open(path: Path) -> Iterator[BufferedReader]:
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            raise _Unreadable(
                f"{path.name} is missing"
                if not path.exists()
                else f"{path.name} is not a plain file"
            )
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _Unreadable(f"{path.name} is not a plain file")
            yield file
    except (OSError, ValueError) as error:
        raise _Unreadable(f"{path.name} cannot be read: {reason_of(error)}") from error


def _small(path: Path, most: int) -> bytes:
    with _open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise _Unreadable(f"{path.name} is larger than {most >> 20} MiB")
    return content


def _strangers(path: Path, names: frozenset[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted({entry.name for entry in path.iterdir()} - names - {CERTIFICATE}))
    except OSError as error:
        return (f"files that cannot be listed ({reason_of(error)})",)


def reason_of(error: Exception) -> str:
    """Why a file could not be read or written, in the system's words."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
