"""One teacher's answers as bounded integers: what is sent from where the teacher is, so that sums
of several are exact, whatever the order, and can be masked.

An integer counts steps of a public length. The step follows from public numbers alone, or from what
the asking side says; never from answers. Bounds are those of `pate.sums`, whose code bounds answers
here, too; what rounding adds is taken off the bound beforehand. So an answer that was rounded is
within the bound that the plan's sensitivity is computed from.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn._checks import positive
from privlearn.errors import BadInput, UnsoundExtension
from privlearn.methods.pate.plan import Aggregate, Ball, Box, ConfidentVotes, Votes
from privlearn.methods.pate.reducers import Reducer
from privlearn.methods.pate.sums import CodeSums, Encoder, VoteCounts, clip_to_ball
from privlearn.methods.pate.trained import fingerprint

#: Steps in a ball's radius, times the root of the numbers in a code; and steps in a box's side.
_STEPS = 2.0**12
#: Above this many steps in a radius, squares of integers don't fit in 64 bits.
_MOST_STEPS = 2.0**30


class IntegerAnswers(ABC):
    """A form of one teacher's answers in integers, with the bound that they keep.

    Attributes:
        size: integers for a query.
        bound: the largest absolute value of one.
        step: what the integer 1 stands for.
    """

    size: int
    bound: int
    step: float

    def of(self, answers: Any, queries: int) -> Tensor | None:
        """One teacher's answers, bounded and rounded.

        Args:
            answers: what it says, as for `CodeSums.add` or `VoteCounts.add`.
            queries: how many there are.

        Returns:
            int64, shape (queries, size); None for what is no answer to the queries.

        Raises:
            UnsoundExtension: they are not within the bound: the code that bounds them is wrong.
        """
        integers = self._of(answers, queries)
        if integers is not None and not self.fits(integers):
            raise UnsoundExtension(
                "an answer that was bounded and rounded is above its bound: expected at most "
                f"{self.bound} steps of {self.step:g}. It is not sent; mend how it is bounded"
            )
        return integers

    @abstractmethod
    def fits(self, integers: Tensor) -> bool:
        """Whether one teacher can have these answers, int64 of shape (queries, size); exact."""

    @abstractmethod
    def _of(self, answers: Any, queries: int) -> Tensor | None:
        """As `of`, not looked at again."""


def integers_for(
    aggregate: Aggregate, encoder: Encoder | None, step: float | None = None
) -> IntegerAnswers:
    """The form of answers to what a plan asks for.

    Args:
        aggregate: what is asked for.
        encoder: from targets to codes; None for votes. For a box its centre alone is used.
        step: what 1 stands for, a power of two; None: the usual one. It is at least 2^-13 of the
            radius over the root of the numbers in a code, at most twice that; 2^-12 for a box.

    Raises:
        BadInput: a step that is no power of two, or out of range.
    """
    match aggregate:
        case Votes() | ConfidentVotes():
            return VotesInIntegers(aggregate)
        case Ball():
            assert encoder is not None
            return CodesInIntegers(aggregate, encoder, step)
        case Box():
            assert encoder is not None
            return TargetsInIntegers(aggregate, encoder, step)


@final
class VotesInIntegers(IntegerAnswers):
    """Votes as a 1 for the class and 0 for the others; all 0 for no vote.

    Args:
        aggregate: the classes.
    """

    def __init__(self, aggregate: Votes | ConfidentVotes) -> None:
        self._aggregate = aggregate
        self.size, self.bound, self.step = aggregate.classes, 1, 1.0

    def fits(self, integers: Tensor) -> bool:
        """Whether each query has one vote at most."""
        within = (integers >= 0) & (integers <= 1)
        return bool((within.all(1) & (integers.sum(1) <= 1)).all())

    def _of(self, answers: Any, queries: int) -> Tensor | None:
        totals = VoteCounts(self._aggregate, queries)
        if not totals.add(answers):
            return None
        totals.added.require_kept()
        return totals.counts.long()


@final
class CodesInIntegers(IntegerAnswers):
    """Codes less the origin, in a ball of radius r, rounded to multiples of the step s.

    A code x of d numbers is clipped to |x| <= r - sqrt(d) s / 2 and rounded to q, the nearest
    integers to x / s. No number moves by more than s / 2, so |x - q s| <= sqrt(d) s / 2, and |q s|
    <= r.

    In floating point: clips leave the share 2^-31 of the radius free (`clipping.bounded`), which is
    more than the norm of up to 2^20 numbers and the inner radius are off in double precision. s is
    a power of two, so that x / s is exact, and rounding to an integer is exact. `fits` then
    computes |q|^2 <= (r / s)^2 in integers, without rounding: nothing is sent for which that is
    wrong.

    An answer is off by at most sqrt(d) s in norm: half of it by the smaller ball, half by rounding.

    Args:
        aggregate: the ball.
        encoder: from targets to codes.
        step: as of `integers_for`.

    Raises:
        BadInput: a step that is no power of two, or out of range.
    """

    def __init__(self, aggregate: Ball, encoder: Encoder, step: float | None = None) -> None:
        self._aggregate, self._encoder = aggregate, encoder
        radius, self.size = aggregate.radius, len(encoder.code_centre)
        root = math.sqrt(self.size)
        usual = 2.0 ** math.floor(math.log2(radius / root / _STEPS))
        self.step = _require_step(usual if step is None else step, radius / root)
        if radius / self.step > _MOST_STEPS:
            raise BadInput(
                f"the step is {self.step:g} for a radius of {radius:g}: expected at least "
                f"{radius / _MOST_STEPS:g}, of which sums are exact"
            )
        self._inner_radius = radius - root * self.step / 2
        self._most_squared = math.floor((Fraction(radius) / Fraction(self.step)) ** 2)
        self.bound = math.isqrt(self._most_squared)

    def fits(self, integers: Tensor) -> bool:
        """Whether each code is in the ball, exactly."""
        if not bool(((integers >= -self.bound) & (integers <= self.bound)).all()):
            return False
        squares = integers.square()
        # In double precision: whether the integers' sum is far from 2^63, beyond which it wraps.
        small = squares.sum(1, dtype=torch.float64) <= 2.0 * self._most_squared
        return bool((small & (squares.sum(1) <= self._most_squared)).all())

    def _of(self, answers: Any, queries: int) -> Tensor | None:
        totals = CodeSums(self._aggregate, self._encoder, queries)
        if not totals.add(answers):
            return None
        totals.added.require_kept()
        codes = clip_to_ball(totals.sums, self._inner_radius)
        return (codes / self.step).round().long()


@final
class TargetsInIntegers(IntegerAnswers):
    """Targets in [0, 1] less a public centre, rounded to multiples of the step s. The linear map of
    a box is applied to their sum.

    A number t, with the centre c, becomes an integer q between ceil(-c / s) and floor((1 - c) / s),
    which are at most 1 / s apart, 0 between them: so two teachers' numbers differ by at most 1, and
    from a teacher's without answers, too. (In floating point 1 - c may be off by 2^-54, which is
    less than s, and 1 / s is an integer: they are no further apart.)

    Args:
        aggregate: the box.
        encoder: whose centre stands in for answers that are not finite.
        step: as of `integers_for`.

    Raises:
        BadInput: a step that is no power of two, or out of range; targets of another size.
    """

    def __init__(self, aggregate: Box, encoder: Encoder, step: float | None = None) -> None:
        self._aggregate, self.size = aggregate, aggregate.dimensions
        self.step = _require_step(1 / _STEPS if step is None else step, 1.0)
        if 1 / self.step > _MOST_STEPS:
            raise BadInput(
                f"the step is {self.step:g} for numbers in [0, 1]: expected at least "
                f"{1 / _MOST_STEPS:g}, of which sums are exact"
            )
        self._targets = LinearEncoder(encoder.centre)
        centre = encoder.centre.double().flatten().nan_to_num().clamp(0, 1)
        self._least = (-centre / self.step).ceil().long()
        self._most = ((1 - centre) / self.step).floor().long()
        self.bound = int(1 / self.step)

    def fits(self, integers: Tensor) -> bool:
        """Whether each number is in the box, exactly."""
        return bool(((integers >= self._least) & (integers <= self._most)).all())

    def _of(self, answers: Any, queries: int) -> Tensor | None:
        totals = CodeSums(self._aggregate, self._targets, queries)
        if not totals.add(answers):
            return None
        totals.added.require_kept()
        nearest = (totals.sums / self.step).round().long()
        return nearest.clamp(self._least, self._most)


@final
@dataclass(frozen=True, eq=False, repr=False)
class LinearEncoder:
    """A linear map from targets to codes, given as public arrays.

    Attributes:
        centre: the target that is taken off first, of one target's shape.
        matrix: shape (numbers in a code, numbers in a target); None for none.
    """

    centre: Tensor
    matrix: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one target."""
        return tuple(self.centre.shape)

    @property
    def code_centre(self) -> Tensor:
        """The centre's code."""
        return self.encode(self.centre[None])[0]

    @property
    def is_identity(self) -> bool:
        """Whether there is no map."""
        return self.matrix is None

    def encode(self, targets: Tensor) -> Tensor:
        """Codes, shape (rows, numbers in a code), of targets (rows, *shape)."""
        rows, centre = targets.flatten(1), self.centre.flatten()
        if self.matrix is None:
            return rows - centre
        return (rows.to(self.matrix) - centre.to(self.matrix)) @ self.matrix.T


def reducer_fingerprint(reducer: Reducer) -> str:
    """What tells a public reducer from others: a digest of its description and of the arrays and
    networks that it holds, not of what it computes, which differs in the last bits from machine to
    machine.
    """
    texts = [str(sorted(reducer.describe().items())), str(tuple(reducer.shape))]
    tensors = [reducer.centre]
    for name, value in sorted(vars(reducer).items()):
        if isinstance(value, Tensor):
            texts.append(name)
            tensors.append(value)
        elif isinstance(value, nn.Module):
            texts.append(f"{name} {value}")
            tensors += [each for _, each in sorted(value.state_dict().items())]
    return fingerprint(*(torch.tensor([*text.encode()], device="cpu") for text in texts), *tensors)


def _require_step(step: float, most: float) -> float:
    """A step that is a power of two.

    Raises:
        BadInput: it is none, or above `most`.
    """
    if math.frexp(positive("step", step))[0] != 0.5 or step > most:
        raise BadInput(f"the step is {step!r}: expected a power of two, at most {most:g}")
    return float(step)
