"""This file runs DP-SGD, top to bottom: a plan, its steps, what may be published (Abadi et al.
2016; Yu et al. 2019, Alg. 1).

A step is three lines: clip, release, descend. Noise is drawn in `release` alone, which charges the
ledger first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Unpack, final

import torch
from torch import nn

from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.losses import Loss
from privlearn.core.mechanisms.release import release
from privlearn.core.plan import Plan
from privlearn.core.schedules import Constant, Schedule
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.descent.after_training import AfterTraining
from privlearn.descent.epoch_noise import epoch_noise
from privlearn.descent.task import Batch, DescribedRun, Epoch, Task
from privlearn.runs import given
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.given import ComputeArguments, Given, OptimizerFactory
from privlearn.runs.optimizers import Descent
from privlearn.runs.result import PrivateDiagnostics, Result
from privlearn.runs.session import TrainingSession


@final
class Run(DescribedRun):
    """A run of DP-SGD, driven by hand: `for epoch in run: for batch in epoch: run.step(batch)`,
    then `run.result()`.

    Guarantee: the result's model (its weights and the transforms in front of it) is
    `plan.guarantee(delta)`-DP for the plan's adjacency and `plan.unit`. The ledger is charged
    exactly `plan.event()`, and no more if the run is left early. Nothing else is covered. Rows in
    memory are looked at once, before anything is spent and not covered, to refuse and to warn; then
    nothing depends on what one example holds: if it can't be computed, it counts as absent.

    Args:
        plan, ledger, streams, checkpoint: what will be spent, and how: see
            `runs.session.TrainingSession`.
        model: a network, or a function from the shape of one (transformed) example to one. Trained
            in place.
        loss: of (outputs, targets) or (model, batch), one for each example (`clipping.losses`); or
            `step` is given it.
        data: rows: see `runs.given`.
        compute: how to compute: `config`, or the fields of `runs.compute.ComputeConfig` by their
            names; and `average`.
        optimizer: makes one of torch.optim from the parameters; by default SGD at a public rate.
        learning_rate_schedule: the optimizer's learning rates are multiplied by its value over its
            value at epoch 0.
        validation: for `schedules.Validation` without noise: rows declared public,
            `Dataset(..., public=True)`.

    Attributes:
        optimizer: what descends.
        session, task: for what drives the run: what is charged and drawn, and what is trained on
            what.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        NotPerExample: the model or the loss couples examples.
        BadInput: what is given does not fit together; before anything is spent. Or weights that are
            no longer finite at the end of an epoch, because steps were too long.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module | Callable[[tuple[int, ...]], nn.Module],
        loss: Loss | None,
        data: Given,
        *,
        optimizer: OptimizerFactory | None = None,
        learning_rate_schedule: Schedule = Constant(),  # noqa: B008
        validation: Dataset | None = None,
        ledger: Ledger | None = None,
        streams: Streams | None = None,
        checkpoint: Checkpoint | str | Path | None = None,
        **compute: Unpack[ComputeArguments],
    ) -> None:
        config = given.require_kinds(
            plan, model, loss, learning_rate_schedule, ledger, streams, compute
        )
        self.session = session = TrainingSession(
            plan, ledger, streams, checkpoint, world=given.world_of(config)
        )
        self.task = task = Task(
            session, model, loss, data, learning_rate_schedule, config, validation
        )
        self.optimizer = task.optimizer(optimizer)
        self._descent = Descent(self.optimizer, learning_rate_schedule, task.parameters, session)
        self._noise = epoch_noise(task, session)
        self._after = AfterTraining(task, self._descent, config.post_processing)
        session.parts |= {"optimizer": self._descent, **self._after.parts}
        self._facts = task.facts(session, self.optimizer, learning_rate_schedule)
        self._epochs = self._run()

    def __iter__(self) -> Generator[Epoch]:
        """The epochs that are still to run, each an iterable of batches; what was released before
        is charged again.
        """
        return self._epochs

    def _run(self) -> Generator[Epoch]:
        session, task = self.session, self.task
        with session.charging():
            task.fit(session)
            session.account = session.world.agreed(self._noise.begin(session.agreed))
            for number, noise_multiplier in session.epochs(self._noise):
                yield (epoch := Epoch(session, task, number, noise_multiplier))
                epoch.require_done()
                task.end_epoch(session, number, self._descent.first)
                with session.generators():
                    self._noise.end_epoch(task.x, task.y)
            if not session.left:
                self._after.fit(session)
                session.end(self._noise.epochs)

    def step(self, batch: Batch, loss: Loss | None = None) -> PrivateDiagnostics:
        """Clip, release, descend, by `loss` from now on; once for each batch, else `SampleReused`.
        Private figures.
        """
        session, task = self.session, self.task
        batch.require_unused(session)
        task.use(loss, session)
        with session.generators(), self._descent.step(task.sums):
            task.watch.begin(len(session.world.own(batch.sample.indices)), task.gradients.clip_norm)
            # private, and bounded
            clipped = task.gradients(batch.sample, batch.rows, out=task.sums)
            (noisy,) = release(  # charged, then noised: public from here on
                clipped,
                noise_multiplier=batch.noise_multiplier,
                ledger=session.account,
                stream=self._noise.stream,
            )
            torch._foreach_div_(list(task.gradients.released(noisy, task.divisor)), task.divisor)
            self._descent.at(batch.epoch + batch.step / task.steps)
            self.optimizer.step()
            self._after.step()
        session.record(batch.sample, noisy)
        return PrivateDiagnostics(task.watch.batch())

    def result(self) -> Result:
        """The trained model, and what can be published of it. A run that was left early ends here
        and says so.
        """
        session, task = self.session, self.task
        session.stop(self._epochs)
        self._after.end()
        return Result(
            model=task.model(),
            ledger=session.ledger,
            plan=task.plan,
            method="dpsgd",
            facts=self._facts
            | self._noise.facts(task.steps)
            | session.facts_of_leaving()
            | task.chosen()
            | self._after.facts()
            | session.world.facts(),
            architecture=task.architecture(),
            seeded=session.streams.seeded,
            private_diagnostics=PrivateDiagnostics(task.watch.figures),
            checkpoint=session.file,
            world=session.world,
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        """However the block ends, what was not charged is given back; an interrupted run keeps its
        checkpoint.
        """
        self.session.close(self._epochs, error[1] if error else None)
