"""This file makes the plan of a run from a `PrivacyConfig`: what was chosen, what follows by rule,
and the one number that meets the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from privlearn._checks import between, count
from privlearn.core import sampling, schedules, solving
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping import clips
from privlearn.core.clipping.clips import Clip
from privlearn.core.mechanisms import matrices
from privlearn.core.mechanisms.correlated import Correlation
from privlearn.core.plan import Plan
from privlearn.errors import BadInput
from privlearn.training import best_sampling
from privlearn.training.privacy_config import PrivacyConfig

# where nothing else says how many, and where the target is so large that there is little noise
EPOCHS = 30
_EPOCHS_WITH_LITTLE_NOISE, _LITTLE_NOISE = 60, 4.0
#: Clipping norm. Small, so that nearly every gradient is clipped: the rate then works at any scale
#: of the loss.
CLIP_NORM = 0.1

C = TypeVar("C", bound=PrivacyConfig)
T = TypeVar("T")


def batch_size(examples: int) -> int:
    """A fifteenth of the examples, and at least 256 where there are as many: accuracy is flat
    around it.
    """
    return min(examples, max(256, round(examples / 15)))


def epochs(epsilon: float | None) -> int:
    """30, and 60 where the target is above epsilon 4: with little noise more steps are worth
    theirs.
    """
    return EPOCHS if epsilon is None or epsilon <= _LITTLE_NOISE else _EPOCHS_WITH_LITTLE_NOISE


def plan_of(
    privacy: PrivacyConfig,
    examples: int,
    *,
    expected_batch: int | None = None,
    correlated: bool = True,
    discrete: bool = False,
) -> Plan:
    """The plan of a run: the noise, or what else is solved for, meets the target.

    Args:
        privacy: what was chosen.
        examples: the public number of examples that rates are relative to, where none is declared.
        expected_batch: the usual expected number of examples in a batch; None: by rule.
        correlated: whether `best` sampling tries noise that is correlated over steps.
        discrete: whether noise is drawn on a grid.

    Raises:
        BadInput: choices that do not go together, no target and no noise, or a target that can't be
            met.
    """
    examples = privacy.examples or examples

    def settle(config: PrivacyConfig) -> Plan:
        plan = draft(config, examples, expected_batch=expected_batch)
        return solve(config, plan, examples, discrete=discrete)

    if privacy.sampling != best_sampling.BEST:
        return settle(privacy)
    tries_correlated = correlated and not discrete
    return settle_best(privacy, settle, lambda plan: plan, examples, correlated=tries_correlated)


def draft(
    privacy: PrivacyConfig,
    examples: int,
    *,
    clip_norm: float = CLIP_NORM,
    expected_batch: int | None = None,
) -> Plan:
    """The plan before anything is solved for.

    Args:
        privacy: what was chosen.
        examples: the public number of examples that rates are relative to.
        clip_norm: the usual clipping norm.
        expected_batch: the usual expected number of examples in a batch; None: by rule.

    Raises:
        BadInput: numbers out of range.
    """
    count("examples", examples)
    if privacy.batch_size is not None and (
        privacy.sampling == "full" or not isinstance(privacy.sampling, str)
    ):
        raise BadInput(
            f"sampling={privacy.sampling!r} says itself how large batches are: leave out "
            "batch_size="
        )
    usual_size = batch_size(examples) if expected_batch is None else min(expected_batch, examples)
    size = usual_size if privacy.batch_size is None else privacy.batch_size
    norm = clip_norm if privacy.clip_norm is None else privacy.clip_norm
    return Plan(
        sampling=sampling.named(privacy.sampling, size, examples),
        epochs=epochs(privacy.epsilon) if privacy.epochs is None else privacy.epochs,
        schedule=_noise_schedule(privacy),
        clip=privacy.clip if isinstance(privacy.clip, Clip) else clips.named(privacy.clip, norm),
        adjacency=None if privacy.adjacency is None else Adjacency.parse(str(privacy.adjacency)),
        examples=privacy.examples,
        group_size=privacy.group_size,
        rows_per_person=privacy.rows_per_person,
    )


def _noise_schedule(privacy: PrivacyConfig) -> schedules.NoiseSchedule:
    """The schedule, which begins at the noise multiplier where that is known."""
    written = privacy.schedule
    schedule = (
        schedules.parse(written, free_rate=privacy.unknown == "rate")
        if isinstance(written, str)
        else written
    )
    if privacy.noise_multiplier is None:
        return schedule
    sigma = between("the noise multiplier", privacy.noise_multiplier, 1e-6, 1e12)
    if not isinstance(written, str):
        raise BadInput(
            f"schedule is {schedules.spec(schedule)} and noise_multiplier is {sigma:g}: both say "
            "what the noise is. Leave one of them out, or write the schedule as a text, such as "
            "'exp:k=0.01', which begins at the noise multiplier"
        )
    if "start=" in written:
        raise BadInput(
            f"the schedule {written!r} has its own start, and noise_multiplier is {sigma:g}: give "
            "one of the two"
        )
    return replace(schedule, start=sigma)  # type: ignore[type-var]


def solve(privacy: PrivacyConfig, plan: Plan, examples: int, *, discrete: bool = False) -> Plan:
    """The plan with the number that meets the target, and with the mechanism that was chosen.

    Args:
        privacy: what was chosen.
        plan: with everything else, as `draft` makes it.
        examples: the public number of examples.
        discrete: whether noise is drawn on a grid.

    Raises:
        BadInput: choices that do not go together, no target and no noise, or a target that can't be
            met.
    """
    target = privacy.target
    if target is None and plan.reacts:
        raise BadInput(
            "a validation schedule runs within a limit that is set beforehand: give epsilon=E "
            "(with delta=D) or rho=R"
        )
    mechanisms = matrices.choices(privacy.mechanism)
    if discrete and mechanisms != [None]:
        raise BadInput(
            "correlated noise is not a whole number of grid steps: leave out discrete noise, or "
            "the mechanism"
        )
    if len(mechanisms) > 1 and (target is None or privacy.unknown != "noise"):
        raise BadInput(
            f"the mechanism {privacy.mechanism!r} leaves a number open, which is chosen where the "
            f"noise is solved for: say {matrices.spec(mechanisms[-1])}, or leave out "
            "noise_multiplier="
        )

    def meet_target(plan: Plan) -> Plan:
        return plan if target is None else _meet_target(privacy, plan, examples)

    # a sampler that is an object stays as it is
    adjust = isinstance(privacy.sampling, str)
    return solving.with_least_noise(plan, mechanisms, meet_target, examples, adjust=adjust)


def _meet_target(privacy: PrivacyConfig, plan: Plan, examples: int) -> Plan:
    """Settle the one number that the choices leave open."""
    target = privacy.target
    assert target is not None
    unknown = privacy.unknown
    if (unknown == "noise") != (privacy.noise_multiplier is None):
        advice = "leave out" if unknown == "noise" else "give"
        raise BadInput(
            f"to solve for the {unknown}, {advice} noise_multiplier=S: one number is solved for, "
            "the rest given"
        )
    match unknown:
        case "noise":
            return plan.calibrate(epsilon=target.epsilon, delta=target.delta, rho=target.rho)
        case "rate":
            return plan.with_rate(target)
        case "batch-size":
            return plan.with_batch_size(target, examples)
        case _:
            return plan.within(target, privacy.epochs)


def settle_best(
    privacy: C,
    settle: Callable[[C], T],
    planned: Callable[[T], Plan],
    examples: int,
    *,
    correlated: bool,
) -> T:
    """What is settled with the best sampler and mechanism of those that are priced for the same
    neighbours.

    Args:
        privacy: with `sampling="best"`.
        settle: settles it with a sampler in place of `best`.
        planned: the plan of what was settled.
        examples: the public number of examples.
        correlated: whether noise that is correlated over steps is tried where the mechanism was
            left open.

    Raises:
        BadInput: no target that is met by the noise, or no sampler that goes with the rest.
    """
    if (
        privacy.target is None
        or privacy.solve not in (None, "noise")
        or privacy.noise_multiplier is not None
    ):
        raise BadInput(best_sampling.NO_TARGET)

    def settle_with(name: str, mechanism: Correlation | str, neighbours: Adjacency | None) -> T:
        chosen = replace(privacy, sampling=name, mechanism=mechanism, adjacency=neighbours)
        return settle(chosen)

    adjacency = None if privacy.adjacency is None else Adjacency.parse(str(privacy.adjacency))
    return best_sampling.least(
        settle_with, planned, examples, privacy.mechanism, adjacency, correlated=correlated
    )
