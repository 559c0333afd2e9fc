"""`train`: DP-SGD with settings that need not be given, by rules that look at public numbers
(`training.rules`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from privlearn._checks import checked, one_of
from privlearn._short_specs import parse_spec
from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.guarantee import hollow
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.losses import Loss
from privlearn.core.streams import Streams
from privlearn.core.transform import PublicTransform, shape_after
from privlearn.data.dataset import Dataset
from privlearn.data.target_forms import require_one_each
from privlearn.errors import BadInput, first_line, warn
from privlearn.models import heads, networks
from privlearn.models.network_spec import name_of, text_of
from privlearn.models.networks import NetworkSpec
from privlearn.runs import compute
from privlearn.runs.callbacks import Callback
from privlearn.runs.checkpoint import Checkpoint, streams_for
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.given import require_no_features
from privlearn.runs.result import Result
from privlearn.training.choices import Facts, TrainRequest
from privlearn.training.dpsgd import dpsgd
from privlearn.training.privacy_config import ALIASES
from privlearn.training.rules import Settled, settle, usual_features
from privlearn.training.weighted import weighted
from privlearn.transforms.chain import read_features


@checked
def train(
    dataset: Dataset,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    model: NetworkSpec = "linear",
    examples: int | None = None,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    checkpoint: Checkpoint | str | Path | None = None,
    validation: Dataset | None = None,
    beside: Planned | None = None,
    **choices: Any,
) -> Result:
    """Train by DP-SGD at a target, the rest chosen by rule: `pv.train` for its default method.

    Guarantee: as that of `pv.dpsgd`, at most the target. The rules (docs/settings.md) look at
    public numbers alone, so they cost nothing, where a search would.

    Args:
        dataset, epsilon, delta, model, examples, ledger, streams: as of `pv.train`.
        callbacks, checkpoint, validation, beside: as of `pv.train`.
        choices: `privacy`, the fields of `training.choices.TrainRequest` and those of
            `pv.ComputeConfig`, by name.

    Returns:
        what `pv.publish` takes as it is: it names the network and its classes.

    Raises:
        BadInput: no classes, an unknown choice, moments of rows of which no bound is known, or
            anything that `pv.dpsgd` refuses.
    """
    if not isinstance(dataset, Dataset) or not (
        dataset.classes or dataset.target_bounds or dataset.target_ranges or dataset.labels
    ):
        raise BadInput(
            "train needs classes: give pv.load(name), or pv.Dataset(x, y, classes=K, low=..., "
            "high=...); for numbers target_bounds=(low, high) in place of classes, for several "
            "target_ranges={name: (low, high)}, and for labels of which several hold "
            "labels=(name, ...)"
        )
    _require_known(choices)
    dataset = dataset.with_plain_targets()
    require_task(choices.get("task"), dataset)
    shared = {"epsilon": epsilon, "delta": delta, "examples": examples}
    settled, dataset = settle_for(
        dataset,
        discrete=streams is not None and streams.noise.discrete,
        model=model,
        **{name: value for name, value in shared.items() if value is not None},
        **choices,
    )
    if settled.plan.budget is None and (ledger is None or ledger.budget is None):
        # the session warns of a target
        request = settled.request
        for warning in hollow(None, request.delta, request.examples or dataset.examples):
            warn(warning)
    if beside is not None:
        settled = with_room_for(settled, beside)
        ledger = Ledger(settled.plan.budget) if ledger is None else ledger
        ledger.approve(settled.plan, beside)
    return fit(
        settled,
        dataset,
        streams or streams_for(checkpoint),
        ledger=ledger,
        callbacks=callbacks,
        checkpoint=checkpoint,
        validation=validation,
    )


def with_room_for(settled: Settled, beside: Planned) -> Settled:
    """What was settled, with the noise at which it and what is released beside it meet the target
    together.

    Raises:
        BadInput: the noise was given, or as `AbstractPlan.with_room_for`.
    """
    if settled.request.noise_multiplier is not None:
        raise BadInput(
            "the noise was given, so nothing can make room beside it: leave out noise_multiplier"
        )
    return replace(settled, plan=settled.plan.with_room_for(beside))


def settle_for(
    dataset: Dataset, *, discrete: bool = False, **choices: Any
) -> tuple[Settled, Dataset]:
    """Settle a run on a data set, by the arguments of `train`; nothing is released.

    Args:
        dataset: the rows.
        discrete: whether noise is drawn on a grid.
        choices: as of `train`.

    Returns:
        Everything decided, and the data set to give `fit`: where features were computed elsewhere,
        these are its rows.

    Raises:
        BadInput: as `train` does.
    """
    _require_known(choices)
    computed = {name: choices.pop(name) for name in ("config", *compute.names()) if name in choices}
    config = ComputeConfig.of(computed)
    request = TrainRequest.of({**choices, "config": config, "discrete": discrete})
    features = request.features
    if features is None:
        features = usual_features(request, facts_of(dataset, request.examples)) or "raw"
    require_no_features(request.config.augmentation, None if features == "raw" else features)
    front, dataset = read_features(features, dataset)
    return settle(request, facts_of(dataset, request.examples, front)), dataset


def require_task(task: str | None, data: Dataset) -> None:
    """Refuse a task that the targets do not suit.

    Raises:
        BadInput: an unknown one, one whose targets are declared otherwise, or targets that are none
            of it.
    """
    if task is not None:
        one_of("task", task, heads.HEADS)
        heads.require_declared(task, vars(data), data.name)
    head = heads.head_of(task, data)(vars(data))
    for part, targets in {"y": data.y, "y_test": data.y_test}.items():
        if targets is not None and (expected := head.fits(np.asarray(targets))):
            raise BadInput(
                f"{part} of {data.name} has targets that do not suit the task {head.task}: "
                f"expected {expected}"
            )


#: Of a request, what is no argument of `train` by this name.
_NOT_GIVEN = ("discrete",)


def _require_known(choices: Iterable[str]) -> None:
    known = [
        *(field.name for field in fields(TrainRequest) if field.name not in _NOT_GIVEN),
        "privacy",
        *ALIASES,
        *compute.names(),
    ]
    unknown = next((name for name in choices if name not in known), None)
    if unknown is not None:
        raise BadInput(
            f"train has no argument {unknown[:40]!r}: expected some of {', '.join(known)}."
            f"{nearest_to(unknown, known)}"
        )


def nearest_to(unknown: str, known: Sequence[str]) -> str:
    """The question whether the name most like an unknown one was meant; empty if none is like it.

    `eps` is the beginning of `epsilon`, though `epochs` has more of its letters.
    """
    near = [name for name in known if name.startswith(unknown)]
    near = near or get_close_matches(unknown, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def facts_of(data: Dataset, declared: int | None, front: tuple[PublicTransform, ...] = ()) -> Facts:
    """What is public of a data set and its features, with the declared number of examples, if there
    is one.
    """
    shape = tuple(np.shape(data.x)[1:])
    numbers = math.prod(shape_after(front, shape))
    return Facts(
        declared or data.examples,
        shape,
        data.classes,
        data.low,
        front,
        numbers,
        data.high,
        data.feature_names,
        data.target_bounds,
        () if data.schema is None else data.schema.classes,
        data.labels,
        data.groups is not None,
        data.is_sparse,
        data.target_ranges,
    )


def fit(
    settled: Settled,
    data: Dataset | tuple[Dataset, Any],
    streams: Streams,
    *,
    loss: Loss | None = None,
    ledger: Ledger | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    checkpoint: Checkpoint | str | Path | None = None,
    validation: Dataset | None = None,
) -> Result:
    """Train what was settled, on the data that it was settled for.

    Args:
        settled: everything that is to be known beforehand.
        data: what `settled` was settled for. Targets with bounds are clipped to them and scaled to
            [-1, 1], and the model gives numbers in their units. Or a pair, with weights of the rows
            in [0, 1], for a plan without a temperature.
        streams: the random streams, which the initial weights are drawn from, too.
        loss: one value for each example; None: that of the task (`models.heads`).
        ledger: what to charge.
        callbacks: called with public numbers after steps and epochs; they can stop the run
            (`pv.runs.Callback`).
        checkpoint: a file to keep progress in.
        validation: public rows to validate on.

    Raises:
        BadInput: as `pv.dpsgd` does.
    """
    data, weights = data if isinstance(data, tuple) else (data, None)
    request, head, bounds = settled.request, settled.head(vars(data)), data.target_bounds
    build = partial(network_for, settled, data, streams)
    data, row_loss = (
        replace(data, y=head.prepared(data.y), target_bounds=None, target_ranges=()),
        loss or head.loss(request),
    )
    if weights is not None:
        data, row_loss = weighted(data, weights, row_loss)
    result = dpsgd(
        settled.plan,
        build,
        row_loss,
        data,
        optimizer=optimizer_of(settled),
        learning_rate_schedule=settled.learning_rate_schedule,
        ledger=ledger,
        streams=streams,
        config=request.config,
        callbacks=callbacks,
        checkpoint=checkpoint,
        validation=validation,
    )
    return state_task(result, head, bounds, request.model)


def state_task(
    result: Result, head: heads.Head, bounds: tuple[float, float] | None, model: NetworkSpec
) -> Result:
    """The result of a network that was trained for a task: its model gives what the task publishes,
    a number in the target's units, for example, and its folder says of which task it is.

    Args:
        result: of the training.
        head: the task.
        bounds: that are declared of the targets, if there are any.
        model: what the network was made of.
    """
    *front, trained = result.model.children()
    task = head.stated() | ({} if bounds is None else {"target_bounds": list(bounds)})
    return replace(
        result,
        model=nn.Sequential(*front, head.published(trained)).eval(),
        facts=result.facts | task,
        architecture=result.architecture | task,
        model_spec=text_of(model),
        classes=head.classes,
    )


def network_for(
    settled: Settled, data: Dataset, streams: Streams, shape: tuple[int, ...]
) -> nn.Module:
    """The network that is trained, for rows of this shape.

    Raises:
        BadInput: as `network`.
    """
    head = settled.head(vars(data))
    size = tuple(np.shape(data.y)[1:]) if data.classes else ()
    built = network(settled.request.model, shape, head.outputs, streams, size)
    if settled.initial is not None:
        built.load_state_dict(settled.initial)
    return head.complete(built)


def network(
    spec: NetworkSpec,
    shape: tuple[int, ...],
    classes: int,
    streams: Streams,
    size: tuple[int, ...] = (),
) -> nn.Module:
    """Build the network and see that it has one output for each class, and for each voxel of maps
    of that size.

    Raises:
        BadInput: it has others, or can't run on such rows.
    """
    built = networks.build(spec, shape, classes, streams.initialisation)
    try:
        # dropout would draw from the caller's generator
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            outputs = tuple(built(torch.zeros(2, *shape, device="cpu")).shape)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(
            f"model {name_of(spec)} cannot run on rows of shape {shape}: {first_line(error)}"
        ) from error
    if outputs == (2, classes) and len(size) == 1:
        require_one_each((2, *size), "the targets")
    if outputs != (2, classes, *size):
        raise BadInput(
            (
                f"model {name_of(spec)} turns 2 rows into shape {outputs}: expected "
                f"{(2, classes, *size)}, a score for each class"
            )
            + (" and voxel, as model='unet' has" if size else "")
        )
    return built


def optimizer_kind(spec: str) -> type[torch.optim.Optimizer]:
    """The class of torch.optim, or of `privlearn.optim`, of that name, whatever numbers follow it.

    Raises:
        BadInput: there is none, or it does not step on dense gradients.
    """
    from privlearn.optim import noise_aware  # which imports every optimizer of ours

    name, _ = parse_spec("optimizer", spec)
    kinds = {n.lower(): k for n, k in vars(torch.optim).items() if isinstance(k, type)}
    kind = (noise_aware.kinds() | kinds).get(name.lower())
    unfit = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
    if kind is None or not issubclass(kind, torch.optim.Optimizer) or kind in unfit:
        raise BadInput(
            f"optimizer {name[:40]!r} cannot be used: expected a class of torch.optim that steps "
            f"on dense gradients, for example SGD or Adam, or {' or '.join(noise_aware.kinds())}"
        )
    return kind


def optimizer_at(
    spec: str, parameters: Iterable[nn.Parameter], rate: float, momentum: float | None
) -> torch.optim.Optimizer:
    """An optimizer by its name, with the numbers that follow it: `disk:kappa=0.3`.

    Raises:
        BadInput: there is none of that name, or it does not take these settings.
    """
    kind = optimizer_kind(spec)
    _, numbers = parse_spec("optimizer", spec)
    if {"lr", "momentum"} & numbers.keys():
        raise BadInput(
            f"optimizer {spec[:60]!r} sets a rate: expected learning_rate=L or momentum=M as an "
            "argument of its own"
        )
    settings: dict[str, Any] = {"lr": rate, **numbers}
    if momentum is not None:
        settings["momentum"] = momentum
    try:
        optimizer: torch.optim.Optimizer = kind(parameters, **settings)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"optimizer {kind.__name__} cannot be made with {settings}: {first_line(error)}. "
            "Expected settings that the class takes"
        ) from error
    return optimizer


def optimizer_of(settled: Settled) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Makes the optimizer from parameters, at the learning rate that was chosen or follows by the
    rule.
    """
    kind = optimizer_kind(settled.optimizer)

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        trained = list(parameters)
        rate = settled.learning_rate(kind.__name__, length_of(trained))
        return optimizer_at(settled.optimizer, trained, rate, settled.request.momentum)

    return make


def length_of(parameters: Iterable[nn.Parameter]) -> float:
    """The L2 norm of all weights."""
    return math.sqrt(sum(float(weights.detach().square().sum()) for weights in parameters))
