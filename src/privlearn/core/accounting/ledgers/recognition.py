"""A ledger refuses runs on rows of other data, and says when rows have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from privlearn.core.accounting.ledgers.data_versions import MOST, DataVersion
from privlearn.core.accounting.ledgers.ledger_database import LedgerDatabase
from privlearn.errors import BadInput, DataWarning, warn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: With less in common than this, rows are other data, and not changed ones.
_CHANGED = 0.1
#: With more in common than this, which chance does not give, two data sets share rows.
_SHARED = 0.02


def compare(version: DataVersion, known: Sequence[DataVersion], key: bytes) -> float | None:
    """How much rows have in common with the version that is most alike; None if there is none that
    was computed with this key.
    """
    shares = [version.share_in_common(one, key) for one in known if one.key == version.key]
    return max(shares, default=None)


def recognise(database: LedgerDatabase, digests: NDArray[np.uint64], *, new_rows: bool) -> None:
    """Note that the next run is on rows with these digests, shape (rows,).

    Args:
        database: the ledger of the data set.
        digests: of the rows.
        new_rows: whether rows may be others than those before.

    Raises:
        BadInput: earlier runs were on other rows, these rows are those of another data set, or the
            key is gone that would tell, and `new_rows` was not declared.

    Warns:
        DataWarning: the rows have changed since the runs before, or are in another data set, too.
    """
    known = database.read().versions
    key = database.key(create=not known or new_rows)
    version = DataVersion.of(digests, key)
    share = compare(version, known, key)
    if share == 1:
        return
    names = [name for name in database.names() if name != database.data]
    others = {name: compare(version, database.other(name).read().versions, key) for name in names}
    if not new_rows:
        _require_alike(database, share, others, bool(known))
    if share is not None:
        many = f"about {share:.0%}" if share > _SHARED else "next to none"
        warn(
            f"of all rows that are in these or in those of earlier runs on the data set "
            f"{database.data!r}, {many} are in both. The ledger {database.path} counts both as one "
            "data set, which is right if they are of the same persons",
            DataWarning,
        )
    with database.editing() as state:
        state.versions = (*state.versions, version)[-MOST:]
    for name, other in others.items():
        if other is not None and other > _SHARED:
            warn(
                f"rows of {database.data!r} are also in the data set {name!r} (of all rows that "
                f"are in either about {other:.0%}): a person who is in both is protected by the "
                f"sum of both budgets. `privlearn ledger {database.path} --overlap all` adds them",
                DataWarning,
            )


def _require_alike(
    database: LedgerDatabase, share: float | None, others: dict[str, float | None], known: bool
) -> None:
    """Raise `BadInput` where rows are those of other data, as far as that can be told."""
    declare = "If they are of the same persons, say so with new_rows=True"
    same = [name for name, other in others.items() if other == 1]
    if same:
        raise BadInput(
            f"these rows are those of the data set {same[0]!r} in {database.path}, and the ledger "
            f"of {database.data!r} was named: two ledgers for one data set promise less than "
            f"either says. Charge {same[0]!r}. {declare}"
        )
    if share is None and known:
        raise BadInput(
            f"the rows can't be compared with those of earlier runs on {database.data!r}: the key "
            f"of {database.path} is another one than theirs. Bring it back. {declare}"
        )
    if share is not None and share < _CHANGED:
        near = [name for name, other in others.items() if other is not None and other >= _CHANGED]
        raise BadInput(
            f"the ledger {database.path} is for other rows: next to none of these are among those "
            f"of earlier runs on {database.data!r}"
            f"{f', and many are in {near[0]!r}' if near else ''}. Other data have a data set of "
            f"their own, begun with a budget and named by data_set=NAME. {declare}"
        )
