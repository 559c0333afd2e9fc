"""A schedule sets the noise over epochs (Yu et al. 2019, section IV-A): epoch t = 0, 1, ... has
noise multiplier `schedule(t)`.

The same functions serve for learning rates, relative to their value at t = 0. A `ReactingSchedule`
is no function of the epoch: its noise follows from the accuracies that were seen.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Self, final

from privlearn._checks import as_plain, between, checked, count, positive, require_fit
from privlearn._public import is_registered, kinds, registered
from privlearn.errors import BadInput

#: Epochs that a plan has at most.
MOST_EPOCHS = 100_000
#: Below this noise multiplier there is no privacy.
LEAST_NOISE = 1e-6
#: Accuracies closer than this are hardly ever worth telling apart.
_FINE = 0.005
#: No run has more epochs.
_LAST_EPOCH = 1e15


class _Shape:
    """What every schedule has: a start, which scales it, and a name."""

    start: float
    #: What it is called in specs and in certificates.
    kind: ClassVar[str]

    def scaled(self, factor: float) -> Self:
        """The same shape, `factor` times as high (its start, and its end if it has one)."""
        return replace(self, start=self.start * positive("factor", factor))  # type: ignore[type-var]

    def idle(self, epochs: int) -> str | None:
        """Why it does nothing in a run of so many epochs, where it doesn't: a warning."""
        return None


class Schedule(_Shape):
    """A decreasing, data-independent function of the epoch.

    `start` is its value at epoch 0. Without a noise multiplier of its own a plan reads a schedule
    as a shape and solves for the factor that `scaled` puts on it. A final dataclass with a `kind`
    and `@registered` is known everywhere; one without is published as the values that it gave.
    """

    @abstractmethod
    def __call__(self, epoch: float) -> float:
        """The value at `epoch`, counted from 0."""


class ReactingSchedule(_Shape):
    """Noise that follows accuracies: an interface for registered, final dataclasses (`Validation`).

    An accuracy is public if the rows are; on the training rows it is a release of its own, whose
    noise is `noise`. Either way what follows reacts to what was released, so a plan accounts for it
    by a filter (`Plan.filter`), which holds whatever the schedule makes of the accuracies.

    Attributes:
        start: the noise multiplier of the first epoch, which no later one is to exceed.
        noise: None for public validation rows. Else in each epoch the number of training examples
            that the model gets right is released with this noise multiplier.
    """

    noise: float | None

    @abstractmethod
    def noise_multipliers(self, accuracies: Sequence[float]) -> Iterator[float]:
        """The noise multiplier of the first epoch, and of the one after each of `accuracies`.

        It falls the fastest if these are all 0.
        """

    def after(self, accuracies: Sequence[float]) -> float:
        """The noise multiplier of the epoch that follows these validations, one for each epoch so
        far.
        """
        *_, noise = self.noise_multipliers(accuracies)
        return noise

    def exactness(self, deviation: float) -> str:
        """What to know of accuracies that are released with this standard deviation."""
        return f"each accuracy is released with standard deviation {deviation:.2g}"


@final
@registered
@dataclass(frozen=True)
class Constant(Schedule):
    """The same value in every epoch."""

    start: float = 10.0
    kind: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        positive("the schedule's start", self.start)

    def __call__(self, epoch: float) -> float:
        """`start`."""
        return self.start


