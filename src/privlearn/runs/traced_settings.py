"""This file decides whether an optimizer's settings follow from public numbers alone. What is not
known to do so is denied.

A setting has an origin: what wrote it last. Public are the run itself, a scheduler that counts
its own calls, a number that was declared public (`declare_public`), and all that happened before
the first step. Everything else may follow from a private number, however that number was read.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from privlearn._figures import first_argument
from privlearn.runs.public_numbers import PublicNumber, plain_number
from privlearn.runs.readings import readings_of

#: What is said of a setting whose origin is not known to be public.
BY_HAND = (
    "settings of the optimizer were changed by hand, by numbers that are not known to be public. "
    "If they are, write group['lr'] = pv.runs.declare_public(rate, because='...'); or use "
    "learning_rate_schedule="
)
NUMBER = (
    "a scheduler was given a number that is not known to be public. If it is a metric of public "
    "rows, write scheduler.step(pv.runs.declare_public(metric, because='...'))"
)
LATE = (
    "a scheduler was made after the first step, with numbers that are not known to be public. Make "
    "it before"
)
IRREGULAR = (
    "a scheduler was not stepped regularly, once a step or once an epoch, so that a private number "
    "may have decided when. Let the scheduler count; or use learning_rate_schedule="
)
READS = (
    "what a scheduler or its function reads has changed, and is not known to be public. Let rates "
    "follow from the scheduler's counts alone; or use learning_rate_schedule="
)
#: A number that counts may begin at 0 or 1, and be given before the step or after it.
_OFFSETS = (-1, 0, 1)


@final
class TracedSettings(dict[str, Any]):
    """One of an optimizer's groups, which tells its trace who reads and writes it between steps.

    Copies and pickles of it are plain dictionaries.

    Attributes:
        trace: the run's.
        known: the settings as they were when they were last written from a public origin.
        unknown: what is said of each setting whose origin is not known to be public.
        declared: names that were last written with numbers declared public, since the last step.
    """

    def __init__(self, settings: dict[str, Any], trace: SettingsTrace) -> None:
        super().__init__(settings)
        self.trace = trace
        self._replaced = settings  # a script may hold it, and write to it
        self.clear_origins()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)

    def __getitem__(self, name: str) -> Any:
        if self.trace.listens and name != "params":
            self.trace.note_read(self, name)
        return dict.__getitem__(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        if self.trace.listens or self.trace.is_foreign(sys._getframe(1)):
            value = self.trace.note_write(self, name, value)
        dict.__setitem__(self, name, value)

    def accept(self, name: str, value: Any) -> None:
        """The setting has this value, from a public origin."""
        self.known[name] = value.clone() if isinstance(value, Tensor) else value

    def deny(self, name: str, reason: str) -> None:
        """The setting's origin is not known to be public. The first reason is kept."""
        self.declared.discard(name)
        self.unknown.setdefault(name, reason)

    def clear_origins(self) -> None:
        """All settings are public as they are."""
        self.known = copied(self)
        self._replaced_by = copied(self._replaced)
        self.unknown: dict[str, str] = {}
        self.declared: set[str] = set()

    def compare(self) -> None:
        """Deny what changed without a write that was noted: in place, or by `update`."""
        for name, value in self._replaced.items():
            if name in self._replaced_by and not _same(value, self._replaced_by[name]):
                self[name] = value
        self._replaced_by = copied(self._replaced)
        for name in {*self, *self.known} - {"params"}:
            there = name in self and name in self.known
            if not (there and _same(dict.__getitem__(self, name), self.known[name])):
                self.deny(name, BY_HAND)


