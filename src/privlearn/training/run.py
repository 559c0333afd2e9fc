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

from privlearn._checks import with_plain_numbers
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.losses import Loss
from privlearn.core.mechanisms.release import release
from privlearn.core.plan import Plan
from privlearn.core.schedules import Constant, Schedule
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.runs import given
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.given import ComputeArguments, Given, OptimizerFactory
from privlearn.runs.optimizers import Descent, remember_released
from privlearn.runs.result import SCRIPTS_RATES, PrivateDiagnostics, Result
from privlearn.runs.session import TrainingSession
from privlearn.training.after_training import AfterTraining
from privlearn.training.base_run import BaseRun
from privlearn.training.epoch_noise import epoch_noise
from privlearn.training.task import Batch, Epoch, Task, require_batch


@with_plain_numbers
@final
class Run(BaseRun):
    """A run of DP-SGD, step by step: `for batch in run.batches(): run.step(batch)`, then
    `run.result()` or `run.publish(folder)`.

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
        optimizer: made from the model's parameters; or a function that makes it. By default SGD.
        learning_rate_schedule: learning rates are multiplied by its value over that at epoch 0. By
            default an optimizer that was given keeps its own, which a scheduler may change.
        validation: for `schedules.Validation` without noise: rows declared public,
            `Dataset(..., public=True)`.
        delta: where `spent` and `publish` state epsilon; by default at the plan's.

    Attributes:
        plan: what is spent, and how.
        model: the network that is trained.
        optimizer: what descends.
        examples: the public number of examples, declared or counted.
        steps, steps_per_epoch: how many there are; at most, where the noise follows validations.
        session, task: its inner parts: what is charged and drawn, and what is trained on what.

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
        optimizer: OptimizerFactory | torch.optim.Optimizer | None = None,
        learning_rate_schedule: Schedule = Constant(),  # noqa: B008
        validation: Dataset | None = None,
        ledger: Ledger | None = None,
        streams: Streams | None = None,
        checkpoint: Checkpoint | str | Path | None = None,
        delta: float | None = None,
        **compute: Unpack[ComputeArguments],
    ) -> None:
        config = given.require_kinds(
            plan, model, loss, learning_rate_schedule, ledger, streams, compute, delta
        )
        session = TrainingSession(plan, ledger, streams, checkpoint, world=given.world_of(config))
        task = Task(session, model, loss, data, learning_rate_schedule, config, validation)
        BaseRun.__init__(self, session, task, self._run(), delta)
        self.optimizer = task.optimizer(optimizer)
        self._descent = Descent(self.optimizer, learning_rate_schedule, task.parameters, session)
        self._noise = epoch_noise(task, session)
        self._after = AfterTraining(task, self._descent, config.post_processing)
        session.parts |= {"optimizer": self._descent, **self._after.parts}
        self._facts = task.facts(session, self.optimizer, learning_rate_schedule)
        if self.optimizer is optimizer and isinstance(learning_rate_schedule, Constant):
            self._facts["learning_rate_schedule"] = SCRIPTS_RATES

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
        """Clip each example's gradient, charge the ledger, add noise, and let the optimizer step.

        Args:
            batch: of this run, for one step.
            loss: from now on; None: the one before. It is called with parts of the batch, and with
                made-up rows before the first step.

        Returns:
            Private figures of the batch: "loss" (its mean), "clipped_share", "examples" and
            "left_out".

        Raises:
            NotPerExample, BadInput: the loss couples examples, or can't be computed. Nothing was
                spent on the batch.
            SampleReused: a step was taken on the batch already.
        """
        session, task = self.session, self.task
        require_batch(batch)
        batch.require_unused(session)
        task.use(loss, session)
        task.gradients.at(batch.epoch)
        with session.generators(), self._descent.step(task.sums):
            task.watch.begin(task.gradients.clip_norm)
            task.gradients.draw_by(session.streams.noise.cipher)
            clipped = task.gradients(batch.sample, batch.rows, out=task.sums)  # private, bounded
            task.watch.add_drawn(task.gradients.taken)
            (noisy,) = release(  # charged, then noised: public from here on
                clipped,
                noise_multiplier=batch.noise_multiplier,
                ledger=session.account,
                stream=self._noise.stream,
            )
            scale = task.gradients.scale / task.divisor
            torch._foreach_div_(list(task.gradients.released(noisy, task.divisor)), task.divisor)
            self._descent.hand_over(batch.noise_multiplier * clipped.sensitivity * scale)
            self._descent.at(batch.epoch + batch.step / task.steps)
            self.optimizer.step()
            self._after.step()
        session.record(batch.sample, noisy)
        return PrivateDiagnostics(task.watch.batch())

    def _outcome(self) -> Result:
        session, task = self.session, self.task
        self._after.end()
        if self.steps_done:
            remember_released(task.parameters)
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
