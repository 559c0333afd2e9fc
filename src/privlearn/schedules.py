"""Noise over epochs (Yu et al. 2019, section IV-A): epoch t = 0, 1, ... has noise multiplier `schedule(t)`.

The same functions serve for learning rates, relative to their value at t = 0.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Self, final

from privlearn._validate import between, parse_spec, positive
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


@dataclass(frozen=True)
class Decay(Schedule):
    """An interface: a schedule that decays in the middle of a run, and is constant before and after.

    Attributes:
        from_epoch: the epoch up to which it stays at its start; t counts from there.
        to_epoch: the epoch from which on it stays at what it has come to.
    """

    from_epoch: float = field(default=0.0, kw_only=True)
    to_epoch: float = field(default=math.inf, kw_only=True)

    def __post_init__(self) -> None:
        first, last = self.from_epoch, self.to_epoch
        between(f"the {_kind(self)} schedule's first epoch of decay (from)", first, 0.0, 1e15)
        between(f"the {_kind(self)} schedule's last epoch of decay (to)", last, 0.0, math.inf)
        if last <= first:
            raise BadInput(
                f"the {_kind(self)} schedule decays from epoch {first:g} to epoch {last:g}: expected the second to be later"
            )

    def _t(self, epoch: float) -> float:
        """Epochs of decay up to `epoch`."""
        return min(max(epoch, self.from_epoch), self.to_epoch) - self.from_epoch


@final
@dataclass(frozen=True)
class Time(Decay):
    """start / (1 + k t); with `period` t is floor(t / period), so that it decays every `period` epochs."""

    k: float
    start: float = 10.0
    period: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _rates(self, k=self.k, start=self.start)
        _rates(self, period=1.0 if self.period is None else self.period)

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        return self.start / (1 + self.k * _in_periods(self._t(epoch), self.period))


@final
@dataclass(frozen=True)
class Exponential(Decay):
    """start e^{-k t}; with `period` t is floor(t / period), so that it decays every `period` epochs."""

    k: float
    start: float = 10.0
    period: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _rates(self, k=self.k, start=self.start)
        _rates(self, period=1.0 if self.period is None else self.period)

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        return self.start * math.exp(-self.k * _in_periods(self._t(epoch), self.period))


@final
@dataclass(frozen=True)
class Step(Decay):
    """start k^floor(t / period), with 0 < k < 1."""

    k: float
    period: float = 10.0
    start: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _rates(self, k=self.k, period=self.period, start=self.start)
        if self.k >= 1:
            raise BadInput(f"the step schedule's k is {self.k:g}: expected a factor below 1, for example 0.6")

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        return self.start * self.k ** math.floor(self._t(epoch) / self.period)


@final
@dataclass(frozen=True)
class Polynomial(Decay):
    """(start - end) (1 - t / period)^k + end up to t = period, and end from there on; end 0 suits learning rates."""

    k: float
    end: float = 2.0
    period: float = 100.0
    start: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _rates(self, k=self.k, period=self.period, start=self.start)
        if not 0 <= self.end < self.start:
            raise BadInput(
                f"the polynomial schedule ends at {self.end!r}: expected a number from 0 to below its start, {self.start:g}"
            )

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        left = max(0.0, 1 - self._t(epoch) / self.period)
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

    >>> round(parse("exp:k=0.01")(1), 6)
    9.900498

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
    known = {_key(part): part.name for part in _parameters(kind)}
    unknown = [key for key in numbers if key not in known]
    if free_rate and "k" in known:
        numbers.setdefault("k", 0.5)
    if unknown or ("k" in known and "k" not in numbers):
        problem = f"has no parameter {unknown[0]!r}" if unknown else "needs k"
        raise BadInput(f"schedule {text!r}: {name} {problem}. Its parameters are {', '.join(known)}", spec=text)
    return kind(**{known[key]: value for key, value in numbers.items()})


def spec(schedule: Schedule) -> str:
    """Write `schedule` as a spec that `parse` reads back; options are left out where they are at their defaults.

    >>> spec(Step(k=0.6))
    'step:k=0.6,period=10.0,start=10.0'
    >>> spec(Step(k=0.6, from_epoch=20.0))
    'step:k=0.6,period=10.0,start=10.0,from=20.0'
    """
    name = next((name for name, kind in _SPECS.items() if kind is type(schedule)), None)
    if name is None:
        return repr(schedule)  # a user's own
    values = {part: getattr(schedule, part.name) for part in _parameters(type(schedule))}
    shown = {_key(part): value for part, value in values.items() if not (part.kw_only and value == part.default)}
    return f"{name}:{','.join(f'{key}={value!r}' for key, value in shown.items())}"


def _parameters(kind: type[Schedule]) -> list[Field[Any]]:
    """The parameters of a kind of schedule, options last."""
    return sorted(fields(kind), key=lambda part: bool(part.kw_only))  # type: ignore[arg-type]


def _key(part: Field[Any]) -> str:
    """What a parameter is called in a spec."""
    return part.name.removesuffix("_epoch")


def _in_periods(t: float, period: float | None) -> float:
    """The number of whole periods in t, or t itself without one."""
    return t if period is None else math.floor(t / period)


def _kind(schedule: Schedule) -> str:
    return type(schedule).__name__.lower()


def _rates(schedule: Schedule, **values: float) -> None:
    for name, value in values.items():
        positive(f"the {_kind(schedule)} schedule's {name}", value)