@final
class Cadence:
    """When a scheduler is stepped: regularly, from within the first epoch on. Else something may
    decide about it.

    Args:
        start: how many steps were taken when the scheduler could first be called.
        epoch: how many steps an epoch has.
    """

    def __init__(self, start: int, epoch: int) -> None:
        self._start, self._epoch = start, epoch
        self._first: int | None = None
        self._gap: int | None = None
        self._times = 0  # calls at a time
        self.calls = 0  # since the last step

    def is_regular(self, taken: int) -> bool:
        """Whether the calls since the last step are regular, when the next one is about to be
        taken.

        Args:
            taken: how many steps were taken.
        """
        calls, self.calls = self.calls, 0
        if taken == self._start:
            return True
        if self._first is None:
            if calls:
                self._first, self._times = taken, calls
            return not calls or taken - self._start <= self._epoch
        since = taken - self._first
        if self._gap is not None:
            return calls == (0 if since % self._gap else self._times)
        if not calls:
            return since < self._epoch
        self._gap = since
        early = self._first - self._start <= since and self._first % since == 0
        return early and calls == self._times


@final
class _History:
    """What is known of one scheduler.

    Attributes:
        cadence: when it is stepped.
        calls: how many of its calls were seen.
        counts: what the numbers that it was given may count, if they count anything.
        readings: what it reads, as text, between its first call and the next step; None before.
        touched: the settings that it reads or writes.
        beginning: whether it may count from its beginning, for all that was looked at.
    """

    def __init__(self, taken: int, epoch: int) -> None:
        self.beginning = True
        self.cadence = Cadence(taken, epoch)
        self.calls = 0
        self.counts: set[tuple[str, int]] | None = None
        self.readings: str | None = None
        self.touched: set[str] = set()

    def begin(self, scheduler: LRScheduler, taken: int, epoch: int) -> None:
        """The first step is about to be taken: what came before is public."""
        self.cadence, self.readings = Cadence(taken, epoch), readings_of(scheduler)

    def reads_the_same(self, scheduler: LRScheduler) -> bool:
        """Whether the scheduler reads what it read when this was asked first."""
        now = readings_of(scheduler)
        self.readings = now if self.readings is None else self.readings
        return now == self.readings


