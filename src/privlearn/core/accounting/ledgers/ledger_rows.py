"""The rows of a ledger: each appends a change to a data set, and holds the digest of the one
before.

How a database keeps them is said elsewhere; here is what they hold and how they follow each other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from privlearn._storage import loads
from privlearn.core.accounting.ledgers.ledger_json import (
    apply_changes,
    plain_state,
    read_state,
)
from privlearn.core.accounting.ledgers.ledger_state import LedgerState
from privlearn.errors import PrivlearnError

#: The digest before the first row.
START = "0" * 64


class Row(NamedTuple):
    """One change.

    Attributes:
        data: the data set that it is of.
        number: counts the rows of a data set from 1.
        at: when it was written, in UTC.
        whole: 1 if it holds the whole state, 0 if it holds what changed.
        content: that, as JSON.
        previous: the digest of the row before.
        digest: of all the above.
    """

    data: str
    number: int
    at: str
    whole: int
    content: str
    previous: str
    digest: str


@dataclass(frozen=True)
class Place:
    """How far a ledger was read.

    Attributes:
        number: the last row.
        digest: its digest.
        whole, since: characters of the last whole state, and of all changes since then.
    """

    number: int = 0
    digest: str = START
    whole: int = 0
    since: int = 0


def read_rows(rows: Iterable[Row], state: LedgerState, place: Place) -> tuple[LedgerState, Place]:
    """The state after `rows`, which follow `place`, where it was `state`.

    Raises:
        ValueError: one does not follow, or is not as it was written.
    """
    changes: list[Any] = []
    try:
        for row in rows:
            value, place = follow(place, row)
            if row.whole:
                state, changes = read_state(value), []
            else:
                changes.append(value)
        return apply_changes(state, changes), place
    except PrivlearnError as error:  # such as an event of a later version
        raise ValueError(str(error)) from error


def follow(place: Place, row: Row) -> tuple[Any, Place]:
    """What the next row holds, and its place.

    Raises:
        ValueError: it does not follow, or is not as it was written.
    """
    number = row.number
    if (number, row.previous) != (place.number + 1, place.digest):
        raise ValueError(f"row {number} does not follow the one before: rows are gone, or others")
    if row.digest != compute_digest(row):
        raise ValueError(f"the digest of row {number} does not match: it was edited or damaged")
    length = len(row.content)
    sizes = (length, 0) if row.whole else (place.whole, place.since + length)
    return loads(row.content.encode()), Place(number, row.digest, *sizes)


def next_row(data: str, place: Place, state: LedgerState, change: Any | None) -> Row:
    """The row that appends a change, or the whole state: where only that says it, or the changes
    have become as long as it.
    """
    content = "" if change is None else json.dumps(change)
    whole = change is None or place.since + len(content) > 2 * place.whole
    if whole:
        content = json.dumps(plain_state(state))
    at = datetime.now(UTC).isoformat(timespec="seconds")
    row = Row(data, place.number + 1, at, int(whole), content, place.digest, "")
    return row._replace(digest=compute_digest(row))


def compute_digest(row: Row) -> str:
    """The SHA-256 of all that a row holds beside it.

    Raises:
        ValueError: it holds something else than numbers and text.
    """
    try:
        return hashlib.sha256(json.dumps(row[:-1]).encode()).hexdigest()
    except TypeError as error:  # bytes in place of text
        raise ValueError(f"row {row.number} holds something else than a change") from error
