"""A guarantee states epsilon and delta for one kind of neighbour, and whose data it protects.

Kinds of neighbour are never implied and never mix. The unit of protection is one example, a person
with several of them, or one person with all their rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from enum import StrEnum, unique
from typing import Any, Literal, final

from privlearn._checks import checked, count, one_of, quoted, with_plain_numbers
from privlearn._display import Described, Summary
from privlearn.errors import AdjacencyMismatch, BadInput

#: Examples of one person that are priced together at most.
MOST_IN_A_GROUP = 10_000
#: Rows of each person, where there is no limit to them.
ALL = "all"


@checked
@final
@dataclass(frozen=True)
class PrivacyUnit:
    """The unit of protection of a plan, a ledger and a claim.

    Attributes:
        group_size: examples that one person has at most; the guarantee is for all of them together.
            A bound that is declared, never read off the data: a person with more is protected less.
        rows_per_person: None where an example is a row. Else an example is a person, with any
            number of rows, of which at most this many take part; or "all" of them.

    Raises:
        BadInput: a number out of range, or both of them.
    """

    group_size: int = 1
    rows_per_person: int | str | None = None

    def __post_init__(self) -> None:
        count("group_size", self.group_size, most=MOST_IN_A_GROUP)
        if self.rows_per_person is not None:
            if self.rows_per_person != ALL:
                count("rows_per_person", self.rows_per_person)  # type: ignore[arg-type]
            if self.group_size > 1:
                raise BadInput(
                    f"group_size is {self.group_size} and rows_per_person {self.rows_per_person}: "
                    "where an example is a person, one example is all that a person has. Leave "
                    "out one of the two"
                )

    def figures(self) -> dict[str, Any]:
        """What is not as usual, by name: empty where the unit is one row."""
        named = {"group_size": self.group_size} if self.group_size > 1 else {}
        return (
            named
            if self.rows_per_person is None
            else named | {"rows_per_person": self.rows_per_person}
        )

    def change(self, verb: str) -> str:
        """What neighbouring data sets differ in, with `verb` such as "added or removed"."""
        if self.rows_per_person is not None:
            return f"one person, with all their rows, is {verb}"
        if self.group_size > 1:
            return f"examples of one person, up to {self.group_size} of them, are {verb}"
        return f"one example is {verb}"

    def __str__(self) -> str:
        if self.rows_per_person == ALL:
            return "one person (any number of rows, all of which may be used)"
        if self.rows_per_person is not None:
            return (
                f"one person (any number of rows, of which at most {self.rows_per_person} are used)"
            )
        if self.group_size > 1:
            return f"up to {self.group_size} examples of one person"
        return "one example (one row of the training data)"


@unique
class Adjacency(StrEnum):
    """When two data sets count as neighbours.

    ADD_REMOVE: one example is added or removed; the number of examples is protected too.
    ZERO_OUT: one example is replaced by a null example that contributes nothing; the number is
    public. REPLACE_ONE: one example is replaced by any other; the number is public.
    """

    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    REPLACE_ONE = "replace_one"

    @classmethod
    def _missing_(cls, value: object) -> Adjacency:
        raise BadInput(f"adjacency is {quoted(value)}: expected one of {', '.join(cls)}")

    @classmethod
    def parse(cls, name: str) -> Adjacency:
        """Return the member called `name`, or raise `BadInput` with the list of them."""
        return cls(one_of("adjacency", str(name), [member.value for member in cls]))

    def sum_sensitivity(self, norm: float) -> float:
        """L2 sensitivity of a sum in which each example's vector has L2 norm at most `norm`."""
        return 2.0 * norm if self is Adjacency.REPLACE_ONE else norm


def require_same(first: Adjacency, second: Adjacency, what: str) -> None:
    """Raise `AdjacencyMismatch` unless both are the same kind of neighbour; `what` has or expects
    the first.
    """
    if first is not second:
        declared = " (in training with examples=N)" if first is Adjacency.ADD_REMOVE else ""
        raise AdjacencyMismatch(
            f"{what}: {second.value} neighbours were given, and {first.value} expected: a "
            f"guarantee is for one kind. Give adjacency='{first.value}'{declared} to what is new, "
            "or one adjacency to all. On ledgers apart, nothing is claimed for both together",
            expected=first,
            given=second,
        )


#: An epsilon from which on an attacker may be as good as certain: e^20 is half a billion.
_HOLLOW = 20.0


