"""What each method asks of options and public numbers: what goes together, and its plan; without
data or torch.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from privlearn._checks import count, positive
from privlearn.cli import screen
from privlearn.cli.options import DPMAC, DPSGD, FEATURES, PATE
from privlearn.cli.request import Request
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.clipping.derivative_bounds import Derivatives
from privlearn.core.plan import AbstractPlan
from privlearn.core.processes import World, require_one_process
from privlearn.descent import rules
from privlearn.descent.best_sampling import INDEPENDENT
from privlearn.descent.choices import Facts, TrainRequest
from privlearn.descent.rules import Settled
from privlearn.errors import BadInput, ProcessLost
from privlearn.methods import METHODS
from privlearn.runs import compute
from privlearn.runs.compute import ComputeConfig
from privlearn.statistics.advice import advised
from privlearn.statistics.metric_figures import MetricsPlan, ValueMetricsPlan
from privlearn.statistics.plan import ClassifierPlan, FisherPlan, LeastSquaresPlan, RowsPlan
from privlearn.teachers.chances import chance_to_be_answered, chance_to_win, drowned
from privlearn.teachers.plan import Ball, ConfidentVotes, PatePlan, Votes
from privlearn.transforms.pca import components_of

#: DP-MAC's: the paper's settings for its classifier (Harder et al. 2019, Table 2).
_MAC_THRESHOLD, _MAC_BATCHES, _MAC_LEAST_BATCH = 0.3, 60, 256
#: PATE's teachers and queries for classes, and how many classes there are.
TEACHERS, QUERIES, CLASSES = 250, 1000, 10
#: The same for maps of classes; and numbers in a correction for each class but the background: as
#: many products of cosines have at most 3 half waves over a volume in all (`volumes.Corrections`).
MAP_TEACHERS, MAP_QUERIES, MAP_WAVES = 32, 20, math.comb(3 + 3, 3)
#: Lengths of the teachers' mean correction, in radii, in tables.
_LENGTHS = (0.25, 0.5, 1.0)
#: Shares of the teachers that agree, in tables.
_SHARES = (0.6, 0.75, 0.9)
_Plan = TypeVar("_Plan", bound=AbstractPlan)
#: Where options are called otherwise in Python.
_PYTHON = {"learning_rate_schedule": "lr_schedule"}


def require_combinable(request: Request) -> None:
    """Refuse options that do not suit the method, or each other, before anything is read or begun.

    Raises:
        BadInput: naming the first of them.
    """
    if request.method == PATE and request.rows_per_person is not None:
        raise BadInput(
            "--rows-per-person is for training on batches: with person ids all rows of a person "
            "are with one teacher, and the person is protected at the same price. Leave it out"
        )
    request.require_suited()
    if (
        request.method == DPSGD
        and request.tune is None
        and "jobs" in request
        and request.jobs is not None
    ):
        raise BadInput(
            f"--jobs {request.jobs} is for candidates of --tune and for teachers of --method pate, "
            "which are trained at once: leave it out, or see docs/distributed.md"
        )
    if request.method in _COMBINABLE:
        _COMBINABLE[request.method](request)


def method_plan(request: Request, facts: Facts) -> AbstractPlan:
    """The plan of a method that has no page of its own."""
    settle = METHODS[request.method].settle
    assert settle is not None
    return settle(request, facts)


# DP-SGD and DP-MAC


def with_pca(request: Request) -> Request:
    """The options with `--features pca:L` read as what it is, `--pca L`."""
    components = None if request.features is None else components_of(request.features)
    if components is None:
        return request
    if request.pca is not None:
        same = "are the same" if components == request.pca else "both ask for principal directions"
        raise BadInput(
            f"--features {request.features} and --pca {request.pca} {same}: give one of them"
        )
    return request.replaced(features=None, pca=components)


def training_request(request: Request, **more: Any) -> TrainRequest:
    """What the options say of a run of DP-SGD.

    Args:
        request: the options.
        more: what is in none of them as it stands.

    Raises:
        BadInput: choices that do not go together.
    """
    computed = {name: request.values[name] for name in compute.names() if name in request}
    computed |= {name: more.pop(name) for name in compute.names() if name in more}
    more["config"] = ComputeConfig.of(computed)  # --config is another thing: a file of options
    names = [field.name for field in fields(TrainRequest)]
    options = {name: _PYTHON.get(name, name) for name in names if name not in more}
    return TrainRequest(
        **{name: request.values[option] for name, option in options.items() if option in request},
        **more,
    )


def _require_descent(request: Request) -> None:
    training_request(request)


def _require_mac(request: Request) -> None:
    if request.given("z_rate") and not request.given("z_steps"):
        raise BadInput(
            "--z-rate is that of Adam's steps on the coordinates: add --z-steps 30, or leave it out"
        )
    training_request(request)


def mac_settled(request: Request, facts: Facts) -> Settled:
    """DP-MAC's plan, settled: smaller batches than for DP-SGD unless their size is given;
    derivatives are clipped.
    """
    size, examples = request.batch_size, facts.examples
    if size is None and request.sampling != "full":
        size = min(examples, max(_MAC_LEAST_BATCH, round(examples / _MAC_BATCHES)))
    mechanism = request.mechanism or INDEPENDENT  # correlated noise is for a norm that stays
    chosen = training_request(request, batch_size=size, temperature=0.0, mechanism=mechanism)
    settled = rules.settle(chosen, facts)
    threshold = _MAC_THRESHOLD if request.clip_norm is None else request.clip_norm
    return replace(settled, plan=replace(settled.plan, clip=Derivatives(threshold)))


# Class statistics


def _require_features(request: Request) -> None:
    if request.mode == "least-squares" and request.keep is not None:
        raise BadInput(
            "--mode least-squares takes all features: leave out --keep, or give rows of fewer"
        )
    if request.mode == "auto" and request.keep is not None:
        raise BadInput(
            "--mode auto says how many features to keep: leave out --keep, or --mode auto"
        )
    if request.mode == "auto" and request.examples is None:
        raise BadInput(
            "--mode auto goes by public numbers alone, the number of rows among them: declare it, "
            "--examples N"
        )


def features_plan(request: Request, facts: Facts) -> tuple[ClassifierPlan, dict[str, str]]:
    """The plan of `--method features`, settled; for `--mode auto` with why, which is printed, too.

    Raises:
        BadInput: numbers out of range, or not exactly one of a target and a noise multiplier.
    """
    _require_one_target(
        request,
        (
            "give what may be spent, --epsilon E or --rho R, or the noise of all together, "
            "--noise-multiplier S"
        ),
    )
    if facts.classes is None:
        raise BadInput(
            "features are selected by classes, and these data have other targets: declare them "
            "with --classes"
        )
    norm, bound = rules.bounds(request, facts)
    shared: dict[str, Any] = {
        "classes": facts.classes,
        "features": facts.numbers,
        "row_norm": norm,
        "noise_multiplier": request.noise_multiplier,
        "group_size": request.group_size,
        "front": facts.front,
        "adjacency": None if request.adjacency is None else Adjacency.parse(request.adjacency),
    }
    if request.mode == "least-squares":
        plan: ClassifierPlan = LeastSquaresPlan(**shared)
    else:
        shared |= {
            "keep": facts.numbers if request.keep is None else request.keep,
            "coordinate_bound": bound,
        }
        shared |= {"criterion": request.criterion or "distance"}
        plan = (
            RowsPlan(**shared, labels="randomised")
            if request.mode == "rows"
            else FisherPlan(**shared)
        )
    if request.noise_multiplier is None:
        delta = None if request.epsilon is None else request.delta
        plan = plan.calibrate(epsilon=request.epsilon, delta=delta, rho=request.rho)
    if request.mode != "auto" or not isinstance(plan, FisherPlan):
        return plan, {}
    advice = advised(plan, request.examples)
    screen.notes.print(f"mode auto: {advice.why}")
    return advice.plan, {"why": advice.why}


def declared_facts(request: Request) -> Facts:
    """Facts of rows that are not there: as many numbers in [0, 1] and as many classes as are
    declared.

    Raises:
        BadInput: one of the two is missing that is needed: moments (`--normalise`) are of numbers,
            whatever the classes.
    """
    if request.numbers is None:
        raise BadInput(
            "a release of features costs by how many there are: give --numbers P, how many numbers "
            "a row has"
        )
    if request.classes is None and (request.method == FEATURES or request.select is not None):
        raise BadInput("features are chosen by classes: give --classes K")
    count("--numbers", request.numbers, most=10**9)
    if request.classes is not None:
        count("--classes", request.classes, least=2, most=10**6)
    return Facts(
        request.examples or 0, (request.numbers,), request.classes, 0.0, (), request.numbers
    )


def _require_one_target(request: Request, advice: str) -> None:
    target = request.epsilon is not None or request.rho is not None
    if target is (request.noise_multiplier is not None):
        raise BadInput(f"{advice}: one of them")


# PATE


def votes_plan(
    request: Request, classes: int, pool: int | None = None, persons: bool = False
) -> PatePlan:
    """The plan of votes that the options describe, settled.

    Args:
        request: the options.
        classes: how many there are to vote for.
        pool: public inputs that there are; None: not known.
        persons: whether the data have person ids.

    Raises:
        BadInput: numbers out of range or beyond the pool, or not exactly one of a target and a
            noise multiplier.
    """
    queries = min(QUERIES, pool or QUERIES) if request.queries is None else request.queries
    if pool is not None and isinstance(queries, int) and queries > pool:
        raise BadInput(
            f"--queries is {queries}, and there are {pool} public inputs to ask about: ask at most "
            f"{pool}"
        )
    votes: Votes | ConfidentVotes = Votes(classes)
    if request.threshold is not None:
        votes = ConfidentVotes(classes, request.threshold, request.answers)
    teachers = TEACHERS if request.teachers is None else request.teachers
    return settled_votes(request, PatePlan(queries, teachers, votes), persons)


def _require_votes(request: Request) -> None:
    if (request.threshold is None) != (request.answers is None):
        raise BadInput("--threshold and --answers go together: give both, or neither")


def settled_votes(request: Request, plan: PatePlan, persons: bool = False) -> PatePlan:
    """The plan with the neighbours and the unit that the options name, and with noise, given or
    solved for.

    Raises:
        BadInput: numbers out of range, or not exactly one of a target and a noise multiplier.
    """
    adjacency = (
        Adjacency.ADD_REMOVE if request.adjacency is None else Adjacency.parse(request.adjacency)
    )
    plan = replace(
        plan,
        noise_multiplier=request.noise_multiplier,
        adjacency=adjacency,
        group_size=request.group_size,
        persons=persons and request.group_size == 1,
    )
    _require_one_target(
        request,
        "give what may be spent, --epsilon E or --rho R, or the noise, --noise-multiplier S",
    )
    if request.noise_multiplier is not None:
        return plan.reachable()
    budget = Budget(request.epsilon, request.delta, request.rho, request.group_size)
    return plan.calibrate(epsilon=budget.epsilon, delta=budget.delta, rho=budget.rho)


def votes_figures(plan: PatePlan, delta: float) -> dict[str, Any]:
    """The guarantee of a plan and what its noise does, as the JSON object that scripts rely on."""
    table = [
        {
            "agree": share,
            "answered": chance_to_be_answered(plan, share),
            "wins_against_one": chance_to_win(plan, share, together=True),
            "wins_against_all": chance_to_win(plan, share, together=False),
        }
        for share in _SHARES
    ]
    numbers = plan.to_json() | plan.noise_figures()
    return screen.priced(plan, delta) | {"plan": numbers, "votes": table}


def maps_plan(request: Request, pool: int | None = None, persons: bool = False) -> PatePlan:
    """The plan of corrections of a public network's maps, settled, but for the radius, which that
    network will tell.

    Codes are in a ball of radius 1 until then. Noise multipliers and costs don't depend on it, so
    that all that can be refused is refused before anything is trained.

    Args:
        request: the options.
        pool: public volumes that there are; None: not known.
        persons: whether the data have person ids.

    Raises:
        BadInput: as `votes_plan`.
    """
    queries = min(MAP_QUERIES, pool or MAP_QUERIES) if request.queries is None else request.queries
    if pool is not None and queries > pool:
        raise BadInput(
            f"--queries is {queries}, and there are {pool} public volumes to ask about: ask about "
            f"all of them at most, --queries {pool}"
        )
    plan = PatePlan(
        queries, MAP_TEACHERS if request.teachers is None else request.teachers, Ball(1.0)
    )
    return settled_votes(request, plan, persons)


def maps_figures(plan: PatePlan, classes: int, delta: float) -> dict[str, Any]:
    """The guarantee of a plan of corrections and what its noise does, as the JSON object that
    scripts rely on.

    `kept_of_common` and `kept_of_own` are what a student keeps of a correction of that length in
    what all queries have in common, and in what one of them has alone, on average over the noise,
    if all numbers share in it alike.
    """
    numbers = (classes - 1) * MAP_WAVES
    noise = plan.noise_std**2 * numbers  # the codes are in a ball of radius 1
    table = [
        {
            "length": length,
            "kept_of_common": length**2 / (length**2 + noise / plan.queries),
            "kept_of_own": length**2 / (length**2 + noise),
        }
        for length in _LENGTHS
    ]
    said = {"numbers": numbers, "noise_in_radii": plan.noise_std, "kept": table}
    return screen.priced(plan, delta) | {
        "plan": plan.to_json() | plan.noise_figures(),
        "corrections": said,
    }


def votes_warnings(plan: PatePlan, examples: int | None) -> Iterator[str]:
    """What is allowed, and hardly ever meant; from public numbers alone.

    Args:
        plan: with its noise.
        examples: the declared number of examples, if there is one.
    """
    yield from drowned(plan)
    yield from crowded(plan.teachers, examples)


def crowded(teachers: int, examples: int | None) -> Iterator[str]:
    """A warning of more teachers than half the declared number of examples, if there is one."""
    if examples is not None and teachers * 2 > examples:
        yield (
            f"{teachers} teachers share {examples} examples: most of them have one or none to "
            "learn from"
        )


_COMBINABLE: dict[str, Callable[[Request], None]] = {
    DPSGD: _require_descent,
    DPMAC: _require_mac,
    PATE: _require_votes,
    FEATURES: _require_features,
}


# Test metrics

#: What `--metric` may name, by task; of other data by what the targets are.
_OF_CLASSES = ("accuracy", "log-loss", "auc", "calibration-error", "balanced-accuracy")
_OF_VALUES = ("rmse", "mae", "r2")
_METRICS = {
    "multilabel": ("subset-accuracy", "f1", "auc", "log-loss"),
    "ordinal": (*_OF_CLASSES, "mae"),
    "counts": ("deviance", *_OF_VALUES),
}


def require_metric(request: Request, data: Any) -> None:
    """Refuse, before training, a figure that is none of such targets.

    Raises:
        BadInput: naming those that there are.
    """
    task = request.task or ("multilabel" if data.labels else None)
    there = _METRICS.get(
        str(task), _OF_VALUES if data.classes is None and not data.labels else _OF_CLASSES
    )
    if request.metric is not None and request.tune is None and request.metric not in there:
        raise BadInput(
            f"--metric {request.metric} is not a metric of such targets: expected one of "
            f"{', '.join(there)}"
        )


def metrics_plan(
    request: Request, plan: AbstractPlan | None, data: Any
) -> MetricsPlan | ValueMetricsPlan | None:
    """The release of the test metrics that `--paid-metrics` or `--metrics-share` asks for, beside a
    run of this plan.

    Args:
        request: the options.
        plan: of the run; None: it is not known beforehand.
        data: with the rows to test on, and the declared classes or bounds of their targets.

    Raises:
        BadInput: metrics of such a run are not released.
    """
    option = "--paid-metrics" if request.paid_metrics is not None else "--metrics-share"
    if request.paid_metrics is None and request.metrics_share is None:
        return None
    if request.paid_metrics is not None and request.metrics_share is not None:
        raise BadInput(
            "--paid-metrics is the price of the test figures beside --epsilon, and --metrics-share "
            "their part of it: give one of them"
        )
    if plan is None:
        raise BadInput(f"{option} does not go with --method {request.method}: leave it out")
    maps = data.y is not None and len(np.shape(data.y)) > 1
    if data.x_test is None or maps or (data.classes is None and data.target_bounds is None):
        raise BadInput(
            f"{option} needs test rows with classes or bounded targets: give --test-data PATH, or "
            "leave it out"
        )
    if plan.unit != PrivacyUnit(plan.unit.group_size):
        raise BadInput(
            f"{option} protects rows, and the plan persons: leave out {option}, or test on public "
            "rows"
        )
    shared: dict[str, Any] = {"adjacency": plan.neighbours, "group_size": plan.unit.group_size}
    bounds = data.target_bounds
    paid = (
        MetricsPlan(data.classes, **shared)
        if bounds is None
        else ValueMetricsPlan(*bounds, **shared)
    )
    if request.paid_metrics is not None:
        return paid.calibrate(epsilon=positive(option, request.paid_metrics), delta=request.delta)
    if request.noise_multiplier is not None or plan.budget is None:
        raise BadInput(
            f"{option} is a share of a target: give --epsilon E, and leave out --noise-multiplier"
        )
    return paid.taking(request.metrics_share, plan.budget)


def sharing(request: Request, plan: _Plan, data: Any) -> _Plan:
    """The plan with the noise that leaves room for the test metrics, where `--metrics-share` asks
    for these.

    Raises:
        BadInput: as `metrics_plan`, or noise that follows validations.
    """
    if request.metrics_share is None:
        return plan
    paid = metrics_plan(request, plan, data)
    assert paid is not None
    return plan.with_room_for(paid)


def world_of(request: Request) -> World:
    """The processes that train together; all but the first are quiet.

    Raises:
        BadInput: a launcher started several, for what takes one.
    """
    if request.method != DPSGD or request.tune is not None:
        require_one_process(f"--method {request.method}" if request.tune is None else "--tune")
        return World()
    from privlearn.runs.ranks import launched  # only to train: it imports torch

    world = launched()
    if world.rank:
        screen.be_quiet()
    if world.size > 1:
        signal.signal(signal.SIGTERM, _end)  # torchrun's, when another process ended
    return world


def _end(*_: object) -> None:
    raise ProcessLost("another process of this run ended, or torchrun was stopped: all end here")
