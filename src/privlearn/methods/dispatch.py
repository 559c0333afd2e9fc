"""`train`: a model at a target by any method, by its name, as `privlearn train --method` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from privlearn._checks import checked
from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.guarantee import Adjacency, hollow
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.streams import Streams
from privlearn.core.transform import PublicTransform
from privlearn.data.dataset import Dataset, require_others
from privlearn.data.target_forms import require_one_each
from privlearn.errors import BadInput, warn
from privlearn.methods import METHODS, Method
from privlearn.methods.installed import find_method
from privlearn.models.heads import head_of
from privlearn.models.networks import NetworkSpec
from privlearn.runs import compute
from privlearn.runs.callbacks import Callback
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.result import Result
from privlearn.training import train as descent
from privlearn.training.choices import TrainRequest
from privlearn.training.privacy_config import by_field
from privlearn.training.train import facts_of, nearest_to, require_task
from privlearn.transforms.chain import read_features
from privlearn.transforms.pca import components_of

#: The method of which `training.train` knows the rules.
_DPSGD = "dpsgd"
#: How many characters of a list of arguments a message holds.
_MOST_LISTED = 160
#: What every method takes.
_COMMON = frozenset(
    {"epsilon", "delta", "rho", "noise_multiplier", "adjacency", "group_size", "examples", "task"}
)
#: What targets are called in messages.
_TARGETS = {
    "classes": "classes",
    "values": "numbers",
    "multioutput": "several numbers",
    "labels": "labels of which several hold",
    "maps": "maps of classes",
}


@checked
def train(
    dataset: Dataset,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    model: NetworkSpec = "linear",
    method: str = _DPSGD,
    examples: int | None = None,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    checkpoint: Checkpoint | str | Path | None = None,
    validation: Dataset | None = None,
    beside: Planned | None = None,
    **choices: Any,
) -> Result:
    """Train a classifier or a regressor at a target, the rest chosen by rule: as `privlearn train`,
    the same weights.

    Guarantee: as that of the method's function (`pv.dpsgd`, `pv.dpmac`, `pv.pate`,
    `pv.statistics.fisher`, `pv.boosting.boost`), at most the target, for the neighbours that
    `adjacency` names. By default these are add/remove ones where `examples` is declared, else
    zero-out ones. The rules (docs/settings.md) look at public numbers alone, so they cost nothing,
    where a search would.

    Args:
        dataset: with declared classes, or bounds of the targets, and bounds of the rows if there
            are any.
        epsilon: the target, unless `rho` or `noise_multiplier` is among the choices.
        delta: its other half, by default 1e-5; below one over the number of examples.
        model: `linear`, `mlp:100`, `cnn`, or `package.module:function`; or a network, which is
            trained in place; or a function from the shape of one example to one.
        method: `dpsgd`, `dpmac`, `pate`, `features` (class statistics) or `boosting`, or the name
            of one that an installed package brings.
        examples: the declared public number of examples; None: that of the data, which is then
            published.
        ledger: what to charge; by default a new one with the target as its budget.
        streams: the random streams.
        callbacks: called with public numbers after steps and epochs; they can stop the run
            (`pv.runs.Callback`).
        checkpoint: a file to keep progress in, as for `pv.dpsgd`.
        validation: public rows for a schedule that follows validations, as for `pv.dpsgd`.
        beside: what is going to be released beside the training, such as a settled
            `pv.statistics.MetricsPlan`: both together meet the target. It is approved with the run,
            and then charged to `result.ledger`.
        choices: anything else that `privlearn train` lets one choose for the method, by its name.
            What decides the guarantee: `privacy=pv.PrivacyConfig(...)`, or its fields by their
            names (`epochs`, `batch_size`, `sampling`, `clip`, `max_grad_norm`, ...). How it
            computes: `config=pv.ComputeConfig(...)`, or its fields by their names (`microbatch`,
            `device`, `average`, ...). And for DP-SGD the other fields of
            `training.choices.TrainRequest`: `features`, `normalise`, `pca`, `select`, `optimizer`,
            `learning_rate`, `task`, `class_weights`, `label_smoothing` and more. Features are
            chosen by rule in front of a linear model. `pv.transforms.feature_cache` keeps them.
            PATE needs `public`, a data set of inputs that are declared public.

    Returns:
        what `pv.publish` takes as it is: it names the network and its classes.

    Raises:
        BadInput: no classes, an unknown method, a choice that is unknown or that the method does
            not take, moments of rows of which no bound is known, or anything that the method's
            function refuses.

    Warns:
        PrivacyWarning: delta is one over the number of examples or more, or epsilon promises next
            to nothing.
    """
    shared: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "examples": examples}
    shared = {name: value for name, value in shared.items() if value is not None}
    choices = by_field({**shared, **choices})
    watched = {"callbacks": callbacks, "checkpoint": checkpoint, "validation": validation}
    if method == _DPSGD:
        arguments = {"model": model, **watched, **choices}
        return descent.train(dataset, ledger=ledger, streams=streams, beside=beside, **arguments)
    row = find_method(method)
    watched = {name: value for name, value in watched.items() if value not in ((), None)}
    if model != "linear":
        choices["model"] = model
    _require_taken(row, [*watched, *choices])
    streams = Streams.new() if streams is None else streams
    discrete = streams.noise.discrete
    dataset = dataset.with_plain_targets()
    options = options_for(row, {**choices, "discrete": discrete, "model": model})
    _require_targets(row, dataset, options.task)
    if row.check is not None:
        row.check(options)
    _require_public(options, dataset)
    data, front = _apply_features(options, dataset)
    assert row.settle is not None
    assert row.train is not None
    plan = row.settle(options, facts_of(data, options.examples, front))
    if plan.budget is None and (ledger is None or ledger.budget is None):
        # the session warns of a target
        public = None if plan.neighbours is Adjacency.ADD_REMOVE else data.examples
        for warning in hollow(None, options.delta, options.examples or public):
            warn(warning)
    if beside is not None:
        if options.noise_multiplier is not None:
            raise BadInput(
                "the noise was given, so nothing can make room beside it: leave out "
                "noise_multiplier"
            )
        plan = plan.with_room_for(beside)
        ledger = Ledger(plan.budget) if ledger is None else ledger
        ledger.approve(plan, beside)
    result: Result = row.train(plan, data, options, ledger=ledger, streams=streams, **watched)
    return result


def options_for(row: Method, chosen: dict[str, Any]) -> SimpleNamespace:
    """The options of a run, by name: those that were given, and what is usual for the others.

    Args:
        row: the method.
        chosen: those that the caller gave, by name.

    Raises:
        BadInput: a setting of how the run computes is out of range, or the method does not have it.
    """
    usual = {field.name: field.default for field in fields(TrainRequest)}
    usual = {name: value for name, value in usual.items() if value is not MISSING}
    others = row.takes | {name for name, *_ in row.fields}
    computed = {name: chosen[name] for name in ("config", *compute.names()) if name in chosen}
    config = ComputeConfig.of(computed).of_method(row.name)
    return SimpleNamespace(**{**dict.fromkeys(others), **usual, **chosen, "config": config})


def _require_taken(row: Method, names: Sequence[str]) -> None:
    """Refuse choices that the method does not take.

    Raises:
        BadInput: naming the first of them.
    """
    taken = sorted({*_COMMON, *row.takes, *(name for name, *_ in row.fields)})
    for name in names:
        if name in taken or name == "config" or name in compute.names():
            continue  # `ComputeConfig.of_method` knows which settings a method has
        others = [other.name for other in METHODS.values() if name in other.takes]
        if others:
            why = row.unsuited and f": {row.unsuited}"
            raise BadInput(
                f"{name} does not go with method={row.name!r}{why}. Leave it out, or train by "
                f"{others[0]}"
            )
        listed = ", ".join(taken)
        if len(listed) > _MOST_LISTED:
            listed = f"{listed[:_MOST_LISTED].rpartition(', ')[0]} and others"
        raise BadInput(
            f"method={row.name!r} has no argument {name[:40]!r}: expected some of {listed}."
            f"{nearest_to(name, taken)}"
        )


def _require_targets(row: Method, data: Dataset, task: str | None) -> None:
    """Refuse targets that the method does not learn.

    Raises:
        BadInput: naming them, or as `training.train.require_task`.
    """
    require_task(task, data)
    head = head_of(task, data)
    if head.named and head.task not in row.targets:
        raise BadInput(
            f"task is {head.task!r}, and method={row.name!r} does not learn it: train by dpsgd, or "
            "leave it out"
        )
    kind = "values" if data.target_bounds is not None else "labels" if data.labels else "classes"
    kind = head.task if data.target_ranges else kind
    if kind == "classes" and data.y is not None and len(data.y.shape) > 1:
        kind = "maps"
    if kind not in row.targets:
        if kind == "maps":
            require_one_each(data.y.shape, f"the data in y of {data.name}")
        wanted = " or ".join(_TARGETS[name] for name in _TARGETS if name in row.targets)
        raise BadInput(
            f"method={row.name!r} learns {wanted}, and the targets are {_TARGETS[kind]}: choose "
            "another method"
        )


def _require_public(options: SimpleNamespace, data: Dataset) -> None:
    """Refuse public rows that were not declared public, or are private ones.

    Raises:
        BadInput: some are.
    """
    public = getattr(options, "public", None)
    if public is not None:
        if not isinstance(public, Dataset) or not public.public:
            raise BadInput(
                "the rows of public get no protection, and were not declared public: give "
                "public=pv.Dataset(x, public=True), or of a table "
                "public=pv.load(path, schema=..., public=True)"
            )
        for part in (public.x, public.x_test):
            if part is not None:
                require_others(part, data.x, "the rows of public")


def _apply_features(
    options: SimpleNamespace, data: Dataset
) -> tuple[Dataset, tuple[PublicTransform, ...]]:
    """The data, and the public features that are asked for."""
    if options.features is None or components_of(options.features) is not None:
        return data, ()
    front, data = read_features(options.features, data)
    return data, front
