"""A run without noise, to look for what is wrong with a script: gradients are clipped, and nothing
is private.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NoReturn, final

import torch
from torch import Tensor, nn

from privlearn._display import Summary
from privlearn.core.accounting.guarantee import Guarantee
from privlearn.core.clipping.bounded import ROOM
from privlearn.core.clipping.clips import ScheduledClip
from privlearn.core.clipping.losses import Loss
from privlearn.core.rows import nested
from privlearn.core.schedules import Constant
from privlearn.errors import BadInput, UnsupportedEvent
from privlearn.runs.optimizers import Descent
from privlearn.runs.result import PrivateDiagnostics
from privlearn.runs.session import TrainingSession
from privlearn.training.base_run import BaseRun
from privlearn.training.run import Run
from privlearn.training.task import Batch, Epoch, Task, require_batch

#: What is said of whatever would claim something.
_NOTHING = (
    "the run adds no noise (noise_multiplier=0), so nothing can be claimed or published for its "
    "model. Train with a noise multiplier above 0, or a target epsilon; torch.save keeps the "
    "weights, which are as private as the data"
)


@final
class ClipOnlyRun(BaseRun):
    """The run of a plan without its noise, for debugging: each example's gradient is clipped, and
    the mean is what the optimizer gets.

    Guarantee: none. Its ledger is marked as not private, so that nothing that is charged to it can
    be published, and later runs of the same weights claim nothing. After a step each parameter has
    `grad`, the mean of the clipped gradients, and `summed_grad`, their sum; and `grad_sample`, the
    gradients of the examples before clipping, shape (batch, ...), where no microbatch is asked for.

    Args:
        run: whose plan, model, rows, optimizer and configuration it has. No step was taken.

    Attributes:
        skips: whether the optimizer is to be left out of the next steps, one after the other.
    """

    def __init__(self, run: Run) -> None:
        streams = run.session.streams
        session = TrainingSession(run.plan, None, streams, None, charged=False)
        task = Task(session, run.model, None, run.task.rows, Constant(), run.config)
        task.losses_take_model = True
        BaseRun.__init__(self, session, task, self._run(), None)
        self.optimizer = task.optimizer(run.optimizer)
        self._descent = Descent(self.optimizer, Constant(), task.parameters, session)
        self.skips: list[bool] = []

    def _run(self) -> Generator[Epoch]:
        session, task = self.session, self.task
        with session.charging():  # marks the ledger
            task.fit(session)
            for number in range(self.plan.epochs):
                yield (epoch := Epoch(session, task, number, 0.0))
                epoch.require_done()
                task.end_epoch(session, number, self._descent.first)
            session.end(self.plan.epochs)

    def step(self, batch: Batch, loss: Loss | None = None) -> PrivateDiagnostics:
        """Clip each example's gradient, and let the optimizer step.

        Args:
            batch: of this run, for one step.
            loss: from now on; None: the one before.

        Returns:
            Private figures of the batch, as of `Run.step`.

        Raises:
            NotPerExample, BadInput: the loss couples examples, or can't be computed.
        """
        session, task = self.session, self.task
        require_batch(batch)
        batch.require_unused(session)
        if batch.number != session.steps_done:
            raise BadInput("a step was taken on this batch already: take the next one")
        task.use(loss, session)
        self._clip_exactly(batch.epoch)
        each = None if self.config.microbatch or loss is None else self._gradients(batch, loss)
        with session.generators(), self._descent.step(task.sums):
            task.watch.begin(task.gradients.clip_norm)
            task.watch.add_drawn(len(batch.sample))
            clipped = task.gradients(batch.sample, batch.rows, out=task.sums)
            sums = list(task.gradients.released(clipped.values, task.divisor))
            summed = [total.clone() for total in sums]
            torch._foreach_div_(sums, task.divisor)
            means = [total.clone() for total in sums]
            self._descent.hand_over(0.0)
            if not (self.skips and self.skips.pop(0)):
                self.optimizer.step()
        for place, parameter in enumerate(task.parameters):
            held: Any = parameter
            parameter.grad, held.summed_grad = means[place], summed[place]
            held.grad_sample = None if each is None else each[place]
        session.record(batch.sample, sums)
        return PrivateDiagnostics(task.watch.batch())

    def _clip_exactly(self, epoch: int) -> None:
        """Leave no room for rounding in the clip, which only a sensitivity needs."""
        gradients, clip = self.task.gradients, self.plan.clip
        if isinstance(clip, ScheduledClip):
            room = max(ROOM[each.dtype.itemsize] for each in self.task.parameters)
            gradients.clip_norm = (clip.at(epoch) or clip.clip_norm) * (1 + room)

    def _gradients(self, batch: Batch, loss: Loss) -> list[Tensor]:
        """The gradient of each example for each parameter, before clipping, shape (batch, ...)."""
        function = _SumOfLosses(self.model, loss, batch)
        names = [name for name, each in function.named_parameters() if each.requires_grad]
        values = dict(function.named_parameters())
        rows = [
            self._gradient(function, [values[name] for name in names], number)
            for number in batch.sample.indices.tolist()
        ]
        return [
            torch.stack(list(each)) if each else values[name].new_zeros(0, *values[name].shape)
            for name, each in zip(
                names, zip(*rows, strict=True) if rows else ([],) * len(names), strict=True
            )
        ]

    def _gradient(
        self, function: _SumOfLosses, parameters: Sequence[Tensor], number: int
    ) -> list[Tensor]:
        with torch.enable_grad():
            gradients = torch.autograd.grad(
                function(number), list(parameters), allow_unused=True, materialize_grads=True
            )
        return list(gradients)

    def spent(self, delta: float | None = None) -> Guarantee:
        """Refused: there is no guarantee.

        Raises:
            UnsupportedEvent: always.
        """
        raise UnsupportedEvent(_NOTHING)

    def publish(self, out: str | Path, **options: Any) -> NoReturn:
        """Refused: there is no guarantee.

        Raises:
            BadInput: always.
        """
        raise BadInput(_NOTHING)

    def _outcome(self) -> NoReturn:
        raise BadInput(_NOTHING)

    def _summary(self) -> Summary:
        return Summary(
            f"Run without noise, {self.session.state}: {self.steps_done} of {self.steps} steps",
            [("clipping", self.plan.clip.kind), ("protects", "nothing: for finding faults")],
        )


class _SumOfLosses(nn.Module):
    """The loss of one row, of a model as it is."""

    def __init__(self, model: nn.Module, loss: Loss, batch: Batch) -> None:
        super().__init__()
        self.model, self._loss, self._batch = model, loss, batch

    def forward(self, number: int) -> Tensor:
        """A number."""
        rows = self._batch.rows
        where = next(self.model.parameters()).device
        leaves = [leaf.to(where) for leaf in rows.fetch(torch.tensor([number], device="cpu"))]
        loss: Any = self._loss
        total: Tensor = loss(self.model, nested(leaves, rows.structure)).sum()
        return total
