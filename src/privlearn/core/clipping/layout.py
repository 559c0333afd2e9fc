"""This file finds where the examples are in a tensor of one call, from made-up batches of two
sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from privlearn.errors import PrivlearnError


class NotLayerwise(PrivlearnError):
    """The gradients can't be read off the operations' inputs and outputs."""


@final
@dataclass(frozen=True)
class Layout:
    """Where the examples are in a tensor of one call.

    Attributes:
        axis: the dimension of the batch, 0 or 1.
        rows: how many entries in that dimension belong to one example, one after the other.
    """

    axis: int
    rows: int

    @classmethod
    def between(cls, one: Sequence[int], other: Sequence[int], batches: tuple[int, int]) -> Layout:
        """The layout that explains the shapes of the same call at two batch sizes."""
        if one and one[0] % batches[0] == 0 and one[0] * batches[1] == other[0] * batches[0]:
            return cls(0, one[0] // batches[0])
        if len(one) > 1 and (one[1], other[1]) == batches:
            return cls(1, 1)
        raise NotLayerwise(
            f"an operation on shape {tuple(one)} has no dimension for the batch of {batches[0]}"
        )