@dataclass(frozen=True)
class Decay(Schedule):
    """An interface: a schedule that decays in the middle of a run, and is constant before and
    after.

    Attributes:
        from_epoch: the epoch up to which it stays at its start; t counts from there.
        to_epoch: the epoch from which on it stays at what it has come to.
    """

    from_epoch: float = field(default=0.0, kw_only=True)
    to_epoch: float = field(default=math.inf, kw_only=True)

    def __post_init__(self) -> None:
        first, last = self.from_epoch, self.to_epoch
        between(
            f"the {_kind(self)} schedule's first epoch of decay (from)", first, 0.0, _LAST_EPOCH
        )
        between(f"the {_kind(self)} schedule's last epoch of decay (to)", last, 0.0, math.inf)
        if last <= first:
            raise BadInput(
                f"the {_kind(self)} schedule decays from epoch {first:g} to epoch {last:g}: "
                "expected the second to be later"
            )

    def idle(self, epochs: int) -> str | None:
        """Where it begins to fall after the end."""
        if self.from_epoch < epochs:
            return None
        return (
            f"the schedule falls from epoch {self.from_epoch:g} on (counted from 0), and the "
            "run ends before"
        )

    def _t(self, epoch: float) -> float:
        """Epochs of decay up to `epoch`."""
        epoch = as_plain(epoch, float)
        require_fit("epoch", epoch, float)
        return min(max(epoch, self.from_epoch), self.to_epoch) - self.from_epoch


@final
@registered
@dataclass(frozen=True)
class Time(Decay):
    """start / (1 + k t); with `period` t is floor(t / period), so that it decays every `period`
    epochs.
    """

    k: float
    start: float = 10.0
    period: float | None = field(default=None, kw_only=True)
    kind: ClassVar[str] = "time"

    def __post_init__(self) -> None:
        super().__post_init__()
        _rates(self, k=self.k, start=self.start)
        _rates(self, period=1.0 if self.period is None else self.period)
        _require_computable(self)

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        return self.start / (1 + self.k * _in_periods(self._t(epoch), self.period))


@final
@registered
@dataclass(frozen=True)
class Exponential(Decay):
    """start e^{-k t}; with `period` t is floor(t / period), so that it decays every `period`
    epochs.
    """

    k: float
    start: float = 10.0
    period: float | None = field(default=None, kw_only=True)
    kind: ClassVar[str] = "exp"

    def __post_init__(self) -> None:
        super().__post_init__()
        _rates(self, k=self.k, start=self.start)
        _rates(self, period=1.0 if self.period is None else self.period)
        _require_computable(self)

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        return self.start * math.exp(-self.k * _in_periods(self._t(epoch), self.period))


@final
@registered
@dataclass(frozen=True)
class Step(Decay):
    """start k^floor(t / period), with 0 < k < 1."""

    k: float
    period: float = 10.0
    start: float = 10.0
    kind: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        _rates(self, k=self.k, period=self.period, start=self.start)
        if self.k >= 1:
            raise BadInput(
                f"the step schedule's k is {self.k:g}: expected a factor below 1, for example 0.6"
            )
        _require_computable(self)

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        return self.start * self.k ** math.floor(self._t(epoch) / self.period)


@checked
@final
@registered
@dataclass(frozen=True)
class Polynomial(Decay):
    """(start - end) (1 - t / period)^k + end up to t = period, and end from there on; end 0 suits
    learning rates.
    """

    k: float
    end: float = 2.0
    period: float = 100.0
    start: float = 10.0
    kind: ClassVar[str] = "poly"

    def __post_init__(self) -> None:
        super().__post_init__()
        _rates(self, k=self.k, period=self.period, start=self.start)
        if not 0 <= self.end < self.start:
            raise BadInput(
                f"the polynomial schedule ends at {self.end!r}: expected a number from 0 to below "
                f"its start, {self.start:g}"
            )
        _require_computable(self)

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        left = max(0.0, 1 - self._t(epoch) / self.period)
        return (self.start - self.end) * math.pow(left, self.k) + self.end

    def scaled(self, factor: float) -> Polynomial:
        """The same shape, `factor` times as high."""
        factor = positive("factor", factor)
        return replace(self, start=self.start * factor, end=self.end * factor)


