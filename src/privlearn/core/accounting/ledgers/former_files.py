"""Ledgers in files of version 0.1: JSON that was replaced as a whole, or was appended to.

They are read once, with their digests checked, and kept in a database from then on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from privlearn._storage import digest, loads
from privlearn.core.accounting.ledgers.ledger_json import apply_changes, read_state
from privlearn.core.accounting.ledgers.ledger_state import LedgerState

_FORMAT = "privlearn-ledger"
_LARGEST = 1 << 26
#: Bytes of the header of a file that was appended to, and of each of its two marks.
_WIDTH = 200
_APPENDED = json.dumps({"format": _FORMAT, "version": 3})[:-1].encode() + b", "
_BEFORE, _BETWEEN, _AFTER = b'{"digest": "', b'", "change": ', b"}"
_DIGEST = 64


def read_file(path: Path) -> LedgerState:
    """The state of a ledger that version 0.1 wrote.

    Raises:
        ValueError: it is none, or it was edited or damaged, or is shorter than it was.
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
    if not content.startswith(_APPENDED):
        return _read_document(loads(content))
    document, changes = _read_lines(content)
    return apply_changes(_read_document(loads(document)), changes)


def _read_document(data: Any) -> LedgerState:
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT!r}")
    if data.get("version") not in (1, 2):
        raise ValueError(f"its version is {str(data.get('version'))[:40]}, and 1 to 3 are read")
    body = {key: value for key, value in data.items() if key not in ("format", "version", "digest")}
    if data.get("digest") != digest(body):
        raise ValueError("its digest does not match: it was edited or damaged")
    try:
        return read_state(_of_version_1(body) if data["version"] == 1 else body)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it has other fields than a ledger: {str(error)[:200]}") from error


def _of_version_1(body: dict[str, Any]) -> dict[str, Any]:
    """Ledgers that knew no filters: which runs were fixed before the first release is known of the
    first one alone.
    """
    entries = [
        {**entry, "approved": entry["held"], "declared": False, "waiting": False}
        for entry in body["entries"]
    ]
    for place, entry in enumerate(entries):
        del entry["held"]
        entry["declared"] = place == 0
    return {**body, "measure": None, "entries": entries}


def _read_lines(content: bytes) -> tuple[bytes, list[Any]]:
    """The document of a file that was appended to, and the changes after it.

    Two marks say how much of the file was promised, and the digest at that place: what they cover
    has to be there as it was written. A line beyond that a crash cut off does not count.
    """
    header = loads(content[:_WIDTH])
    try:
        length, known = header["document"], header["digest"]
        start = 3 * _WIDTH
        document = content[start : start + length]
    except (KeyError, TypeError) as error:
        raise ValueError("its header has other fields") from error
    if hashlib.sha256(document).hexdigest() != known:
        raise ValueError("its document is not the one of its header: it was edited or damaged")
    promised = max(
        _read_mark(content[_WIDTH : 2 * _WIDTH]), _read_mark(content[2 * _WIDTH : 3 * _WIDTH])
    )
    changes: list[Any] = []
    place, intact = start + len(document), False
    while True:
        intact = intact or (place, known) == promised
        end = content.find(b"\n", place)
        body = None if end < 0 else _body(content[place:end], known)
        if body is None:
            break
        changes.append(loads(body))
        known, place = _chain(known, body), end + 1
    if not intact:
        raise ValueError(
            "lines that it had are not there as they were written: it was cut off, edited or "
            "damaged"
        )
    return document, changes


def _chain(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()


def _body(text: bytes, before: str) -> bytes | None:
    """The change that a line holds; None if the line is not as it was written."""
    body = text[len(_BEFORE) + _DIGEST + len(_BETWEEN) : -len(_AFTER)]
    whole = _BEFORE + _chain(before, body).encode() + _BETWEEN + body + _AFTER
    return body if text == whole else None


def _read_mark(mark: bytes) -> tuple[int, str]:
    """How much a mark covers, and the digest there; nothing if it is not as it was written."""
    try:
        fields = loads(mark)
        length, known = fields["length"], fields["digest"]
    except (ValueError, KeyError, TypeError):
        return 0, ""
    check = hashlib.sha256(f"{length} {known}".encode()).hexdigest()[:16]
    return (length, known) if fields.get("check") == check else (0, "")
