"""Noise over epochs (Yu et al. 2019, section IV-A): epoch t = 0, 1, ... has noise multiplier `schedule(t)`.

The same functions serve for learning rates, relative to their value at t = 0.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self, final

from privlearn._validate import parse_spec, positive
from privlearn.errors import BadInput


class Schedule:
    """A decreasing, data-independent function of the epoch.

    `start` is its value at epoch 0. Without a noise multiplier of its own a plan reads a schedule as a shape and
    solves for the factor that `scaled` puts on it.
    """

    start: float

    @abstractmethod
    def __call__(self, epoch: float) -> float:
        """The value at `epoch`, counted from 0."""

    def scaled(self, factor: float) -> Self:
        """The same shape, `factor` times as high (its start, and its end if it has one)."""
        return replace(self, start=self.start * factor)  # type: ignore[type-var]


@final
@dataclass(frozen=True)
class Constant(Schedule):
    """The same value in every epoch."""

    start: float = 10.0

    def __post_init__(self) -> None:
        positive("the schedule's start", self.start)

    def __call__(self, epoch: float) -> float:
        """`start`."""
        return self.start


@final
@dataclass(frozen=True)
class Time(Schedule):
    """start / (1 + k t)."""

    k: float
    start: float = 10.0

    def __post_init__(self) -> None:
        _rates(self, k=self.k, start=self.start)

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        return self.start / (1 + self.k * epoch)


@final
@dataclass(frozen=True)
class Exponential(Schedule):
    """start e^{-k t}."""

    k: float
    start: float = 10.0

    def __post_init__(self) -> None:
        _rates(self, k=self.k, start=self.start)

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        return self.start * math.exp(-self.k * epoch)


@final
@dataclass(frozen=True)
class Step(Schedule):
    """start k^floor(t / period), with 0 < k < 1."""

    k: float
    period: float = 10.0
    start: float = 10.0

    def __post_init__(self) -> None:
        _rates(self, k=self.k, period=self.period, start=self.start)
        if self.k >= 1:
            raise BadInput(f"the step schedule's k is {self.k:g}: expected a factor below 1, for example 0.6")

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        return self.start * self.k ** math.floor(epoch / self.period)


@final
@dataclass(frozen=True)
class Polynomial(Schedule):
    """(start - end) (1 - t / period)^k + end up to t = period, and end from there on; end 0 suits learning rates."""

    k: float
    end: float = 2.0
    period: float = 100.0
    start: float = 10.0

    def __post_init__(self) -> None:
        _rates(self, k=self.k, period=self.period, start=self.start)
        if not 0 <= self.end < self.start:
            raise BadInput(
                f"the polynomial schedule ends at {self.end!r}: expected a number from 0 to below its start, {self.start:g}"
            )

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        left = max(0.0, 1 - epoch / self.period)
        return (self.start - self.end) * math.pow(left, self.k) + self.end

    def scaled(self, factor: float) -> Polynomial:
        """The same shape, `factor` times as high."""
        return replace(self, start=self.start * factor, end=self.end * factor)


_SPECS: dict[str, type[Schedule]] = {
    "constant": Constant,
    "time": Time,
    "exp": Exponential,
    "step": Step,
    "poly": Polynomial,
}


def parse(text: str, *, free_rate: bool = False) -> Schedule:
    """Read a schedule's spec; with `free_rate` its k may be left out, to be solved for.

    >>> parse("exp:k=0.01")(1)
    9.900498337491681

    Raises:
        BadInput: an unknown schedule, or a parameter that it does not have or needs.
    """
    name, numbers = parse_spec("schedule", text)
    if name not in _SPECS:
        raise BadInput(
            f"schedule {text!r} is unknown: expected one of constant, time:k=0.05, exp:k=0.01, step:k=0.6,period=10 "
            "or poly:k=3,end=2,period=100",
            spec=text,
        )
    kind = _SPECS[name]
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = [key for key in numbers if key not in known]
    if free_rate and "k" in known:
        numbers.setdefault("k", 0.5)
    if unknown or ("k" in known and "k" not in numbers):
        problem = f"has no parameter {unknown[0]!r}" if unknown else "needs k"
        raise BadInput(f"schedule {text!r}: {name} {problem}. Its parameters are {', '.join(known)}", spec=text)
    return kind(**numbers)


def spec(schedule: Schedule) -> str:
    """Write `schedule` as a spec that `parse` reads back.

    >>> spec(Step(k=0.6))
    'step:k=0.6,period=10.0,start=10.0'
    """
    name = next((name for name, kind in _SPECS.items() if kind is type(schedule)), None)
    if name is None:
        return repr(schedule)  # a user's own
    numbers = ",".join(f"{f.name}={getattr(schedule, f.name)!r}" for f in fields(schedule))  # type: ignore[arg-type]
    return f"{name}:{numbers}"


def _rates(schedule: Schedule, **values: float) -> None:
    for name, value in values.items():
        positive(f"the {type(schedule).__name__.lower()} schedule's {name}", value)
