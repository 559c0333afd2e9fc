"""Which teacher learns from which records: each record with one, assigned without a look at any other record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn._validate import count
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.sampling import assign

Places = NDArray[np.int64]


def drawn(data: Dataset, teachers: int, rng: np.random.Generator) -> Places:
    """For each row its teacher, drawn independently and uniformly; a person's rows stay together."""
    block_of = assign(data.examples, count("teachers", teachers), rng)
    if data.groups is None:
        return block_of
    return block_of[np.unique(np.asarray(data.groups), return_inverse=True)[1].reshape(-1)]


def by_site(data: Dataset, sites: Any) -> tuple[Places, int]:
    """For each row its teacher where each site is one, and how many there are: the sites, which are public, in their order.

    Raises:
        BadInput: not one site for each row, or a person at two sites.
    """
    given = np.asarray(sites)
    if given.shape != (len(data.x),) or given.dtype.kind not in "iuUSb":
        raise BadInput(
            f"sites have the shape {given.shape} and type {given.dtype}, for {len(data.x)} rows: expected the id of a site, a "
            "whole number or a text, for each row"
        )
    names, place = np.unique(given, return_inverse=True)
    found = place.reshape(-1).astype(np.int64)
    _require_persons_apart(data, found)
    return found, len(names)


def by_rows(data: Dataset, shards: Sequence[Any]) -> tuple[Places, int]:
    """For each row its teacher (-1: none), where the rows of each teacher are given, and how many there are.

    Raises:
        BadInput: a row that there isn't, or one in two shards.
    """
    found = np.full(len(data.x), -1, dtype=np.int64)
    for number, shard in enumerate(shards):
        rows = np.asarray(shard)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise BadInput(f"shard {number} has shape {rows.shape} and type {rows.dtype}: expected numbers of rows")
        rows = rows.astype(np.int64)
        if rows.size and not (rows.min() >= 0 and rows.max() < len(found)):
            raise BadInput(
                f"shard {number} has rows outside 0 to {len(found) - 1}: expected numbers of rows of the data"
            )
        if len(np.unique(rows)) < len(rows) or bool((found[rows] >= 0).any()):
            raise BadInput(
                f"shard {number} holds a row that another one holds too, or holds one twice: shards overlap, and one record "
                "would move two teachers. Give each row to one teacher",
                shard=number,
            )
        found[rows] = number
    _require_persons_apart(data, found)
    return found, len(shards)


def _require_persons_apart(data: Dataset, place: Places) -> None:
    """Refuse shards in which one person is with two teachers."""
    if data.groups is None:
        return
    person = np.unique(np.asarray(data.groups), return_inverse=True)[1].reshape(-1)
    used = place >= 0
    pairs = np.unique(np.stack([person[used], place[used]]), axis=1)
    if len(np.unique(pairs[0])) < pairs.shape[1]:
        raise BadInput(
            "a person's rows are with two teachers: shards overlap, and one person would move both. Give all rows of a person "
            "to one teacher, or leave out groups to protect single rows"
        )
