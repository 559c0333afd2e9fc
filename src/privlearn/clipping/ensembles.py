"""What an ensemble of teachers is asked for: frozen, public numbers, each with the most that one teacher can move it.

A record is with one teacher, and may change everything about it: what it learned, its random numbers, whether it works at
all. So one record moves the sum over teachers from any answer of one teacher to any other: by the diameter of what answers
are clipped to. That holds for every kind of neighbour (maths: Fay et al. 2020, Props 1 and 2, for answers that are clipped).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from privlearn._validate import between, count, probability

_RADII = (1e-12, 1e12)
_MOST = 10**9


@final
@dataclass(frozen=True)
class Ball:
    """Each teacher's code is clipped to L2 distance `radius` of a public code; what is released is the mean of codes.

    The sum over teachers moves by at most 2 x radius, whatever the dimension (Fay et al. 2020, Prop 2).
    """

    radius: float = 1.0
    kind: ClassVar[str] = "ball"

    def __post_init__(self) -> None:
        between("radius", self.radius, *_RADII)

    @property
    def sensitivity(self) -> float:
        """The most that one teacher moves the sum of codes."""
        return 2 * self.radius


@final
@dataclass(frozen=True)
class Box:
    """Each teacher's target is clipped to [0, 1] in each of `dimensions` numbers, then encoded by a linear map of norm 1.

    The sum over teachers moves by at most sqrt(dimensions) (Fay et al. 2020, Prop 1): far more than a ball's for targets of
    many numbers.
    """

    dimensions: int
    kind: ClassVar[str] = "box"

    def __post_init__(self) -> None:
        count("dimensions", self.dimensions, most=_MOST)

    @property
    def sensitivity(self) -> float:
        """The most that one teacher moves the sum of codes."""
        return math.sqrt(self.dimensions)


@final
@dataclass(frozen=True)
class Votes:
    """Each teacher votes for one of `classes`, or for none; what is released are noisy counts, of which the largest wins.

    One teacher moves its vote: two counts by 1 each, sqrt(2) together (the Gaussian noisy max, Papernot et al. 2018).
    """

    classes: int
    kind: ClassVar[str] = "votes"

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2, most=_MOST)

    @property
    def sensitivity(self) -> float:
        """The most that one teacher moves the counts."""
        return math.sqrt(2)


@final
@dataclass(frozen=True)
class ConfidentVotes:
    """As `Votes`, asked only where the largest count, with noise, reaches `threshold` (Confident-GNMax, Papernot et al. 2018).

    Every query pays for that test, and `answers` of them at most for an answer; then nothing more is asked.

    Attributes:
        classes: how many there are.
        threshold: votes that the noisy largest count must reach.
        answers: queries that are answered at most.
        share: how much of the whole price goes into the tests.
    """

    classes: int
    threshold: float
    answers: int
    share: float = 0.3
    kind: ClassVar[str] = "confident-votes"

    #: The most that one teacher moves the largest count.
    test_sensitivity: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2, most=_MOST)
        between("threshold", self.threshold, 0.0, 1e12)
        count("answers", self.answers)
        probability("share", self.share, open_top=True)

    @property
    def sensitivity(self) -> float:
        """The most that one teacher moves the counts."""
        return math.sqrt(2)


#: What a plan can ask for.
Aggregate = Ball | Box | Votes | ConfidentVotes
#: Those whose answers are codes, and those whose answers are classes.
Codes = Ball | Box
Classes = Votes | ConfidentVotes
