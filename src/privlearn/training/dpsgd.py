"""DP-SGD in one call: a run from beginning to end, with callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from torch import nn

from privlearn.core.clipping.losses import Loss
from privlearn.core.plan import Plan
from privlearn.runs.callbacks import Callback, Callbacks
from privlearn.runs.given import Given, RunArguments, require_loss
from privlearn.runs.result import Result
from privlearn.training.run import Run


def dpsgd(
    plan: Plan,
    model: nn.Module | Callable[[tuple[int, ...]], nn.Module],
    loss: Loss,
    dataset: Given,
    *,
    callbacks: Callback | Sequence[Callback] = (),
    **arguments: Unpack[RunArguments],
) -> Result:
    """Train `model` with differential privacy: a `Run` from beginning to end, with its arguments
    and guarantee.

    `callbacks` are called with public numbers alone, and can stop it (`runs.callbacks`); early, it
    claims all the plan.
    """
    calls = Callbacks(callbacks)
    require_loss(loss)
    with Run(plan, model, loss, dataset, **arguments) as run:
        for batch in calls.around(run, run.session, run.steps_per_epoch, run.optimizer):
            run.step(batch)
        return calls.ended(run.result())
