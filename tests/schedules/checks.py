"""Noise of anyone's schedule is what was priced, or the run is refused: named checks."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, final

import privlearn as pv
from privlearn.core import plan
from privlearn.core.schedules import Schedule
from privlearn.errors import BadInput
from privlearn.runs.callbacks import Callback
from tests.support.checks import check
from tests.support.registries import examples, forgotten
from tests.support.training import (
    CLASSES,
    LOSS,
    by_dpsgd,
    by_make_private,
    by_train,
    must_be_refused,
    net,
    rows,
)


def broken(values: Iterator[float]) -> dict[str, Schedule]:
    """Schedules that break their word, each in another way, registered; `values` is what one of
    them gives.
    """
    made: dict[str, Schedule] = {}

    def enter(cls: type[Any]) -> type[Any]:
        cls.kind = cls.__name__.lower()
        made[cls.__name__] = plan.registered(final(dataclass(frozen=True)(cls)))()
        return cls

    @enter
    class Drifting(Schedule):
        start: float = 4.0
        kind: ClassVar[str]

        def __call__(self, epoch: float) -> float:
            return self.start * next(values)

    @enter
    class NotANumber(Schedule):
        start: float = 4.0
        kind: ClassVar[str]

        def __call__(self, epoch: float) -> float:
            return float("nan") if epoch else self.start

    @enter
    class Endless(Schedule):
        start: float = 4.0
        kind: ClassVar[str]

        def __call__(self, epoch: float) -> float:
            return float("inf")

    @enter
    class Texts(Schedule):
        start: float = 4.0
        kind: ClassVar[str]

        def __call__(self, epoch: float) -> Any:
            return "4.0"

    return made


def falling() -> Iterator[float]:
    """Sound values for as long as a plan is priced, and next to no noise later on."""
    yield from [1.0] * 4
    while True:
        yield 0.01


@check
def check_a_schedule_that_breaks_its_price_is_refused_by_name() -> None:
    """Values that are no numbers, or others in the run than those that the plan was priced with."""
    with forgotten():
        schedules = broken(falling())
        for name, schedule in schedules.items():
            ledger = pv.Ledger()
            wanted = pv.Plan(pv.Poisson(1 / 3), epochs=2, schedule=schedule)
            if name == "Drifting":
                wanted.event()  # priced with the noise of the beginning
                wanted.event()
            must_be_refused(
                name, lambda wanted=wanted, ledger=ledger: by_dpsgd(wanted, ledger=ledger), ledger
            )
        must_be_refused("NotANumber", lambda: by_train(schedule="notanumber"))
        must_be_refused("NotANumber", lambda: by_make_private(schedule=schedules["NotANumber"]))


@check
def check_a_run_has_the_noise_that_it_was_priced_with() -> None:
    """A schedule that turns in the middle of a run: no step is released with other noise than was
    priced.
    """
    with forgotten():
        turned = [False]

        @final
        @plan.registered
        @dataclass(frozen=True)
        class Turning(Schedule):
            start: float = 4.0
            kind: ClassVar[str] = "turning"

            def __call__(self, epoch: float) -> float:
                return 0.01 if turned[0] else self.start

        wanted = pv.Plan(pv.Poisson(1 / 3), epochs=2, schedule=Turning())
        priced, ledger = wanted.event(), pv.Ledger()

        class Turn(Callback):
            def on_step(self, progress: Any) -> None:
                turned[0] = True

        x, y = rows()
        data = pv.Dataset(x.numpy(), y.numpy(), classes=CLASSES)
        pv.dpsgd(
            wanted, net, LOSS, data, streams=pv.Streams.new(0), ledger=ledger, callbacks=Turn()
        )
        assert ledger.event == priced
        must_be_refused("Turning", wanted.event)


@check
def check_a_schedule_computes_every_epoch_or_is_refused() -> None:
    """Of every kind, with each of its numbers the least and the greatest there are: a value in each
    epoch, or none.
    """
    refused = set()
    for example in examples("schedules"):
        for part in fields(example):
            for end in (5e-324, sys.float_info.max):
                value: Any = (end,) if isinstance(getattr(example, part.name), tuple) else end
                try:
                    schedule = replace(example, **{part.name: value})
                except BadInput:
                    refused.add(f"{example.kind} {part.name} {end:g}")
                    continue
                for epoch in (0, 1, 7.5, 10**15):
                    assert _computes(schedule, epoch), (schedule, epoch)
    assert refused >= {f"{kind} period 4.94066e-324" for kind in ("step", "time", "exp")}, refused


def _computes(schedule: Any, epoch: float) -> bool:
    try:
        given = (
            [schedule(epoch)]
            if isinstance(schedule, Schedule)
            else schedule.noise_multipliers([0.5])
        )
        return all(math.isfinite(noise) for noise in given)
    except ArithmeticError:
        return False
