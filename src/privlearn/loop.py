"""`make_private` makes a private run of a model, an optimizer and a loader, as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import Tensor, nn, optim

from privlearn._checks import checked
from privlearn.core.accounting.guarantee import hollow
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.plan import Plan
from privlearn.core.rows import Rows
from privlearn.core.schedules import Constant, Schedule
from privlearn.core.streams import Streams
from privlearn.data.dataset import require_groups
from privlearn.data.torch_rows import resampled
from privlearn.errors import BadInput, warn
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.given import ComputeArguments, world_of
from privlearn.runs.optimizer_parameters import require_optimizer_of
from privlearn.training.loop_losses import of_model
from privlearn.training.planning import plan_of
from privlearn.training.privacy_config import (
    PrivacyArguments,
    PrivacyConfig,
    require_only_plan,
)
from privlearn.training.run import Run

_TARGET = ("epochs", "epsilon", "delta", "max_grad_norm")


class LoopSettings(PrivacyArguments, ComputeArguments, total=False):
    """What `make_private` may be given beside a target: the fields of `pv.PrivacyConfig`, those of
    `pv.ComputeConfig`, and these.

    Keys:
        plan: a `pv.Plan`, in place of all that it says: the fields of `pv.PrivacyConfig`. `delta`
            then says where `spent` and `publish` state epsilon.
        groups: a person's id for each row: examples are then persons, of each of whom
            `rows_per_person` rows are used.
        loss: for every step; else each step is given it.
        made_up: for models and losses that refuse rows of random numbers: changes such a batch into
            one as the data are, in place of the attribute `made_up` of a loss. It never sees the
            data.
        ledger: what to charge; by default a new one with the target as its limit.
        streams: the random streams; by default seeded by the operating system.
        checkpoint: a file to keep progress in; it needs `loss`. If it is there, the run in it is
            continued.
        learning_rate_schedule: the optimizer's learning rates are multiplied by its value over its
            value at epoch 0; by default they are the script's own, which a scheduler of torch may
            change.
    """

    plan: Plan | None
    groups: Any
    loss: Callable[..., Tensor] | None
    made_up: Callable[[Any], Any] | None
    ledger: Ledger | None
    streams: Streams | None
    checkpoint: Checkpoint | str | Path | None
    learning_rate_schedule: Schedule | None


_COMPUTED = set(ComputeArguments.__annotations__)
_PRIVACY = set(PrivacyArguments.__annotations__)
_OTHERS = set(LoopSettings.__annotations__) - _COMPUTED - _PRIVACY


@checked
def make_private(
    model: nn.Module,
    optimizer: Any,
    loader: Any,
    *,
    epochs: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    max_grad_norm: float | None = None,
    **settings: Unpack[LoopSettings],
) -> Run:
    """Make a run for your own loop: batches are drawn from the loader's rows, each step is clipped,
    charged and noised.

    `for batch in private.batches(): private.step(batch, loss)`, then `private.publish(folder)`. A
    function as a loss is one of (model, batch), where `batch` is what the loader's collate function
    makes; losses of torch.nn are of (outputs, targets).

    Guarantee: that of `pv.Run`, for the model after the last step (and after each):
    `plan.guarantee(delta)`. What `step` returns, the batches and the rows are private.

    Args:
        model: trained in place. Frozen parameters stay as they are. One made by torch.compile, or
            in DistributedDataParallel, is taken for what it was made of: gradients of single
            examples are read off its operations.
        optimizer: used as it is, with its parameter groups, its state and the schedulers that hold
            it. Each parameter that is trained has to be in it.
        loader: a DataLoader over a map-style data set. Its data set, collate_fn, workers and batch
            size are used, and batches are drawn by `sampling`. Each row is made and collated by
            itself, with torch's, numpy's and Python's generators at a seed of its own in each step.
        epochs: how many; leaving the loop earlier claims as much. A `plan` says it, too.
        epsilon: the target, with delta.
        delta: below one over the number of examples.
        max_grad_norm: the clipping norm of each example's gradient.
        settings: see `LoopSettings`. What decides the guarantee: `privacy=pv.PrivacyConfig(...)`,
            or its fields by their names (`rho`, `adjacency`, `sampling`, `clip`, ...). How to
            compute: `config=pv.ComputeConfig(...)`, or its fields by their names (`microbatch`,
            `precision`, `device`, ...).

    Raises:
        BadInput, NotPerExample, UnsupportedEvent, BudgetExceeded: the model, the optimizer, the
            loader or the plan can't be private, or the ledger has no room. Nothing was spent. The
            first step raises the same for the loss.

    Warns:
        PrivacyWarning: delta is one over the number of examples or more, or epsilon promises next
            to nothing.
    """
    model = _unwrap(model)
    require_optimizer_of(optimizer, model)
    rows, batch_size = resampled(loader)
    computed = {name: value for name, value in settings.items() if name not in _PRIVACY | _OTHERS}
    config = ComputeConfig.of(computed, (*_TARGET, *sorted(_PRIVACY | _OTHERS)))
    target: dict[str, Any] = {
        "epochs": epochs,
        "epsilon": epsilon,
        "delta": delta,
        "max_grad_norm": max_grad_norm,
    }
    arguments = {name: value for name, value in target.items() if value is not None}
    arguments |= {
        name: value for name, value in settings.items() if name in _PRIVACY and value is not None
    }
    options: dict[str, Any] = {name: settings.get(name) for name in _OTHERS}
    if options["groups"] is not None:
        require_groups("loader", np.asarray(options["groups"]), len(rows))
        rows.groups = options["groups"]  # type: ignore[attr-defined]
    plan = options["plan"]
    if plan is not None:
        _require_planned(plan, arguments)
    else:
        correlated = _tries_correlated(optimizer, options["streams"], config)
        privacy = _privacy_of(arguments, batch_size)
        if privacy.epsilon is not None or "privacy" in arguments:
            delta = privacy.delta
        plan = plan_of(privacy, _examples(rows), expected_batch=batch_size, correlated=correlated)
    loss, made_up = options["loss"], options["made_up"]
    run = Run(
        plan,
        model,
        None if loss is None else of_model(loss, made_up),
        rows,
        optimizer=optimizer,
        learning_rate_schedule=options["learning_rate_schedule"] or Constant(),
        ledger=options["ledger"],
        streams=options["streams"],
        checkpoint=options["checkpoint"],
        delta=delta,
        config=config,
    )
    run.task.losses_take_model = True
    run.task.made_up = made_up
    if run.steps_done:
        print(f"resuming at step {run.steps_done} of {run.steps}", file=sys.stderr)
    if (plan.budget or run.ledger.budget) is None:
        # the session warns of a target
        for warning in hollow(None, delta, plan.examples or len(rows)):
            warn(warning)
    return run


def _examples(rows: Rows) -> int:
    """How many examples the rows are: persons, where it is known whose they are."""
    groups = getattr(rows, "groups", None)
    return len(rows) if groups is None else len(set(map(str, groups)))


def _unwrap(model: Any) -> nn.Module:
    """What torch.compile compiled or DistributedDataParallel holds; other wrappers are refused."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        # what is called: the wrapper averages nothing
        model = getattr(model.module, "_orig_mod", model.module)
    if not isinstance(model, nn.Module):
        raise BadInput(f"model is {repr(model)[:60]}: expected a torch.nn.Module")
    if isinstance(model, nn.DataParallel):
        raise BadInput(
            "model is wrapped in DataParallel, which averages gradients before they could be "
            "clipped: give the module in it, model.module"
        )
    return model


