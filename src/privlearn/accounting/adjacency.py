"""The kinds of neighbour a guarantee can be for. They are never implied and never mix."""

from __future__ import annotations

from enum import StrEnum, unique

from privlearn._validate import one_of
from privlearn.errors import AdjacencyMismatch


@unique
class Adjacency(StrEnum):
    """When two data sets count as neighbours.

    ADD_REMOVE: one example is added or removed; the number of examples is protected too.
    ZERO_OUT: one example is replaced by a null example that contributes nothing; the number is public.
    REPLACE_ONE: one example is replaced by any other; the number is public.
    """

    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    REPLACE_ONE = "replace_one"

    @classmethod
    def parse(cls, name: str) -> Adjacency:
        """Return the member called `name`, or raise `BadInput` with the list of them."""
        return cls(one_of("adjacency", str(name), [member.value for member in cls]))

    def sum_sensitivity(self, norm: float) -> float:
        """L2 sensitivity of a sum in which each example's vector has L2 norm at most `norm`."""
        return 2.0 * norm if self is Adjacency.REPLACE_ONE else norm


def require_same(first: Adjacency, second: Adjacency, what: str) -> None:
    """Raise `AdjacencyMismatch` unless both are the same kind of neighbour."""
    if first is not second:
        raise AdjacencyMismatch(
            f"{what}: {second.value} meets {first.value}. A guarantee holds for one kind of neighbour; "
            "use one adjacency for the whole plan, or a ledger of its own for each",
            expected=first,
            given=second,
        )