def hollow(epsilon: float | None, delta: float | None, examples: int | None) -> Iterator[str]:
    """Why a target promises next to nothing, where it does: warnings."""
    if delta is not None and examples is not None and delta * examples >= 1:
        yield (
            f"delta {delta:g} is not below one over the {examples} examples: a mechanism may then "
            "give away a whole example and keep to it. Give one far below, for example "
            f"{0.1 / examples:.1g}"
        )
    if epsilon is not None and epsilon > _HOLLOW:
        yield (
            f"epsilon {epsilon:g} promises next to nothing: at more than {_HOLLOW:g}, an attacker "
            "may become as good as certain that an example took part"
        )


#: What a figure is: only a `bound` may be claimed.
Kind = Literal["bound", "lower_bound", "estimate"]
#: What is done to one example, and to several.
_VERBS = {
    Adjacency.ADD_REMOVE: ("added or removed", "added or removed"),
    Adjacency.ZERO_OUT: ("replaced by an empty one", "replaced by empty ones"),
    Adjacency.REPLACE_ONE: ("replaced by another", "replaced by others"),
}


@with_plain_numbers
@final
@dataclass(frozen=True, repr=False)
class Guarantee(Described):
    """An (epsilon, delta) statement, for one kind of neighbour, by one method.

    The unit of protection is one example, or up to `group_size` of them together; an example is one
    row of the training data, or one person where `rows_per_person` says how many rows of each take
    part.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    method: str
    kind: Kind = "bound"
    rho: float | None = None
    group_size: int = 1
    rows_per_person: int | str | None = None

    @property
    def unit(self) -> PrivacyUnit:
        """Whose data are protected."""
        return PrivacyUnit(self.group_size, self.rows_per_person)

    @property
    def meaning(self) -> str:
        """What the numbers say, as a sentence."""
        change = self.unit.change(_VERBS[self.adjacency][self.group_size > 1])
        return (
            f"If {change}, no outcome becomes more than e^{rounded_up(self.epsilon)} times "
            f"({times(self.epsilon)}) as likely, but for a probability of {self.delta:g}."
        )

    def _summary(self) -> Summary:
        what = {
            "bound": self.meaning,
            "lower_bound": "a lower bound on the true figure, and no guarantee",
            "estimate": "an estimate, and no guarantee",
        }[self.kind]
        rho = [] if self.rho is None else [("rho", f"{self.rho:.6g} (zCDP)")]
        return Summary(
            f"Guarantee: {self}", [("meaning", what), ("protects", str(self.unit)), *rho]
        )

    def __str__(self) -> str:
        sign = {"bound": "", "lower_bound": "at least ", "estimate": "about "}[self.kind]
        unit = f", for {self.unit}" if self.unit != PrivacyUnit() else ""
        figures = f"({sign}{rounded_up(self.epsilon)}, {self.delta:g})-DP"
        return f"{figures} for {self.adjacency.value} neighbours{unit}, by {self.method}"


#: Below this, figures of epsilon are given by significant digits.
_SMALL = 0.01
#: From here on, e^epsilon has too many digits to be read.
_POWERS_OF_TEN = 23.0


def rounded_up(epsilon: float) -> str:
    """`epsilon` for reading, never below the figure itself: three digits after the point, or three
    significant ones.

    >>> rounded_up(3.99881), rounded_up(0.000012345)
    ('3.999', '1.24e-05')
    """
    if not math.isfinite(epsilon):
        return f"{epsilon:g}"
    if 0 < epsilon < _SMALL:
        return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(epsilon))):.6g}"
    return f"{math.ceil(epsilon * 1000) / 1000:.6g}"


def times(epsilon: float) -> str:
    """What e^epsilon comes to, for reading beside it: two significant digits, or near 1 two of what
    is above 1.

    >>> times(1.0), times(8.0), times(0.05)
    ('about 2.7 times', 'about 3,000 times', 'about 1.051 times')
    """
    if not epsilon < _POWERS_OF_TEN:
        return f"about 10^{epsilon / math.log(10):.0f} times"
    above = math.expm1(epsilon)
    rounded = 1 + float(f"{above:.1e}") if above < 0.1 else float(f"{above + 1:.1e}")
    return f"about {rounded:,.10g} times"


def readable(epsilon: float) -> str:
    """`epsilon` for a screen: four digits after the point, or three significant ones where it is
    small; 0 only for 0.

    >>> readable(3.99881), readable(0.000012345)
    ('3.9988', '1.23e-05')
    """
    return f"{epsilon:.3g}" if 0 < epsilon < _SMALL else f"{epsilon:.4f}"