@final
@registered
@dataclass(frozen=True)
class PerEpoch(Schedule):
    """The value of each epoch, one by one; the last holds from there on. It stands for schedules of
    the user's own.
    """

    values: tuple[float, ...]
    kind: ClassVar[str] = "per-epoch"

    def __post_init__(self) -> None:
        if not isinstance(self.values, tuple) or not self.values:
            raise BadInput(
                f"values is {repr(self.values)[:60]}: expected a tuple of numbers, one for each "
                "epoch"
            )
        for value in self.values:
            positive("the value of an epoch", value)

    @property
    def start(self) -> float:  # type: ignore[override]
        """The value of the first epoch."""
        return self.values[0]

    def __call__(self, epoch: float) -> float:
        """The value at `epoch`."""
        return self.values[min(int(epoch), len(self.values) - 1)]

    def scaled(self, factor: float) -> PerEpoch:
        """The same shape, `factor` times as high."""
        factor = positive("factor", factor)
        return PerEpoch(tuple(value * factor for value in self.values))


@checked
@final
@registered
@dataclass(frozen=True)
class Validation(ReactingSchedule):
    """Noise that falls when the accuracy on validation rows stops improving (Yu et al. 2019, eqs. 8
    to 10).

    After every `period` epochs the mean of the last `m` accuracies is compared with that of the
    check before, 0 at first: unless it improved by more than `threshold`, the noise is multiplied
    by `k` from the next epoch on.

    Attributes:
        k: the factor of the decay, 0 < k < 1.
        m: accuracies that are averaged, at most `period`.
        threshold: the improvement, between -1 and 1, up to which the noise decays.
        period: epochs from one check to the next.
        start, noise: as of every `ReactingSchedule`.
    """

    k: float
    m: int = 1
    threshold: float = 0.0
    period: int = 1
    start: float = 10.0
    noise: float | None = field(default=None, kw_only=True)
    kind: ClassVar[str] = "validation"

    def __post_init__(self) -> None:
        _rates(self, k=self.k, start=self.start)
        if self.k >= 1:
            raise BadInput(
                f"the validation schedule's k is {self.k:g}: expected a factor below 1, for "
                "example 0.7"
            )
        between("the validation schedule's threshold", self.threshold, -1.0, 1.0)
        count("the validation schedule's m", self.m)
        count("the validation schedule's period", self.period)
        if self.period < self.m:
            raise BadInput(
                f"the validation schedule averages the last m={self.m} accuracies and checks them "
                f"every period={self.period} epochs: expected a period of at least m"
            )
        if self.noise is not None:
            between("the noise multiplier of the validations (noise)", self.noise, 1e-6, 1e12)

    def noise_multipliers(self, accuracies: Sequence[float]) -> Iterator[float]:
        """As of every `ReactingSchedule`."""
        decays, previous = 0, 0.0
        yield self.start
        for seen in range(1, len(accuracies) + 1):
            if seen % self.period == 0:
                average = math.fsum(accuracies[seen - self.m : seen]) / self.m
                decays += average - previous <= self.threshold
                previous = average
            yield self.start * self.k**decays

    def idle(self, epochs: int) -> str | None:
        """Where the first check would come after the end."""
        if self.period < epochs:
            return None
        return (
            f"the validation schedule checks every {self.period} epochs, and the run has at most "
            f"{epochs}: its noise never falls. Use a smaller period"
        )

    def exactness(self, deviation: float) -> str:
        """That of the mean of `m` accuracies beside the threshold, and what would be more exact."""
        mean, needed = deviation / math.sqrt(self.m), max(self.threshold, _FINE)
        text = f"{super().exactness(deviation)}, and the mean of {self.m} with {mean:.2g}"
        if mean <= needed or self.noise is None:
            return text
        return (
            f"{text}, which is more than the threshold of {self.threshold:g}: noise will fall by "
            f"chance. Give noise={self.noise * needed / mean:.2g} or less, a larger m (and "
            "period), or a larger threshold"
        )


#: What a plan's noise may follow.
NoiseSchedule = Schedule | ReactingSchedule


def _specs() -> dict[str, type[NoiseSchedule]]:
    """The schedules that a spec can name: those made of numbers by name."""
    return {kind: cls for kind, cls in kinds(NoiseSchedule).items() if cls is not PerEpoch}