@final
class SettingsTrace:
    """Who changes the settings of an optimizer between the steps of a run.

    Args:
        optimizer: whose groups are traced from here on.
        progress: how many steps were taken, and how many an epoch has (0 before the first epoch).

    Attributes:
        listens: whether reads and writes are noted: between two steps. Within one only writes are
            that come neither from the run nor from the optimizer itself.
        denied_in_a_step: why settings may follow from a private number that were written within a
            step; empty if none were.
        reasons: why numbers that steered are public, as they were declared, each once.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, progress: Callable[[], tuple[int, int]]
    ) -> None:
        self._optimizer, self._progress = optimizer, progress
        self._groups: list[TracedSettings] = []
        self._start: int | None = None  # steps that were taken when this process took its first
        self._call: types.FrameType | None = None  # the call of a scheduler that was seen last
        self._histories: weakref.WeakKeyDictionary[LRScheduler, _History]
        self._histories = weakref.WeakKeyDictionary()
        self.reasons: list[str] = []
        self.denied_in_a_step = ""
        self.listens = True
        self.watch()

    def watch(self) -> None:
        """All settings are public as they are."""
        groups = self._optimizer.param_groups
        self._groups = [self._trace_group(group) for group in groups]
        groups[:] = self._groups

    def _trace_group(self, group: dict[str, Any]) -> TracedSettings:
        """A group with all of its settings public."""
        if isinstance(group, TracedSettings) and group.trace is self:
            group.clear_origins()
            return group
        return TracedSettings(group, self)

    @contextmanager
    def in_a_step(self) -> Iterator[None]:
        """A block in which the run takes a step, and sets what it sets."""
        self.listens, self._call = False, None
        for group in self._groups:
            group.unknown.clear()
        try:
            yield
        finally:
            self.denied_in_a_step = self._first_reason()
            self.watch()
            self.listens = True

    def is_foreign(self, frame: types.FrameType) -> bool:
        """Whether the writer within a step is neither the run nor the optimizer itself."""
        if str(frame.f_globals.get("__name__")).partition(".")[0] == "privlearn":
            return False
        return not _is_method(frame, torch.optim.Optimizer)

    def _first_reason(self) -> str:
        denied = [reason for group in self._groups for reason in group.unknown.values()]
        return denied[0] if denied else ""

    def denial(self, *, clean: bool) -> str:
        """Why settings may follow from a private number, when a step is about to be taken. Empty
        where all origins are public.

        Args:
            clean: whether no private figure became a plain number: what came before the first step
                is then public.
        """
        taken, epoch = self._progress()
        begins = self._start is None
        if begins:
            self._start = taken
            for scheduler, history in list(self._histories.items()):
                history.begin(scheduler, taken, epoch)
            if clean:
                self.watch()
                return ""
        if not self._are_in_place():
            return BY_HAND
        for group in self._groups:
            group.compare()
        for scheduler, history in list(self._histories.items()):
            if all(history.touched <= group.declared for group in self._groups):
                history.cadence.calls = 0  # the declaration covers the call, too
            if not history.cadence.is_regular(taken):
                self._deny(history.touched, IRREGULAR)
            if not history.reads_the_same(scheduler):
                self._deny(history.touched, READS)
        return self._first_reason()

    def restarted(self) -> list[str]:
        """The kinds of the schedulers that count from their beginning, though the run goes on after
        an epoch that another process trained. Each scheduler is looked at once.
        """
        _, epoch = self._progress()
        kinds = []
        for scheduler, history in list(self._histories.items()):
            first, history.beginning = history.beginning, False
            if first and 0 < epoch <= (self._start or 0) and scheduler.last_epoch <= history.calls:
                kinds.append(type(scheduler).__name__)
        return kinds

    def _are_in_place(self) -> bool:
        """Whether the optimizer has the traced groups, or others with the same settings, which are
        traced from here on.
        """
        groups = self._optimizer.param_groups
        if len(groups) != len(self._groups):
            return False
        for place, (group, traced) in enumerate(zip(groups, self._groups, strict=True)):
            if group is traced:
                continue
            if group.keys() - {"params"} != traced.known.keys() or not all(
                name == "params" or _same(value, traced.known[name])
                for name, value in group.items()
            ):
                return False
            groups[place] = self._groups[place] = TracedSettings(group, self)
        return True

    def _deny(self, names: Iterable[str], reason: str) -> None:
        """Deny settings of all groups, but for those that were declared after."""
        for group in self._groups:
            for name in set(names) & group.keys() - group.declared:
                group.deny(name, reason)

    def note_read(self, group: TracedSettings, name: str) -> None:
        """A setting is read. What a scheduler reads may decide what it does, or leaves as it is."""
        known_call = self._call
        call = self._scheduler_call()
        if call is None:
            return
        value = group.get(name)
        if reason := self._judge_call(call, name):
            group.deny(name, reason)
        elif call is known_call and isinstance(value, Tensor) and name not in group.unknown:
            group.accept(name, value)  # the call itself may have changed it in place

    def note_write(self, group: TracedSettings, name: str, value: Any) -> Any:
        """A setting is written. Return what it is to be."""
        if declared := _get_declared(value):
            self._note_reasons(declared)
            value = _without_declarations(value)
            group.unknown.pop(name, None)
            group.declared.add(name)
            group.accept(name, value)
            return value
        call = self._scheduler_call()
        if call is None:
            if name not in group or not _same(value, group.get(name)):
                group.deny(name, BY_HAND)
        elif reason := self._judge_call(call, name):
            group.deny(name, reason)
        else:
            group.declared.discard(name)
            group.accept(name, value)
        return value

    def _scheduler_call(self) -> types.FrameType | None:
        """The outermost method of a scheduler that is running."""
        here = inspect.currentframe()
        frame = here
        while frame is not None and self._call is not None:
            if frame is self._call:
                return frame
            frame = frame.f_back
        call, frame = None, here
        while frame is not None:
            if _is_method(frame, LRScheduler):
                call = frame
            frame = frame.f_back
        if call is not None:
            self._call = call
            self._note_call(call)
        return call

    def _note_call(self, call: types.FrameType) -> None:
        """A scheduler was called. A number that was declared public covers the call, too."""
        if call.f_code.co_name == "__init__":
            return
        history, declared = self._history_of(call), _select_declared(_arguments(call))
        history.calls += 1
        history.cadence.calls += not declared
        self._note_reasons(declared)

    def _history_of(self, call: types.FrameType) -> _History:
        scheduler: Any = first_argument(call)
        if scheduler not in self._histories:
            _, epoch = self._progress()
            self._histories[scheduler] = _History(self._start or 0, epoch)
        return self._histories[scheduler]

    def _judge_call(self, call: types.FrameType, name: str) -> str:
        """Why a call of a scheduler may follow from a private number; empty if it can't."""
        history = self._history_of(call)
        history.touched.add(name)
        if call.f_code.co_name == "__init__":
            return "" if self._start is None else LATE
        arguments = _arguments(call)
        if _select_declared(arguments) or all(self._counts(value, history) for value in arguments):
            return ""
        return NUMBER

    def _counts(self, value: Any, history: _History) -> bool:
        """Whether a number counts epochs or steps, by one rule whenever the scheduler is given
        one.
        """
        if type(value) not in (int, float):
            return False
        taken, epoch = self._progress()
        epoch = max(1, epoch)
        rules = {
            (counted, offset)
            for offset in _OFFSETS
            for counted, count in (
                ("calls", history.calls + offset),
                ("steps", taken + offset),
                ("epochs", taken // epoch + offset),
                ("part of epochs", (taken + offset) / epoch),
            )
            if math.isclose(value, count, rel_tol=1e-12, abs_tol=1e-9)
        }
        history.counts = rules if history.counts is None else history.counts & rules
        return self._start is None or bool(history.counts)

    def _note_reasons(self, declared: Iterable[PublicNumber]) -> None:
        self.reasons += [
            because
            for because in dict.fromkeys(number.because for number in declared)
            if because not in self.reasons
        ]


def copied(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they are now, to be compared with later ones."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in settings.items()
        if name != "params"
    }


def _same(value: Any, before: Any) -> bool:
    if isinstance(value, Tensor) or isinstance(before, Tensor):
        return (
            isinstance(value, Tensor) and isinstance(before, Tensor) and torch.equal(value, before)
        )
    return bool(value == before)


def _is_method(frame: types.FrameType, kind: type) -> bool:
    """Whether a method of an object's own class is running, not a function that is given it."""
    code = frame.f_code
    if "." not in code.co_qualname:  # quick: a frame's variables are slow to read
        return False
    of = first_argument(frame)
    return isinstance(of, kind) and any(
        code.co_qualname == f"{parent.__qualname__}.{code.co_name}" for parent in type(of).__mro__
    )


def _arguments(call: types.FrameType) -> list[Any]:
    """What a method was given, beside its object and `None`."""
    names, more, named, values = inspect.getargvalues(call)
    arguments = [values[name] for name in names[1:] if name in values]
    arguments += [*(values[more] if more else ()), *(values[named].values() if named else ())]
    return [value for value in arguments if value is not None]


def _select_declared(values: Iterable[Any]) -> list[PublicNumber]:
    return [value for value in values if isinstance(value, PublicNumber)]


def _get_declared(value: Any) -> list[PublicNumber]:
    """The public numbers of a setting that is made of them alone; else none."""
    parts = value if isinstance(value, tuple | list) else (value,)
    declared = _select_declared(parts)
    return declared if len(declared) == len(parts) else []


def _without_declarations(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(plain_number, value))
    return plain_number(value)
