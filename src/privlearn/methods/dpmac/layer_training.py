"""A run of DP-MAC by options, with Adam at the paper's learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from privlearn.core import schedules
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.plan import Plan
from privlearn.core.streams import Streams
from privlearn.core.transform import PublicTransform
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.methods.dpmac.coordinates import Coordinates
from privlearn.methods.dpmac.dpmac import dpmac
from privlearn.models.network_spec import text_of
from privlearn.runs.callbacks import Callback
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.result import Result
from privlearn.training.choices import TrainRequest
from privlearn.training.rules import Settled
from privlearn.training.train import facts_of, network, optimizer_at, optimizer_kind

#: The learning rate for the paper's 1,800 steps, and of its steps on the coordinates; mu where
#: these are swept.
_RATE, _STEPS, _LARGEST_RATE, _Z_RATE, _MU = 0.01, 1800, 0.05, 0.003, 100.0


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
        data: the rows, with declared classes.
        options: by name, those that `plan` was settled by.
        ledger: what to charge; None: a new one.
        streams: the random streams, which the initial weights are drawn from, too.
        callbacks: called with public numbers after steps and epochs.
        checkpoint: a file to keep progress in.

    Raises:
        BadInput: no classes, an optimizer without a rule for its learning rate, or anything that
            `pv.dpmac` refuses.
    """
    classes = data.classes
    if classes is None:
        raise BadInput("dpmac learns classes, and these data have none: declare classes=K")
    public = tuple(transform for transform in plan.front if isinstance(transform, PublicTransform))
    settled = Settled(
        TrainRequest.of_options(options), facts_of(data, options.examples, public), plan
    )
    kind = optimizer_kind(options.optimizer or "Adam")
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
        lambda shape: network(options.model, shape, classes, streams),
        "binary_cross_entropy",
        data,
        optimizer=lambda parameters: optimizer_at(kind, parameters, rate, options.momentum),
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
    return replace(result, model_spec=text_of(options.model), classes=classes)
