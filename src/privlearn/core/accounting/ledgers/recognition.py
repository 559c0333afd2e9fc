"""A ledger refuses runs on rows of other data, and says when rows have changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

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


@final
@dataclass(frozen=True)
class Likeness:
    """How alike rows are to those that a data set's runs were on.

    Attributes:
        data: the data set.
        share: how many of the rows of both are in both, about, for the version that is most alike;
            1 if one has the same rows; None if there is none to compare with.
    """

    data: str
    share: float | None


def compare(version: DataVersion, database: LedgerDatabase) -> Likeness:
    """How alike rows are to those of a data set."""
    versions = [known for known in database.read().versions if known.key == version.key]
    shares = [version.share_in_common(known) for known in versions]
    return Likeness(database.data or "", max(shares, default=None))


def recognise(database: LedgerDatabase, digests: NDArray[np.uint64]) -> None:
    """Note that the next run is on rows with these digests, shape (rows,).

    Raises:
        BadInput: the ledger is for other rows, and its data set was not named.

    Warns:
        DataWarning: the rows have changed since the runs before, or are in another data set, too.
    """
    version = DataVersion.of(digests, database.key())
    share = compare(version, database).share
    if share == 1:
        return
    if share is not None and share < _CHANGED and not database.named:
        raise BadInput(_refusal(version, database))
    if share is not None:
        many = f"about {share:.0%}" if share > _SHARED else "next to none"
        warn(
            f"of these rows and those that runs of the data set {database.data!r} were on, {many} "
            f"are in both. The ledger {database.path} counts them as one data set: right if they "
            "are of the same persons. Begin another data set with data_set=NAME",
            DataWarning,
        )
    with database.editing() as state:
        if version not in state.versions:
            state.versions = (*state.versions, version)[-MOST:]
    for name in database.names():
        if name != database.data:
            _warn_of_overlap(version, database, database.other(name))


def _refusal(version: DataVersion, database: LedgerDatabase) -> str:
    others = [compare(version, database.other(name)) for name in database.names()]
    near = [other.data for other in others if other.share is not None and other.share >= _CHANGED]
    return (
        f"the ledger {database.path} is for other rows: next to none of these are among those that "
        f"runs of its data set {database.data!r} were on"
        f"{f', and many are in {near[0]!r}' if near else ''}. Name the data set with "
        f"data_set=NAME: a new name begins one, and {database.data!r} says that they belong there"
    )


def _warn_of_overlap(version: DataVersion, database: LedgerDatabase, other: LedgerDatabase) -> None:
    share = compare(version, other).share
    if share is not None and share > _SHARED:
        warn(
            f"rows of {database.data!r} are also in the data set {other.data!r} (of all rows of "
            f"both about {share:.0%}): a person who is in both is protected by the sum of both "
            f"guarantees. `privlearn ledger {database.path} --overlap all` computes it",
            DataWarning,
        )
