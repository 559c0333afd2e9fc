"""Two protocols are all that the rest of the package needs: what releases are charged to, and what
can be approved ahead.

Who charges needs an `Account` alone: not to know which one, nor where it is kept.
"""

from __future__ import annotations

from typing import Protocol

from privlearn.core.accounting.events import Composed, Event
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit


class Account(Protocol):
    """Anything that releases can be charged to: a ledger, or a filter opened on one."""

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Add `event`, or raise and leave everything as it was."""
        ...


class Planned(Protocol):
    """A plan: public numbers that fix, before any data is touched, what a run is charged."""

    def event(self) -> Composed:
        """Everything that the run will be charged."""
        ...

    @property
    def neighbours(self) -> Adjacency:
        """The kind of neighbour."""
        ...

    @property
    def unit(self) -> PrivacyUnit:
        """Whose data are protected."""
        ...
