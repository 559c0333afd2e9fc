"""What each method asks of options and public numbers: what goes together, and its plan; without
data or torch.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from privlearn._checks import count, positive
from privlearn.cli import screen
from privlearn.cli.options import DPSGD, FEATURES, PATE
from privlearn.cli.request import Request
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.plan import AbstractPlan
from privlearn.core.processes import World, require_one_process
from privlearn.errors import BadInput, ProcessLost
from privlearn.methods import METHODS
from privlearn.methods.installed import method_of_maps
from privlearn.methods.pate.chances import chance_to_be_answered, chance_to_win, drowned
from privlearn.methods.pate.plan import PatePlan
from privlearn.methods.statistics.advice import advised_classifier
from privlearn.methods.statistics.metric_figures import MetricsPlan, ValueMetricsPlan
from privlearn.methods.statistics.plan import ClassifierPlan
from privlearn.models.heads import head_of
from privlearn.runs import compute
from privlearn.runs.compute import ComputeConfig
from privlearn.training.choices import Facts, TrainRequest
from privlearn.transforms.pca import components_of

if TYPE_CHECKING:
    from privlearn.data import Dataset

#: How many classes teachers vote for, where that is not said.
CLASSES = 10
#: Shares of the teachers that agree, in tables.
_SHARES = (0.6, 0.75, 0.9)
#: Rows that a teacher can learn from.
_LEAST_ROWS = 10
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
    check = METHODS[request.method].check
    if check is not None:
        check(named_options(request))
    elif request.method == DPSGD:
        training_request(request)


def method_plan(request: Request, facts: Facts) -> AbstractPlan:
    """The plan of a method, by the options of its row."""
    settle = METHODS[request.method].settle
    assert settle is not None
    return settle(named_options(request), facts)


def named_options(request: Request, **more: Any) -> SimpleNamespace:
    """The options by their names in Python, as the rows of methods take them.

    Args:
        request: the options.
        more: what is in none of them as it stands.

    Raises:
        BadInput: a value out of range.
    """
    computed = {name: request.values[name] for name in compute.names() if name in request}
    computed |= {name: more.pop(name) for name in compute.names() if name in more}
    values = {**request.values, "public": None}
    values |= {name: request.values[key] for name, key in _PYTHON.items() if key in request}
    # --config is another thing: a file of options
    return SimpleNamespace(**{**values, "config": ComputeConfig.of(computed), **more})


def map_pages() -> Any:
    """The pages of the method that learns maps of classes, which an installed package brings.

    Raises:
        BadInput: no installed package has one.
    """
    return import_module(method_of_maps().pages)


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
    return TrainRequest.of_options(named_options(request, **more))


# Class statistics


def features_plan(request: Request, facts: Facts) -> tuple[ClassifierPlan, dict[str, str]]:
    """The plan of `--method features`, settled; for `--mode auto` with why, which is printed, too.

    Raises:
        BadInput: numbers out of range, or not exactly one of a target and a noise multiplier.
    """
    plan, why = advised_classifier(named_options(request), facts)
    if why is None:
        return plan, {}
    screen.notes.print(f"mode auto: {why}")
    return plan, {"why": why}


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


def public_examples(request: Request, plan: AbstractPlan, data: Dataset) -> int | None:
    """The number of examples that warnings may follow from; None: it is not public.

    It is the declared one, else that of the data where neighbours have equally many.
    """
    declared: int | None = request.examples
    if declared is not None or plan.neighbours is Adjacency.ADD_REMOVE:
        return declared
    return data.examples


# PATE


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


def require_no_codes(request: Request) -> None:
    """Refuse `--codes` where targets are no maps.

    Raises:
        BadInput: it was given.
    """
    if request.codes is not None:
        raise BadInput(
            "--codes is for maps of classes (segmentation), and the targets are others: leave it "
            "out (`privlearn budget` needs --maps beside it)"
        )


def votes_warnings(plan: PatePlan, examples: int | None, least: int = _LEAST_ROWS) -> Iterator[str]:
    """What is allowed, and hardly ever meant; from public numbers alone.

    Args:
        plan: with its noise.
        examples: how many there are (`public_examples`); None: that is not public.
        least: how many a teacher can learn from.
    """
    yield from drowned(plan)
    yield from few_rows_warnings(plan.teachers, examples, least)


def few_rows_warnings(teachers: int, examples: int | None, least: int) -> Iterator[str]:
    """A warning of more teachers than the public number of examples is enough for."""
    if examples is None:
        return
    shared = f"{teachers} teachers share {examples} examples"
    if teachers * 2 > examples:
        yield f"{shared}: most of them have one or none to learn from"
    elif teachers * least > examples:
        yield (
            f"{shared}, {examples / teachers:.3g} for each, which are few to learn from. With "
            "fewer teachers each has more, but the noise weighs more beside their answers"
        )


# Test metrics

#: What `--metric` may name, by task; of other data by what the targets are.
_OF_CLASSES = ("accuracy", "log-loss", "auc", "calibration-error", "balanced-accuracy")
_OF_VALUES = ("rmse", "mae", "r2")
_METRICS = {
    "multilabel": ("subset-accuracy", "f1", "auc", "log-loss"),
    "ordinal": (*_OF_CLASSES, "mae"),
    "counts": ("deviance", *_OF_VALUES),
    "multioutput": _OF_VALUES,
}


def require_metric(request: Request, data: Any) -> None:
    """Refuse, before training, a figure that is none of such targets.

    Raises:
        BadInput: naming those that there are.
    """
    head = head_of(request.task, data)
    task = head.task if head.named else None
    there = _METRICS.get(str(task), _OF_VALUES if data.classes is None else _OF_CLASSES)
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
