"""A declared number of examples that is far from how many there are."""

from __future__ import annotations

from privlearn.errors import DataWarning, warn


def warn_of_number(declared: int | None, present: int | None) -> None:
    """Warn the data's curator of a declared number of examples that is more than twice, or less
    than half, of how many there are, if both are known. Nothing else follows from it.
    """
    if declared and present and not declared / 2 <= present <= 2 * declared:
        warn(
            f"the data have {present:,} examples, and examples={declared} is declared, by which "
            "sums are divided and examples are drawn: check the number. How many there are is for "
            "the data's curator, and is not published",
            DataWarning,
        )