def _require_planned(plan: Plan, arguments: Mapping[str, Any]) -> None:
    """Refuse what a plan says already, and transforms in front of the model.

    Raises:
        BadInput: naming the argument.
    """
    require_only_plan(name for name in arguments if name not in ("delta", "epochs"))
    epochs = arguments.get("epochs", plan.epochs)
    if epochs != plan.epochs:
        raise BadInput(f"epochs is {epochs}, and the plan has {plan.epochs}: leave epochs out")
    if plan.front:
        raise BadInput(
            "the plan has transforms in front of the model, and a loop's rows are the loader's: "
            "use pv.dpsgd, or change the rows in the data set"
        )


def _privacy_of(arguments: Mapping[str, Any], batch_size: int) -> PrivacyConfig:
    """What decides the guarantee, by the arguments of `make_private`.

    Raises:
        BadInput: something is missing, given twice, or said by the loader.
    """
    privacy = PrivacyConfig.of(arguments)
    if privacy.epochs is None:
        raise BadInput("epochs is missing: give the number of passes over the loader, or a plan=")
    if privacy.batch_size not in (None, batch_size):
        raise BadInput(
            f"batch_size is {privacy.batch_size}, and the loader says how many examples a batch "
            f"has on average, {batch_size}: leave batch_size out, or make the loader with it"
        )
    if privacy.clip_norm is None and isinstance(privacy.clip, str):
        raise BadInput(
            "nothing says to which norm gradients are clipped: give max_grad_norm=C, or clip=, "
            "such as pv.Flat(1.0)"
        )
    privacy.require_target(arguments)
    return privacy


def _tries_correlated(optimizer: Any, streams: Streams | None, config: ComputeConfig) -> bool:
    """Whether `best` tries correlated noise: it is compared as SGD's weights hold it, off the grid,
    in one process.
    """
    discrete = streams is not None and streams.noise.discrete
    return type(optimizer) is optim.SGD and not discrete and world_of(config).size == 1
