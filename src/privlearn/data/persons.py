"""Rows that belong to persons: which rows stand for each, so that a person can be one example.

Everything about a person is decided from that person's own id and rows, so data sets that differ in one person differ in
that person's line alone. Ids decide nothing but which rows go together; none leaves this module.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn._validate import count
from privlearn.errors import BadInput


def persons_in(groups: NDArray[Any]) -> int:
    """How many persons there are."""
    return len(np.unique(groups))


def most_rows(groups: NDArray[Any]) -> int:
    """How many rows one person has at most."""
    return int(np.unique(groups, return_counts=True)[1].max(initial=0))


def rows_of_persons(groups: NDArray[Any], rows_per_person: int, key: bytes) -> NDArray[np.int64]:
    """For each person the rows that stand for them, always `rows_per_person` of them; shape (persons, rows_per_person).

    Somebody with fewer rows has them again and again, in turn; of somebody with more a random part is taken, once for the
    run. That choice follows from `key`, the person's id and how many rows they have: nobody's moves when somebody else comes,
    goes or changes. (The guarantee does not rest on it: any choice from a person's own rows would do.) Persons are in the
    order of their ids, and rows in the order of the data.

    Args:
        groups: one id for each row, as `require_groups` accepts them.
        rows_per_person: public.
        key: at most 64 bytes, drawn for this run.
    """
    count("rows_per_person", rows_per_person)
    ids, person_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(person_of.reshape(-1), kind="stable")
    starts = np.cumsum(sizes) - sizes
    # In turn: row number i of somebody with n rows is their i mod n.
    turns = starts[:, None] + np.arange(rows_per_person) % sizes[:, None]
    for person in np.flatnonzero(sizes > rows_per_person):
        turns[person] = starts[person] + _choice(ids[person], int(sizes[person]), rows_per_person, key)
    return np.asarray(order[turns], dtype=np.int64)


def require_groups(name: str, groups: NDArray[Any], rows: int) -> None:
    """Raise `BadInput` unless `groups` is a person's id, a whole number or a text, for each of `rows` rows."""
    if groups.ndim != 1 or len(groups) != rows:
        raise BadInput(
            f"groups of {name} has shape {groups.shape}: expected one person's id for each of the {rows} rows, shape ({rows},)"
        )
    if groups.dtype.kind not in "iuUS":
        raise BadInput(
            f"groups of {name} holds {groups.dtype} values: expected whole numbers or texts, a person's id each"
        )


def _choice(person: Any, size: int, kept: int, key: bytes) -> NDArray[np.int64]:
    """Which `kept` of a person's `size` rows are taken, ascending."""
    digest = hashlib.blake2b(repr(person.item()).encode(), key=key, digest_size=16).digest()
    chosen = np.random.default_rng(int.from_bytes(digest, "big")).choice(size, kept, replace=False)
    return np.sort(chosen).astype(np.int64)
