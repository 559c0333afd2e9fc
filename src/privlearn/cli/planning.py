"""From options to a plan, without data and without torch."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from privlearn import sampling, schedules
from privlearn._checks import between, count
from privlearn.accounting import accountant, comparisons
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import to_json
from privlearn.accounting.guarantee import Adjacency, Guarantee
from privlearn.clipping import clips
from privlearn.descent import rules
from privlearn.errors import BadInput, UnsupportedEvent
from privlearn.plan import Plan
from privlearn.transforms.base import Transform
from privlearn.transforms.pca import PrivatePCA


def make_plan(options: argparse.Namespace, examples: int, before: tuple[Transform, ...] = ()) -> Plan:
    """The plan that the options describe, settled: calibrated to a target, or run within it.

    Args:
        options: what was given.
        examples: the public number of examples that rates are relative to.
        before: what comes before training, and before a PCA.

    Raises:
        BadInput: numbers out of range, or no target and no noise.
    """
    plan = draft(options, examples)
    plan = replace(plan, front=(*before, *plan.front))
    target = _target(options)
    if target is None and isinstance(plan.schedule, schedules.Validation):
        raise BadInput(
            "a validation schedule runs within a limit that is set beforehand: give --epsilon E (with --delta D) or --rho R"
        )
    return plan if target is None else _solve(options, plan, target, examples)


def draft(options: argparse.Namespace, examples: int) -> Plan:
    """The plan that the options describe, before anything is solved for; else as `make_plan`."""
    count("examples", examples)
    if options.sampling == "full" and options.batch_size is not None:
        raise BadInput("--sampling full has all the examples in its batch: leave out --batch-size")
    if options.pca is None and options.pca_noise is not None:
        raise BadInput("--pca-noise is given without --pca: say how many components, for example --pca 60")
    given = options.batch_size if options.batch_size is not None else rules.batch_size(examples)
    sampler = sampling.named(options.sampling, given, examples)
    clip_norm = rules.CLIP_NORM if options.clip_norm is None else options.clip_norm
    return Plan(
        sampling=sampler,
        epochs=rules.epochs(options.epsilon) if options.epochs is None else options.epochs,
        schedule=_schedule(options),
        clip=clips.named(options.clip, clip_norm),
        adjacency=None if options.adjacency is None else Adjacency.parse(options.adjacency),
        examples=options.examples,
        front=()
        if options.pca is None
        else (PrivatePCA(options.pca, rules.PCA_NOISE if options.pca_noise is None else options.pca_noise),),
        group_size=options.group_size,
        rows_per_person=options.rows_per_person,
    )


def _solve(options: argparse.Namespace, plan: Plan, target: Budget, examples: int) -> Plan:
    """Settle the one number that the options leave open."""
    unknown = _unknown(options)
    if (unknown == "noise") != (options.noise_multiplier is None):
        advice = "leave out" if unknown == "noise" else "give"
        raise BadInput(
            f"to solve for the {unknown}, {advice} --noise-multiplier: one number is solved for, the rest given"
        )
    match unknown:
        case "noise":
            return plan.calibrate(epsilon=target.epsilon, delta=target.delta, rho=target.rho)
        case "rate":
            return plan.with_rate(target)
        case "batch-size":
            return plan.with_batch_size(target, examples)
    return plan.within(target, options.epochs)


def _unknown(options: argparse.Namespace) -> str:
    default = "noise" if options.noise_multiplier is None else "epochs"
    return str(options.solve or default)


def figures(plan: Plan, delta: float, examples: int) -> dict[str, Any]:
    """The guarantee of a plan, and what else is known of it, as the JSON object that scripts rely on."""
    return {
        **guaranteed(plan.guarantees(delta), _asides(plan, delta, examples)),
        "epochs": plan.epochs,
        "steps": plan.epochs * plan.sampling.steps(examples),
        "noise_multipliers": None if plan.filter else list(plan.noise_multipliers()),
        "plan": {
            "sampling": {"kind": plan.sampling.kind, **vars(plan.sampling)},
            "expected_batch_size": plan.sampling.expected_batch_size(examples),
            "schedule": schedules.spec(plan.schedule),
            "clip": {"kind": plan.clip.kind, "norm": plan.clip.clip_norm},
            "before": [{"kind": release.kind, **vars(release)} for release in plan.releases],
            **({"filter": to_json(plan.filter)} if plan.filter else {}),
        },
        "unspent": None
        if plan.budget is None
        else 1 - plan.budget.spent(plan.event(), plan.neighbours) / plan.budget.limit,
    }


def guaranteed(bounds: Sequence[Guarantee], asides: Iterable[Guarantee] = ()) -> dict[str, Any]:
    """The part of the JSON object that is the same for every plan; what has no epochs leaves those empty.

    Args:
        bounds: sound guarantees, the tightest first.
        asides: what is not claimed.
    """
    best = bounds[0]
    return {
        "adjacency": best.adjacency.value,
        "delta": best.delta,
        "epsilon": best.epsilon,
        "method": best.method,
        "rho": best.rho,
        "epochs": None,
        "steps": None,
        "noise_multipliers": None,
        "guarantees": [
            {"method": each.method, "epsilon": each.epsilon, "kind": each.kind} for each in (*bounds, *asides)
        ],
        "group_size": best.group_size,
        **({} if best.rows_per_person is None else {"rows_per_person": best.rows_per_person}),
    }


def warnings(plan: Plan, options: argparse.Namespace, examples: int) -> Iterator[str]:
    """What is allowed, and hardly ever meant."""
    yield from delta_warning(options, examples)
    yield from _idle(plan)
    if isinstance(plan.sampling, sampling.Shuffle) and not comparisons.installed():
        yield comparisons.MISSING
    if plan.filter and isinstance(plan.sampling, sampling.Partition):
        yield (
            "a schedule that reacts is accounted for without amplification where batches are a partition: poisson sampling "
            "costs far less"
        )


def delta_warning(options: argparse.Namespace, examples: int) -> Iterator[str]:
    """A delta that promises nothing."""
    if options.delta * examples >= 1:
        yield (
            f"delta {options.delta:g} is not below one over the {examples} examples: a mechanism may then give away a whole "
            "example and keep to it"
        )


def _idle(plan: Plan) -> Iterator[str]:
    """Where a schedule is paid for, and does not do what it is for."""
    schedule = plan.schedule
    if isinstance(schedule, schedules.Decay) and schedule.from_epoch >= plan.epochs:
        yield f"the schedule falls from epoch {schedule.from_epoch:g} on (counted from 0), and the run ends before"
    if not isinstance(schedule, schedules.Validation):
        return
    if schedule.period >= plan.epochs:
        yield (
            f"the validation schedule checks every {schedule.period} epochs, and the run has at most {plan.epochs}: its noise "
            "never falls. Use a smaller period"
        )


def _asides(plan: Plan, delta: float, examples: int) -> Iterator[Guarantee]:
    """Estimates and lower bounds: never what is claimed."""
    if plan.group_size > 1:
        return
    event = plan.event()
    yield from accountant.estimates(event, plan.neighbours, delta)
    if isinstance(plan.sampling, sampling.Shuffle):
        try:
            least = comparisons.lower_bound(event, plan.sampling.steps(examples), plan.neighbours, delta)
        except UnsupportedEvent:
            return
        yield Guarantee(least, delta, plan.neighbours, "shuffle-2024", "lower_bound")


def _schedule(options: argparse.Namespace) -> schedules.NoiseSchedule:
    schedule = schedules.parse(options.schedule, free_rate=_unknown(options) == "rate")
    if options.noise_multiplier is None:
        return schedule
    sigma = between("the noise multiplier", options.noise_multiplier, 1e-6, 1e12)
    if "start=" in options.schedule:
        raise BadInput(
            f"the schedule {options.schedule!r} has its own start, and --noise-multiplier is {sigma:g}: give one of the two"
        )
    return replace(schedule, start=sigma)  # type: ignore[type-var]


def _target(options: argparse.Namespace) -> Budget | None:
    if options.epsilon is None and options.rho is None:
        if options.noise_multiplier is None:
            raise BadInput(
                "nothing says how much privacy may be spent: give --epsilon E (with --delta D), --rho R, or the noise "
                "itself with --noise-multiplier S"
            )
        Budget(epsilon=1.0, delta=options.delta)
        return None
    return Budget(options.epsilon, options.delta, options.rho, options.group_size)
