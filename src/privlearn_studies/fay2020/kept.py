"""Teachers' answers that are computed once and given again, to compare several releases on the same
ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from torch import Tensor

from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.streams import Streams
from privlearn.methods.pate import Teachers
from privlearn.methods.pate.ensemble import Progress
from privlearn.methods.pate.sums import Shapes


@final
class Kept(Teachers):
    """An ensemble whose answers are known already, to the first queries as many as are asked.

    Each release of them is priced by itself, as if it were the only one. A study prints several; a
    publisher is charged for them all.

    Args:
        answers: of each teacher, a row for each query; None for one that has none.
    """

    def __init__(self, answers: Sequence[Tensor | None]) -> None:
        self._answers = tuple(answers)

    @classmethod
    def of(cls, teachers: Teachers, inputs: Tensor, streams: Streams) -> Kept:
        """Ask every teacher of an ensemble about `inputs`, and keep what they say."""
        return cls(
            [None if said is None else said.clone() for said in teachers.answers(inputs, streams)]
        )

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._answers)

    @property
    def known(self) -> list[Tensor]:
        """The answers of those that have some: private."""
        return [said for said in self._answers if said is not None]

    def require_covered(self, adjacency: Adjacency, unit: PrivacyUnit) -> None:
        """As those that were asked: nothing is known here of who learned from what."""

    def answers(
        self,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
        shapes: Shapes | None = None,
    ) -> Iterator[Tensor | None]:
        """What was kept, for the first of the queries."""
        for number, said in enumerate(self._answers):
            yield None if said is None else said[: len(inputs)]
            if progress:
                progress(number + 1, self.count)
