"""The settings of a private optimizer that its plan fixes: the noise multiplier and the clipping
norm of each epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from privlearn._checks import positive
from privlearn.core.clipping.clips import ScheduledClip
from privlearn.core.plan import Plan
from privlearn.core.schedules import Constant, PerEpoch, Schedule
from privlearn.errors import BadInput
from privlearn.opacus.schedulers import PlannedScheduler
from privlearn.training.clip_only import ClipOnlyRun
from privlearn.training.run import Run

#: A run of a script, with noise or without.
ScriptedRun = Run | ClipOnlyRun

NOISE, NORM = "noise_multiplier", "max_grad_norm"


@final
@dataclass
class PlannedSetting:
    """A setting of the optimizer.

    Attributes:
        values: of each epoch, as the plan has it.
        base: its value where a scheduler's factor is 1.
        scheduler: what changes it from epoch to epoch; None: nothing but the plan.
        began_at: how often the scheduler was stepped before the first batch.
    """

    values: tuple[float, ...]
    base: float
    scheduler: PlannedScheduler | None = None
    began_at: int = 0

    def values_for(self, epochs: int) -> tuple[float, ...]:
        """The value of each epoch, as the script says it."""
        if self.scheduler is None:
            return (self.base,) * epochs
        return tuple(self.base * factor for factor in self.scheduler.factors(epochs))


@final
class PlannedSettings:
    """What a script sets on its optimizer, and schedules, before the first batch becomes the plan's
    noise and clip; what it sets later is refused.

    Guarantee: no value that a script set, and was not refused, is without effect. A step has the
    plan's noise and norm for its epoch, which is what is charged; where a scheduler says otherwise,
    the next batch and the next step are refused.

    Args:
        run: whose plan it is about.
        remake: makes the run again, by a plan; nothing is spent before the first batch. A run that
            goes on is also given `checkpoint`, `loss` and `config`.

    Attributes:
        adds_noise: whether the run does: else its noise multiplier is 0, and stays.
    """

    def __init__(self, run: ScriptedRun, remake: Callable[..., ScriptedRun]) -> None:
        self._run, self._remake = run, remake
        plan = run.plan
        self.adds_noise = not isinstance(run, ClipOnlyRun)
        noise = self._noise_of(plan)
        clip: Any = plan.clip
        norms = tuple(clip.at(epoch) or clip.clip_norm for epoch in range(plan.epochs))
        self._settings = {
            name: PlannedSetting(values, values[0])
            for name, values in ((NOISE, noise), (NORM, norms))
        }
        self._changed: set[str] = set()
        self._epoch: int | None = None  # the one under way, once a batch was asked for

    def _noise_of(self, plan: Plan) -> tuple[float, ...]:
        return plan.noise_multipliers() if self.adds_noise else (0.0,) * plan.epochs

    @property
    def run(self) -> ScriptedRun:
        """The run, by a plan that has all that was set so far."""
        if self._changed:
            self._settle()
        return self._run

    def remake(self, **resumed: Any) -> None:
        """Make the run again, by the plan that has all that was set so far."""
        self._run = self._remake(self.run, self.run.plan, **resumed)

    def begin_epoch(self, epoch: int) -> None:
        """A batch of this epoch will be drawn: from here on the plan is fixed. Where a run goes on,
        schedulers go on with it.
        """
        if self._epoch is None:
            for setting in self._settings.values():
                if setting.scheduler is not None:
                    setting.began_at = setting.scheduler.last_epoch
                    setting.scheduler.last_epoch += epoch
        self._epoch = epoch

    def value(self, name: str) -> float:
        """The present value of a setting."""
        if name == NOISE and name in self._changed and self._run.plan.budget is not None:
            self._settle()  # the noise that meets the target
        setting = self._settings[name]
        if setting.scheduler is not None:
            return setting.base * setting.scheduler.factor(setting.scheduler.last_epoch)
        if name == NORM and not isinstance(self._run.plan.clip, ScheduledClip):
            return self._run.clip_norm  # which may follow what was released
        return setting.base if name in self._changed else setting.values[self._epoch or 0]

    def set(self, name: str, value: Any) -> None:
        """Plan with another value, before the first batch.

        Raises:
            BadInput: the first batch was drawn, a scheduler or a target decides, or it is no
                number above 0. Nothing was changed.
        """
        if isinstance(value, int | float) and value == self.value(name):
            raise BadInput(
                f"{name} was set to the value that it has, as Opacus's own schedulers do when they "
                f"are made. Import schedulers from privlearn.opacus in place of opacus.schedulers, "
                "whose steps the plan would not know; or leave the assignment out"
            )
        self.require_open(name)
        setting = self._settings[name]
        if setting.scheduler is not None:
            raise BadInput(
                f"{name} was set, and {type(setting.scheduler).__name__} changes it: set it before "
                "the scheduler is made, or leave one of them out"
            )
        if name == NOISE and self._run.plan.budget is not None:
            raise BadInput(
                "noise_multiplier was set, and the noise follows from the target epsilon: give "
                "noise_multiplier= to make_private in place of target_epsilon="
            )
        if name == NOISE and not self.adds_noise:
            raise BadInput(
                "noise_multiplier was set, and the run was made without noise, of which nothing "
                "can be claimed: give noise_multiplier= to make_private"
            )
        self._require_free(name)
        setting.base = positive(name, value)
        self._changed.add(name)

    def attach(self, scheduler: PlannedScheduler) -> None:
        """Plan by a scheduler, from the first batch on.

        Raises:
            BadInput: the first batch was drawn, or there is a scheduler or a schedule already.
        """
        name = scheduler.setting
        self.require_open(name)
        setting = self._settings[name]
        if setting.scheduler is not None:
            raise BadInput(
                f"{type(setting.scheduler).__name__} changes {name} already, and "
                f"{type(scheduler).__name__} would, too: make one scheduler for each. LambdaNoise "
                "and LambdaGradClip take any function of the epoch"
            )
        self._require_free(name)
        setting.base = self.value(name)
        setting.scheduler = scheduler
        self._changed.add(name)

    def stepped(self) -> None:
        """A scheduler was stepped: before the first batch the plan follows."""
        if self._epoch is None:
            self._changed.update(
                name for name, setting in self._settings.items() if setting.scheduler is not None
            )

    def require_open(self, name: str) -> None:
        """Raise `BadInput` once the plan is fixed."""
        if self._epoch is not None:
            raise BadInput(
                f"{name} can't be changed after the first batch: the plan, and what a certificate "
                "claims, were fixed before it. Make StepNoise, StepGradClip, LambdaNoise and the "
                "like of privlearn.opacus before the first batch; opacus.schedulers don't work"
            )

    def require_planned(self, epoch: int) -> None:
        """Raise `BadInput` unless every scheduler is where the plan has it in this epoch."""
        for name, setting in self._settings.items():
            scheduler = setting.scheduler
            if scheduler is None or scheduler.last_epoch - setting.began_at == epoch:
                continue
            raise BadInput(
                f"{type(scheduler).__name__}.step() was called "
                f"{scheduler.last_epoch - setting.began_at} times before this batch of epoch "
                f"{epoch} (from 0), and the plan changes {name} once after each epoch. Call step() "
                "once after each pass over the loader"
            )

    def _require_free(self, name: str) -> None:
        """Refuse to change what a schedule or a clip of the plan's own changes already."""
        plan = self._run.plan
        if name == NOISE and not isinstance(plan.schedule, Constant):
            raise BadInput(
                f"the plan's noise follows {plan.schedule.kind} already: leave out schedule=, or "
                "the scheduler"
            )
        if name == NORM and (not isinstance(plan.clip, ScheduledClip) or plan.clip.moves):
            raise BadInput(
                f"the plan's clip is {plan.clip.kind}, which decides the norm of each step by "
                "itself: leave out clipping= or clip=, or max_grad_norm and its scheduler"
            )

    def _settle(self) -> None:
        """Make the run anew by a plan that has what was set."""
        plan = self._run.plan
        planned = {name: self._settings[name].values_for(plan.epochs) for name in self._changed}
        if NORM in planned:
            norms, clip = planned[NORM], plan.clip
            assert isinstance(clip, ScheduledClip)
            moving = PerEpoch(norms) if len(set(norms)) > 1 else None
            plan = replace(plan, clip=replace(clip, clip_norm=norms[0], schedule=moving))
        if NOISE in planned and self.adds_noise:
            plan = _with_noise(plan, planned[NOISE])
        self._run = self._remake(self._run, plan)
        self._changed.clear()
        for name, values in planned.items():
            self._settings[name].values = values
        if plan.budget is not None:  # the target says how high
            noise = self._settings[NOISE]
            noise.values = plan.noise_multipliers()
            factor = 1.0 if noise.scheduler is None else noise.scheduler.factors(1)[0]
            noise.base = noise.values[0] / factor


def _with_noise(plan: Plan, values: tuple[float, ...]) -> Plan:
    """The plan at the noise of each epoch; with a target, at the multiple of it that meets it."""
    schedule: Schedule = PerEpoch(values) if len(set(values)) > 1 else Constant(values[0])
    budget = plan.budget
    if budget is None:
        return replace(plan, schedule=schedule)
    return replace(plan, schedule=schedule, budget=None).calibrate(
        epsilon=budget.epsilon, delta=budget.delta, rho=budget.rho
    )
