"""PATE: adding up many teachers' answers, streamed, beside holding all of them: codes a second and
peak memory.

`python bench/pate.py [--quick] [--json]`. Teachers' answers are targets of 64^3 x 4 numbers,
encoded by principal components, clipped and added up one teacher after another; the answer of a
case is the norm of the released mean codes' sum. Making the answers is timed too, in all variants
alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import common
import torch
from common import Case, Variant
from torch import Tensor

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledger import Ledger
from privlearn.methods import pate as teachers
from privlearn.methods import pate as teachers_module
from privlearn.methods.pate.answers import release_answers, sum_answers
from privlearn.methods.pate.sums import clip_to_ball

RADIUS = 5.0


@dataclass(frozen=True)
class Size:
    """How large the cases are.

    Attributes:
        shape: of one target.
        components: numbers in a code.
        queries: that each teacher answers.
        teachers: how many, by case: memory must not grow with them.
        held: teachers whose answers are all held at once, for comparison; memory for more would not
            be there.
        rounds: of each variant.
    """

    shape: tuple[int, ...]
    components: int
    queries: int
    teachers: tuple[int, ...]
    held: int
    rounds: int


FULL = Size((4, 64, 64, 64), 32, 4, (25, 250), 25, 1)
QUICK = Size((4, 32, 32, 32), 16, 4, (25, 250), 25, 3)
SMOKE = Size((2, 4, 4), 3, 2, (3, 6), 3, 1)


class MadeUp(teachers.Teachers):
    """Teachers whose answers are made up as they are asked for: the mean target and something of
    their own.
    """

    def __init__(self, size: Size, number: int) -> None:
        self._size, self._number = size, number

    @property
    def count(self) -> int:
        """How many there are."""
        return self._number

    def require_covered(self, adjacency: Adjacency, unit: PrivacyUnit) -> None:
        """They learned from nothing."""

    def answers(
        self, inputs: Tensor, streams: pv.Streams, progress: Any = None, shapes: Any = None
    ) -> Iterator[Tensor | None]:
        """One teacher's answers at a time."""
        made_up, start = torch.Generator().manual_seed(0), signal(self._size)
        for _ in range(self._number):
            yield start + torch.rand(
                self._size.queries, *(1 for _ in self._size.shape), generator=made_up
            )


@cache
def signal(size: Size) -> Tensor:
    """What all teachers roughly say."""
    return torch.rand(size.queries, *size.shape, generator=torch.Generator().manual_seed(1))


@cache
def reducer(size: Size) -> teachers_module.PublicPCA:
    """Principal components of a few made-up targets."""
    targets = torch.rand(
        size.components + 8, *size.shape, generator=torch.Generator().manual_seed(2)
    )
    return teachers_module.PublicPCA.fit(
        pv.Dataset(torch.zeros(len(targets), 1), targets, public=True), size.components
    )


def streamed(size: Size, number: int) -> Any:
    """Prepare the library's way, release included."""
    encoder, plan = (
        reducer(size),
        pv.teachers.PatePlan(size.queries, number, pv.teachers.Ball(RADIUS), noise_multiplier=1e-3),
    )
    signal(size)

    def run() -> float:
        streams = pv.Streams.new(0)
        sums, _ = sum_answers(
            plan, MadeUp(size, number), encoder, torch.zeros(size.queries, 1), streams
        )
        release_answers(plan, sums, encoder, Ledger(), streams)
        return float(sums.sums.norm())  # type: ignore[union-attr]

    return run


def held(size: Size, number: int) -> Any:
    """Prepare the obvious way: all answers in memory, encoded and clipped at once."""
    encoder = reducer(size)
    signal(size)

    def run() -> float:
        said = list(MadeUp(size, number).answers(torch.zeros(size.queries, 1), pv.Streams.new(0)))
        codes = encoder.encode(torch.cat(said)).double()  # type: ignore[arg-type]
        return float(clip_to_ball(codes, RADIUS).view(number, size.queries, -1).sum(0).norm())

    return run


def cases(size: Size) -> list[Case]:
    """Few teachers, streamed and held; then streamed over the number of teachers."""
    numbers = size.shape, size.queries
    both = (
        Variant("all held", lambda: held(size, size.held), prepared=True),
        Variant("streamed", lambda: streamed(size, size.held), prepared=True, within=1e-4),
    )
    growing = tuple(
        Variant(
            f"{number} teachers",
            lambda number=number: streamed(size, number),
            prepared=True,
            slow=True,
        )
        for number in size.teachers
    )
    return [
        Case(
            f"{size.held} teachers, targets {numbers[0]}, {numbers[1]} queries",
            "norm of the sums",
            both,
            size.rounds,
        ),
        Case(
            f"streamed, targets {numbers[0]}, {numbers[1]} queries",
            "norm of the sums",
            growing,
            size.rounds,
        ),
    ]


def main() -> None:
    """Read the options, run the benchmark, and print codes a second."""
    options = common.parser(__file__, __doc__.splitlines()[0]).parse_args()
    size = QUICK if options.quick else FULL
    rows = common.main(__file__, options, cases(size), at_once=1)
    if rows and not options.json:
        for row in rows:
            number = int(row.variant.split()[0]) if row.variant.endswith("teachers") else size.held
            print(
                f"{row.variant}: {number * size.queries / row.seconds:.0f} codes a second, peak "
                f"{row.peak_mib:.0f} MiB"
            )


if __name__ == "__main__":
    main()
