"""How the file of a large ledger grows: a document, and lines that are appended to it.

    header      format, version, length and digest of the document; of fixed width, never written
    again two marks   how much of the file is certainly there, and the digest at that place; of
    fixed width, written in turns document    what the ledger held when the file was last written as
    a whole lines       one for each change since then, with a digest over itself and all that comes
    before it

A change is appended and brought to the disk, then one mark, in its place, and only then may
anything be drawn. So what a mark covers was promised, and has to be there, whole and as it was
written: a file that is shorter, or was edited, is refused. What lies beyond was not promised: whole
lines count, and one that a crash cut off does not. A crash while a mark is written leaves the other
one.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

from privlearn._storage import loads
from privlearn.errors import BadInput

FORMAT, VERSION = "privlearn-ledger", 3
#: Bytes of the header and of each mark.
_WIDTH = 200
HEAD = 3 * _WIDTH
_FIRST = json.dumps({"format": FORMAT, "version": VERSION})[:-1].encode() + b", "
_BEFORE, _BETWEEN, _AFTER = b'{"digest": "', b'", "change": ', b"}"
_DIGEST = 64


@final
@dataclass(frozen=True)
class Place:
    """How far a file was read.

    Attributes:
        length: the bytes that count.
        digest: over all of them but header and marks.
    """

    length: int
    digest: str


def begun(document: bytes) -> bytes:
    """A file that holds `document`, and no changes."""
    digest = hashlib.sha256(document).hexdigest()
    return _header(document, digest) + 2 * _mark(HEAD + len(document), digest) + document


def is_begun(content: bytes) -> bool:
    """Whether this is the beginning of such a file, and not of one that is a document alone."""
    return content.startswith(_FIRST)


def read(content: bytes) -> tuple[bytes, list[Any], Place]:
    """The document, the changes since then, and how far they go.

    Raises:
        ValueError: it was edited or damaged, or is shorter than it was.
    """
    header = content[:_WIDTH]
    said = loads(header)
    length, digest = (
        (said.get(name) for name in ("document", "digest"))
        if isinstance(said, dict)
        else (None, None)
    )
    document = content[HEAD : HEAD + length] if isinstance(length, int) and length >= 0 else b""
    if hashlib.sha256(document).hexdigest() != digest or header != _header(document, digest):
        raise ValueError("its document is not the one of its header: it was edited or damaged")
    start = Place(HEAD + len(document), digest)
    return document, *read_on(content[:HEAD], content[start.length :], start)


def read_on(head: bytes, rest: bytes, place: Place) -> tuple[list[Any], Place]:
    """The changes after `place`, and how far they go.

    Args:
        head: header and marks as they are now.
        rest: what stands after `place`.
        place: how far the file was read.

    Raises:
        ValueError: as `read`; and it is another file than the one that was read, or less of it is
            promised.
    """
    covered, promised = _read_longer_mark(head)
    changes, length, digest, start, intact = [], place.length, place.digest, 0, False
    while True:
        intact = intact or (length, digest) == (covered, promised)
        end = rest.find(b"\n", start)
        body = None if end < 0 else _body(rest[start:end], digest)
        if body is None:
            break
        changes.append(loads(body))
        digest = _chain(digest, body)
        length, start = length + end + 1 - start, end + 1
    if not intact:
        raise ValueError(
            "lines that it had are not there as they were written: it was cut off, edited or "
            "damaged"
        )
    return changes, Place(length, digest)


def line(place: Place, change: Any) -> tuple[bytes, Place]:
    """The line of a change after `place`, and where it ends."""
    body = json.dumps(change).encode()
    digest = _chain(place.digest, body)
    text = _BEFORE + digest.encode() + _BETWEEN + body + _AFTER + b"\n"
    return text, Place(place.length + len(text), digest)


def append(path: Path, text: bytes, end: Place) -> None:
    """Append a `line`: when this returns it is on the disk, and promised. One process at a time may
    do so.

    Raises:
        BadInput: it could not be written: nothing may be drawn for it, and it counts at most as
            spent.
    """
    start = end.length - len(text)
    try:
        with path.open("r+b", buffering=0) as file:
            try:
                file.truncate(start)  # what a crash cut off
                _put(file, start, text)
            except OSError:
                with suppress(OSError):
                    file.truncate(start)
                raise
            file.seek(0)
            _put(file, _older(file.read(HEAD)), _mark(end.length, end.digest))
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {error.strerror or error}. Free some space, or choose a "
            "place that you may write to",
            path=str(path),
        ) from error


def _put(file: BinaryIO, at: int, content: bytes) -> None:
    """Write at that place, as far as the disk."""
    file.seek(at)
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]
    os.fsync(file.fileno())


def _chain(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()


def _body(text: bytes, before: str) -> bytes | None:
    """The change that a line holds; None if the line is not as it was written."""
    body = text[len(_BEFORE) + _DIGEST + len(_BETWEEN) : -len(_AFTER)]
    whole = _BEFORE + _chain(before, body).encode() + _BETWEEN + body + _AFTER
    return body if text == whole else None


def _header(document: bytes, digest: str) -> bytes:
    return _pad({"format": FORMAT, "version": VERSION, "document": len(document), "digest": digest})


def _pad(value: dict[str, Any]) -> bytes:
    return json.dumps(value).ljust(_WIDTH - 1).encode() + b"\n"


def _mark(length: int, digest: str) -> bytes:
    check = hashlib.sha256(f"{length} {digest}".encode()).hexdigest()[:16]
    return _pad({"length": length, "digest": digest, "check": check})


def _read_mark(mark: bytes) -> tuple[int, str]:
    """How much a mark covers, and the digest there; nothing if it is not as it was written."""
    try:
        said = loads(mark)
        length, digest = said["length"], said["digest"]
        return (length, digest) if mark == _mark(length, digest) else (0, "")
    except (ValueError, KeyError, TypeError):
        return 0, ""


def _read_longer_mark(head: bytes) -> tuple[int, str]:
    """What the longer mark covers."""
    return max(_read_mark(head[_WIDTH : 2 * _WIDTH]), _read_mark(head[2 * _WIDTH :]))


def _older(head: bytes) -> int:
    """Where the mark stands that covers less."""
    first, second = _read_mark(head[_WIDTH : 2 * _WIDTH]), _read_mark(head[2 * _WIDTH :])
    return _WIDTH if first <= second else 2 * _WIDTH