@checked
def parse(text: str, *, free_rate: bool = False) -> NoiseSchedule:
    """Read a schedule's spec; with `free_rate` its k may be left out, to be solved for.

    >>> parse("exp:k=0.01")
    Exponential(from_epoch=0.0, to_epoch=inf, k=0.01, start=10.0, period=None)

    Raises:
        BadInput: an unknown schedule, or a parameter that it does not have or needs.
    """
    from privlearn._short_specs import parse_spec  # only where a text is given

    name, numbers = parse_spec("schedule", text)
    if name not in _specs():
        raise BadInput(
            f"schedule {text!r} is unknown: expected one of constant, time:k=0.05, exp:k=0.01, "
            "step:k=0.6,period=10, poly:k=3,end=2,period=100 or "
            "validation:k=0.7,m=5,threshold=0.01,period=10",
            spec=text,
        )
    kind = _specs()[name]
    known = {_key(part): part.name for part in _parameters(kind)}
    unknown = [key for key in numbers if key not in known]
    if free_rate and "k" in known:
        numbers.setdefault("k", 0.5)
    if unknown or ("k" in known and "k" not in numbers):
        problem = f"has no parameter {unknown[0]!r}" if unknown else "needs k"
        raise BadInput(
            f"schedule {text!r}: {name} {problem}. Its parameters are {', '.join(known)}", spec=text
        )
    whole = {_key(part) for part in _parameters(kind) if part.type == "int"}
    for key in whole & set(numbers):
        if numbers[key].is_integer():
            numbers[key] = int(numbers[key])
    return kind(**{known[key]: value for key, value in numbers.items()})


@checked
def parse_rates(text: str) -> Schedule:
    """Read the spec of a learning rate schedule.

    Raises:
        BadInput: as `parse`, or it is none that is known beforehand.
    """
    schedule = parse(text)
    if isinstance(schedule, ReactingSchedule):
        raise BadInput(
            f"the learning rate can't follow {text!r}: expected constant, time, exp, step or poly",
            spec=text,
        )
    return schedule


def spec(schedule: NoiseSchedule) -> str:
    """Write `schedule` as a spec that `parse` reads back; options are left out where they are at
    their defaults.

    >>> spec(Step(k=0.6))
    'step:k=0.6,period=10.0,start=10.0'
    >>> spec(Step(k=0.6, from_epoch=20.0))
    'step:k=0.6,period=10.0,start=10.0,from=20.0'
    """
    if not is_registered(schedule) or isinstance(schedule, PerEpoch):
        return repr(schedule)[:200]  # a user's own
    values = {part: getattr(schedule, part.name) for part in _parameters(type(schedule))}
    options = {
        _key(part): value
        for part, value in values.items()
        if not (part.kw_only and value == part.default)
    }
    return f"{schedule.kind}:{','.join(f'{key}={value!r}' for key, value in options.items())}"


def _parameters(kind: type[NoiseSchedule]) -> list[Field[Any]]:
    """The parameters of a kind of schedule, options last."""
    return sorted(fields(kind), key=lambda part: bool(part.kw_only))  # type: ignore[arg-type]


def _key(part: Field[Any]) -> str:
    """What a parameter is called in a spec."""
    return part.name.removesuffix("_epoch")


def _in_periods(t: float, period: float | None) -> float:
    """The number of whole periods in t, or t itself without one."""
    return t if period is None else math.floor(t / period)


def _kind(schedule: NoiseSchedule) -> str:
    return type(schedule).__name__.lower()


def _rates(schedule: NoiseSchedule, **values: float) -> None:
    for name, value in values.items():
        positive(f"the {_kind(schedule)} schedule's {name}", value)


def _require_computable(schedule: Schedule) -> None:
    """Raise `BadInput` unless it has a value in the first and in the last epoch there may be, and
    so between them.
    """
    for epoch in (0.0, _LAST_EPOCH):
        try:
            computable = math.isfinite(schedule(epoch))
        except ArithmeticError:
            computable = False
        if not computable:
            raise BadInput(
                f"the {_kind(schedule)} schedule {spec(schedule)[:120]} has no value at epoch "
                f"{epoch:g}: its numbers are too small or too large to compute with. Use others, "
                "for example a period of at least 1e-9"
            )
