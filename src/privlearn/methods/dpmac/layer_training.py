"""A run of DP-MAC by options, with Adam at the paper's learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privlearn.core import schedules
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.plan import Plan
from privlearn.core.streams import Streams
from privlearn.core.transform import PublicTransform
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.methods.dpmac.coordinates import Coordinates
from privlearn.methods.dpmac.dpmac import dpmac
from privlearn.methods.dpmac.expansion import BINARY, SQUARED
from privlearn.methods.dpmac.layers import OPTIMIZER
from privlearn.models.heads import ClassHead, Head, NumbersHead, ValueHead
from privlearn.models.networks import NetworkSpec
from privlearn.runs.callbacks import Callback
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.result import Result
from privlearn.training.choices import TrainRequest
from privlearn.training.rules import Settled
from privlearn.training.train import (
    facts_of,
    network,
    optimizer_at,
    optimizer_kind,
    state_task,
)

#: The learning rate for the paper's 1,800 steps, and of its steps on the coordinates; mu where
#: these are swept.
_RATE, _STEPS, _LARGEST_RATE, _Z_RATE, _MU = 0.01, 1800, 0.05, 0.003, 100.0
#: The loss of the output layer, by task.
_LOSSES: dict[type[Head], str] = {
    ClassHead: BINARY.name,
    ValueHead: SQUARED.name,
    NumbersHead: SQUARED.name,
}


def train_layers(
    plan: Plan,
    data: Dataset,
    options: Any,
    *,
    ledger: Ledger | None,
    streams: Streams,
    callbacks: Callback | Sequence[Callback] = (),
    checkpoint: Checkpoint | str | Path | None = None,
) -> Result:
    """Train by DP-MAC, with Adam at the paper's learning rate for as many steps as it takes, and a
    larger one for fewer steps.

    Args:
        plan: with its noise.
        data: the rows, with declared classes, or bounds of targets that are numbers: these are
            clipped to the bounds and scaled to [-1, 1], each by itself, and the model gives numbers
            in their units.
        options: by name, those that `plan` was settled by.
        ledger: what to charge; None: a new one.
        streams: the random streams, which the initial weights are drawn from, too.
        callbacks: called with public numbers after steps and epochs.
        checkpoint: a file to keep progress in.

    Raises:
        BadInput: no classes and no bounds, an optimizer without a rule for its learning rate, or
            anything that `pv.dpmac` refuses.
    """
    public = tuple(transform for transform in plan.front if isinstance(transform, PublicTransform))
    settled = Settled(
        TrainRequest.of_options(options), facts_of(data, options.examples, public), plan
    )
    if settled.head not in _LOSSES or not (
        data.classes or data.target_bounds or data.target_ranges
    ):
        raise BadInput(
            "dpmac learns classes, or numbers between bounds, and the targets are neither: declare "
            "classes=K, target_bounds=(low, high) or target_ranges={name: (low, high)}"
        )
    head = settled.head(vars(data))
    name = options.optimizer or OPTIMIZER
    kind = optimizer_kind(name)
    if kind is torch.optim.SGD and options.learning_rate is None:
        raise BadInput(
            "dpmac has no rule for SGD's learning rate: give learning_rate=L, or leave out "
            "optimizer="
        )
    steps = plan.epochs * plan.sampling.steps(settled.facts.examples)
    usual = min(_LARGEST_RATE, _RATE * max(1.0, math.sqrt(_STEPS / steps)))
    rate = usual if options.learning_rate is None else settled.learning_rate(kind.__name__, 1.0)
    # to a fifth: the paper's 0.95 an epoch, over 30
    falling = schedules.Exponential(k=math.log(5) / plan.epochs)
    coordinates, mu = Coordinates(), _MU
    if options.z_steps is not None:
        coordinates, mu = Coordinates(options.z_steps, options.z_rate or _Z_RATE, "adam"), 1.0
    result = dpmac(
        plan,
        partial(_network_for, options.model, head, streams),
        _LOSSES[settled.head],
        replace(data, y=head.prepared(data.y), target_bounds=None, target_ranges=()),
        optimizer=lambda parameters: optimizer_at(name, parameters, rate, options.momentum),
        learning_rate_schedule=falling
        if options.learning_rate_schedule is None
        else settled.learning_rate_schedule,
        coordinates=coordinates,
        mu=mu,
        streams=streams,
        config=options.config,
        callbacks=callbacks,
        ledger=ledger,
        checkpoint=checkpoint,
    )
    return state_task(result, head, data.target_bounds, options.model)


def _network_for(
    model: NetworkSpec, head: Head, streams: Streams, shape: tuple[int, ...]
) -> nn.Module:
    """The network for rows of this shape, as the task takes it."""
    return head.complete(network(model, shape, head.outputs, streams))
