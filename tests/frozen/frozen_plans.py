"""Plans of every kind: their events, their guarantees and the noise that was solved for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import plain
from names import (
    PCA,
    Adjacency,
    Analytic,
    Automatic,
    Ball,
    Blocks,
    BoostingPlan,
    Box,
    Budget,
    Candidate,
    ConfidentVotes,
    Counts,
    Derivatives,
    FisherPlan,
    FixedOrder,
    Flat,
    FullBatch,
    Histogram,
    Interval,
    Labels,
    LeastSquaresPlan,
    Levels,
    Moments,
    Partition,
    PatePlan,
    PerLayer,
    Plan,
    Poisson,
    Quantile,
    RandomStopping,
    RowsPlan,
    Select,
    SelectionPlan,
    Shuffle,
    Values,
    Votes,
    advised,
    from_json,
    guarantees,
    schedules,
)

S = schedules
TARGET = {"epsilon": 2.0, "delta": 1e-5}
POISSON = Poisson(0.05)
EXP = S.Exponential(k=0.05, start=3.0)
VALIDATION = S.Validation(k=0.7, m=2, threshold=0.01, period=3, start=8.0)
DERIVATIVES = Derivatives(0.3)
MOMENTS, SELECT = Moments(50, 12.0, 3.5), Select(10, 20.0, 4, 3.5, 1.0)


def candidates(**more: Any) -> tuple[Candidate, ...]:
    base: dict[str, Any] = {"epochs": 4, "examples": 1000} | more
    return (
        Candidate("steady", Plan(Poisson(0.1), **base), settings={"rate": 0.1}),
        Candidate(
            "falling",
            Plan(Poisson(0.2), schedule=S.Exponential(k=0.1), **base),
            settings={"rate": 0.3},
        ),
    )


def features(kind: type[Any] = FisherPlan, **more: Any) -> Any:
    keep = {} if kind is LeastSquaresPlan else {"keep": 60}
    return kind(**{"classes": 3, "features": 60, "row_norm": 4.0} | keep | more)


def boosted(**more: Any) -> Any:
    columns = (Interval(-1.0, 1.0, "dose"), Levels(4, "colour"))
    return BoostingPlan(columns, **{"target": Labels(2)} | more).calibrate(**TARGET)


CASES: dict[str, Callable[[], Any]] = {
    # How batches are drawn
    "dpsgd poisson": lambda: Plan(POISSON, epochs=5, schedule=S.Constant(1.5), examples=1000),
    "dpsgd poisson calibrated": lambda: Plan(POISSON, epochs=10).calibrate(**TARGET),
    "dpsgd partition": lambda: Plan(
        Partition(20), epochs=5, schedule=S.Constant(4.0), examples=1000
    ),
    "dpsgd partition calibrated": lambda: Plan(Partition(20), epochs=5).calibrate(**TARGET),
    "dpsgd partition rho": lambda: Plan(Partition(20), epochs=5).calibrate(rho=0.1),
    "dpsgd shuffle": lambda: Plan(Shuffle(50), epochs=5, schedule=S.Constant(6.0)),
    "dpsgd shuffle replace-one calibrated": lambda: Plan(
        Shuffle(50), epochs=5, adjacency=Adjacency.REPLACE_ONE
    ).calibrate(**TARGET),
    "dpsgd fixed order": lambda: Plan(FixedOrder(50), epochs=3, schedule=EXP),
    "dpsgd full batch": lambda: Plan(FullBatch(), epochs=20, schedule=S.Constant(12.0)),
    "dpsgd full batch rho": lambda: Plan(FullBatch(), epochs=20).calibrate(rho=0.2),
    "dpsgd poisson rho is refused": lambda: Plan(POISSON, epochs=2).calibrate(rho=0.2),
    # How noise falls
    "dpsgd exp": lambda: Plan(POISSON, epochs=6, schedule=EXP),
    "dpsgd exp in periods": lambda: Plan(
        POISSON, epochs=6, schedule=S.Exponential(k=0.1, period=2.0)
    ).calibrate(**TARGET),
    "dpsgd time": lambda: Plan(POISSON, epochs=6, schedule=S.Time(k=0.1)).calibrate(**TARGET),
    "dpsgd time from to": lambda: Plan(
        Shuffle(50), epochs=12, schedule=S.Time(k=0.1, from_epoch=3.0, to_epoch=8.0)
    ).calibrate(rho=0.3),
    "dpsgd step": lambda: Plan(POISSON, epochs=6, schedule=S.Step(k=0.6, period=2.0)).calibrate(
        **TARGET
    ),
    "dpsgd polynomial": lambda: Plan(
        POISSON, epochs=6, schedule=S.Polynomial(k=2, end=2.0, period=6.0, start=5.0)
    ).calibrate(**TARGET),
    "dpsgd to zero is refused": lambda: Plan(
        POISSON, epochs=6, schedule=S.Polynomial(k=1, end=0.0, period=4.0)
    ),
    "dpsgd within a budget": lambda: Plan(POISSON, epochs=50, schedule=S.Constant(1.2)).within(
        Budget(2.0, 1e-5)
    ),
    "dpsgd falling within a budget": lambda: Plan(Shuffle(50), schedule=EXP).within(
        Budget(rho=1.0), most=40
    ),
    "dpsgd rate solved for": lambda: Plan(
        POISSON, epochs=20, schedule=S.Exponential(k=0.01, start=2.0), examples=1000
    ).with_rate(Budget(3.0, 1e-5)),
    "dpsgd batch size solved for": lambda: Plan(
        POISSON, epochs=10, schedule=S.Constant(1.5)
    ).with_batch_size(Budget(2.0, 1e-5), 1000),
    # Noise that follows validations
    "dpsgd validation": lambda: Plan(POISSON, epochs=10, schedule=VALIDATION).calibrate(**TARGET),
    "dpsgd validation shuffled rho": lambda: Plan(
        Shuffle(50), epochs=10, schedule=VALIDATION
    ).calibrate(rho=0.3),
    "dpsgd validation within": lambda: Plan(
        POISSON, epochs=30, schedule=replace(VALIDATION, start=2.0)
    ).within(Budget(3.0, 1e-5)),
    "dpsgd validation paid": lambda: Plan(
        POISSON, epochs=10, schedule=replace(VALIDATION, noise=20.0)
    ).calibrate(**TARGET),
    "dpsgd validation paid, behind pca": lambda: Plan(
        Partition(10), epochs=10, schedule=replace(VALIDATION, noise=30.0), front=(PCA(20, 25.0),)
    ).calibrate(**TARGET),
    "dpsgd validation without limit is refused": lambda: Plan(
        POISSON, epochs=10, schedule=VALIDATION
    ),
    # How gradients are clipped
    "dpsgd per layer": lambda: Plan(POISSON, epochs=3, clip=PerLayer(0.2)).calibrate(**TARGET),
    "dpsgd automatic": lambda: Plan(POISSON, epochs=3, clip=Automatic(1.0)).calibrate(**TARGET),
    "dpsgd quantile": lambda: Plan(POISSON, epochs=3, clip=Quantile(0.1)).calibrate(**TARGET),
    "dpsgd flat, strict": lambda: Plan(POISSON, epochs=3, clip=Flat(1.0)).calibrate(
        epsilon=0.1, delta=1e-7
    ),
    # What comes before
    "dpsgd pca": lambda: Plan(POISSON, epochs=8, front=(PCA(20, 16.0),)).calibrate(**TARGET),
    "dpsgd moments": lambda: Plan(POISSON, epochs=8, front=(MOMENTS,)).calibrate(**TARGET),
    "dpsgd select": lambda: Plan(POISSON, epochs=8, front=(SELECT,)).calibrate(**TARGET),
    "dpsgd select by gumbel": lambda: Plan(
        POISSON, epochs=8, front=(replace(SELECT, way="gumbel"),)
    ).calibrate(**TARGET),
    "dpsgd select and pca": lambda: Plan(
        Shuffle(50), epochs=8, front=(replace(SELECT, criterion="welch"), PCA(5, 30.0))
    ).calibrate(rho=0.4),
    "dpsgd pca too dear is refused": lambda: Plan(
        POISSON, epochs=8, front=(PCA(20, 1.0),)
    ).calibrate(**TARGET),
    # Whose data are protected
    "dpsgd groups": lambda: Plan(POISSON, epochs=4, group_size=3).calibrate(**TARGET),
    "dpsgd groups partition": lambda: Plan(Partition(20), epochs=4, group_size=2).calibrate(
        **TARGET
    ),
    "dpsgd groups rho": lambda: Plan(Shuffle(50), epochs=4, group_size=4).calibrate(rho=0.3),
    "dpsgd groups validation": lambda: Plan(
        POISSON, epochs=6, group_size=2, schedule=VALIDATION
    ).calibrate(**TARGET),
    "dpsgd persons": lambda: Plan(POISSON, epochs=4, rows_per_person=3, examples=500).calibrate(
        **TARGET
    ),
    "dpsgd persons pca": lambda: Plan(
        POISSON, epochs=4, rows_per_person=2, front=(PCA(8, 16.0),)
    ).calibrate(**TARGET),
    # DP-MAC
    "dpmac": lambda: Plan(POISSON, epochs=5, clip=DERIVATIVES).calibrate(**TARGET),
    "dpmac second order": lambda: Plan(
        POISSON, epochs=5, clip=Derivatives((0.3, 0.1), 2.0)
    ).calibrate(**TARGET),
    "dpmac learned thresholds": lambda: Plan(
        POISSON, epochs=5, clip=Derivatives(0.3, learned=Histogram(20.0, after=2))
    ).calibrate(**TARGET),
    "dpmac learned first": lambda: Plan(
        Shuffle(50), epochs=5, clip=Derivatives(0.3, learned=Histogram(20.0, after=0))
    ).calibrate(rho=0.3),
    "dpmac analytic": lambda: Plan(
        Partition(10), epochs=5, schedule=EXP, clip=Analytic(z_norm=2.0, x_norm=1.0)
    ).calibrate(**TARGET),
    "dpmac groups": lambda: Plan(POISSON, epochs=5, clip=DERIVATIVES, group_size=2).calibrate(
        **TARGET
    ),
    # PATE
    "pate votes": lambda: PatePlan(200, 50, Votes(10), noise_multiplier=25.0),
    "pate votes calibrated": lambda: PatePlan(200, 50, Votes(10)).calibrate(**TARGET),
    "pate votes of the paper": lambda: PatePlan(200, 50, Votes(10)).calibrate(
        **TARGET, formula="paper"
    ),
    "pate votes rho": lambda: PatePlan(
        200, 50, Votes(10), adjacency=Adjacency.REPLACE_ONE
    ).calibrate(rho=0.5),
    "pate confident votes": lambda: PatePlan(200, 50, ConfidentVotes(10, 30.0, 80)).calibrate(
        **TARGET
    ),
    "pate ball": lambda: PatePlan(80, 8, Ball(1.0)).calibrate(epsilon=8.0, delta=1e-3),
    "pate box": lambda: PatePlan(80, 8, Box(1000)).calibrate(epsilon=8.0, delta=1e-3),
    "pate groups": lambda: PatePlan(100, 10, Votes(3), group_size=3).calibrate(**TARGET),
    "pate persons": lambda: PatePlan(100, 10, Votes(3), persons=True).calibrate(**TARGET),
    # Statistics
    "features classifier": lambda: features().calibrate(**TARGET),
    "features classifier of few": lambda: features(keep=10).calibrate(**TARGET),
    "features classifier by gumbel": lambda: features(
        keep=5, coordinate_bound=1.0, way="gumbel"
    ).calibrate(rho=0.2),
    "features classifier by welch": lambda: features(keep=10, criterion="welch").calibrate(
        **TARGET
    ),
    "features selection": lambda: features(SelectionPlan, keep=10).calibrate(**TARGET),
    "features selection by gumbel": lambda: features(
        SelectionPlan, keep=4, coordinate_bound=1.0, way="gumbel"
    ).calibrate(**TARGET),
    "features selection by t": lambda: features(SelectionPlan, keep=10, criterion="t").calibrate(
        rho=0.2
    ),
    "features rows": lambda: features(RowsPlan, keep=10).calibrate(**TARGET),
    "features rows randomised": lambda: features(RowsPlan, keep=10, labels="randomised").calibrate(
        **TARGET
    ),
    "features rows replace-one": lambda: features(
        RowsPlan, adjacency=Adjacency.REPLACE_ONE
    ).calibrate(rho=0.4),
    "features least squares": lambda: features(LeastSquaresPlan).calibrate(**TARGET),
    "features groups": lambda: features(group_size=2).calibrate(**TARGET),
    "features advised, many": lambda: advised(features().calibrate(**TARGET), 50_000).plan,
    "features advised, few": lambda: (
        advised(features(coordinate_bound=1.0).calibrate(**TARGET), 200).plan
    ),
    # Boosting
    "boosting": lambda: boosted(),
    "boosting with trees, rho, groups": lambda: BoostingPlan(
        (Interval(0.0, 1.0), Levels(3)), Counts(9.0), trees=6, depth=2, group_size=2
    ).calibrate(rho=0.1),
    "boosting of values, replace-one": lambda: boosted(
        target=Values(0.0, 5.0), adjacency=Adjacency.REPLACE_ONE
    ),
    # Tuning
    "tuning blocks": lambda: Blocks(candidates()).calibrate(**TARGET),
    "tuning blocks again": lambda: Blocks(candidates(), retrain=True, share=0.4).calibrate(
        **TARGET
    ),
    "tuning blocks with pca": lambda: Blocks(
        candidates(front=(PCA(5, 30.0),)), selection_epsilon=0.5, retrain=True
    ).calibrate(**TARGET),
    "tuning blocks of groups": lambda: Blocks(candidates(group_size=2)).calibrate(**TARGET),
    "tuning by random stopping": lambda: RandomStopping(candidates(), mean=3.0).calibrate(**TARGET),
    "tuning by logarithmic stopping": lambda: RandomStopping(
        candidates(), mean=3.0, shape=0.0
    ).calibrate(**TARGET),
    "tuning by Poisson stopping": lambda: RandomStopping(
        candidates(), mean=5.0, shape=math.inf, score_noise=30.0
    ).calibrate(**TARGET),
}


def figures(only: str = "") -> dict[str, Any]:
    return plain.each(
        {name: lambda case=case: _figures(case()) for name, case in CASES.items()}, only
    )  # type: ignore[misc]


def _figures(plan: Any) -> dict[str, Any]:
    return {
        "event": plain.event(plan.event()),
        "neighbours": str(plan.neighbours),
        "unit": str(plan.unit),
        "group size": plan.unit.group_size,
        "guarantees": _by_delta(plan.guarantees),
        "epsilon": plan.guarantee(1e-5).epsilon,
        "solved": _solved(plan),
    }


def _by_delta(guarantees: Callable[[float], tuple[Any, ...]]) -> dict[str, dict[str, float]]:
    return {
        f"{delta:g}": {one.method: one.epsilon for one in guarantees(delta)}
        for delta in (1e-5, 1e-6)
    }


def prices(figures: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What the event of frozen figures costs now: the noise is given, not searched for."""
    event, neighbours = from_json(figures["event"]), Adjacency(figures["neighbours"])
    with plain.repeatable():
        return _by_delta(lambda delta: guarantees(event, neighbours, delta, figures["group size"]))


def _solved(plan: Any) -> dict[str, Any]:
    """What calibrating settles."""
    if isinstance(plan, Plan):
        return {
            "epochs": plan.epochs,
            "schedule": schedules.spec(plan.schedule),
            "sampling": str(plan.sampling),
        }
    if isinstance(plan, PatePlan):
        return {"noise std": plan.noise_std, "described": plain.short(plan.to_json())}
    return {"described": plain.short(plan.to_json())}
