"""What a training loop uses of a run: its epochs and batches, how far it is, what it has spent, and
what it gives in the end.

Nothing here is clipped, charged or noised: that is `training.run`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

from privlearn._checks import count
from privlearn._display import Described, Summary, joined
from privlearn.core.accounting.accountant import guarantee
from privlearn.core.accounting.events import Event, compose, walk
from privlearn.core.accounting.guarantee import Guarantee
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.ledger_state import first
from privlearn.core.processes import World
from privlearn.errors import BadInput
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.optimizers import Descent
from privlearn.runs.result import Result
from privlearn.runs.session import Part, TrainingSession
from privlearn.training.task import Batch, Epoch, Task

#: What the checkpoint calls a scheduler, before its number.
_SCHEDULER = "scheduler "


class BaseRun(Described):
    """The part of `pv.Run` that loops use. A run sets `_descent`, its optimizer.

    Args:
        session: what is charged and drawn.
        task: what is trained, on what.
        epochs: the epochs that are still to run, one after the other.
        delta: where `spent` and `publish` state epsilon; None: at the plan's.
    """

    _descent: Descent

    def __init__(
        self, session: TrainingSession, task: Task, epochs: Generator[Epoch], delta: float | None
    ) -> None:
        self.session, self.task = session, task
        self.plan, self.model, self.examples = session.plan, task.network, task.examples
        self.steps_per_epoch = task.steps
        self.steps = self.plan.epochs * task.steps
        self._epochs, self._delta = epochs, delta
        saved = session.saved
        self._steps_saved: int = (
            saved.plain["epoch"] * task.steps + saved.plain["step"] if saved else 0
        )
        # Steps after the last checkpoint were released, too: they are repeated with the same noise.
        noted = session.file.steps_noted if saved and session.file else 0
        since = max(noted - saved.plain.get("noted", noted), 0) if saved else 0
        self._steps_known = min(self._steps_saved + since, self.steps)
        self._epoch: Epoch | None = None  # the one that was handed out last
        self._parts: dict[str, Part] = {}
        self._result: Result | None = None

    @property
    def ledger(self) -> Ledger:
        """What is charged."""
        return self.session.ledger

    @property
    def world(self) -> World:
        """The processes that share the run."""
        return self.session.world

    @property
    def state(self) -> str:
        """How far the run is: "not begun", "interrupted", "under way" or "over"."""
        return self.session.state

    @property
    def unclaimed(self) -> str:
        """Why nothing can be claimed for the model; empty if something can."""
        return self.session.unclaimed

    @property
    def config(self) -> ComputeConfig:
        """How the run computes."""
        return self.task.compute

    @property
    def clip_norm(self) -> float:
        """The clipping norm of the last step, or that of the first one before it: public."""
        norm: float = self.plan.clip.clip_norm
        return norm if self.task.loss is None else self.task.gradients.clip_norm

    @property
    def steps_done(self) -> int:
        """How many steps were taken; those before an interruption count."""
        return max(self.session.steps_done, self._steps_saved)

    @property
    def epoch(self) -> int:
        """How many epochs are complete."""
        return self.steps_done // self.steps_per_epoch

    # -- epochs and batches

    def begin(self) -> None:
        """Begin the run, or continue the one in its checkpoint, as the first batch would do.

        The model, the optimizer and what `keep` was given then have the checkpoint's state.

        Raises:
            BadInput: the run is over, or is under way elsewhere.
        """
        self._require_epochs()
        if self._epoch is None:
            self._next_epoch()

    def __iter__(self) -> Iterator[Epoch]:
        """The epochs that are still to come, each an iterable of batches. What was released before
        an interruption is charged again.

        Raises:
            BadInput: the run is over; or an epoch is asked for before the last one was complete.
        """
        self._require_epochs()
        last = None
        while (epoch := self._next_epoch()) is not None:
            if epoch is last:
                raise BadInput(
                    "the next epoch was asked for before any batch of this one. "
                    "pv.make_private gives one run, not a model, an optimizer and a loader: write "
                    "private = pv.make_private(...), then `for batch in private.batches(): "
                    "private.step(batch, loss)`"
                )
            last = epoch
            yield epoch

    def batches(self) -> Iterator[Batch]:
        """The batches of all epochs that are still to come, each for one step; empty ones, too,
        take a step.

        Raises:
            BadInput: the run is over.
        """
        return chain.from_iterable(self)

    def next_epoch(self) -> Epoch:
        """The next epoch, an iterable of batches, for a script that counts epochs by itself: `for
        epoch in range(private.epoch, epochs): for batch in private.next_epoch(): ...`

        Raises:
            BadInput: all epochs are over; or the last one was not complete.
        """
        self._require_epochs()
        epoch = self._next_epoch()
        if epoch is None:
            self._require_epochs()
        assert epoch is not None
        return epoch

    def _require_epochs(self) -> None:
        if inspect.getgeneratorstate(self._epochs) == inspect.GEN_CLOSED:
            raise BadInput(
                f"all epochs are over, or the run was ended: expected {self.plan.epochs}, once "
                "(one at a time: `for epoch in run: for batch in epoch`). To train on, begin a new "
                "run of this model, both on one ledger with room for them: pv.make_private(..., "
                "ledger=ledger) with ledger=pv.Ledger(pv.Budget(E, D))"
            )

    def _next_epoch(self) -> Epoch | None:
        """The next epoch, or again the last one if no batch of it was asked for: none is lost."""
        epoch = self._epoch
        if epoch is not None and self._is_over(epoch):
            # a loop that counts its batches does not ask for one after the last
            next(iter(epoch), None)
        elif epoch is not None and not epoch.begun:
            return epoch
        self._epoch = next(self._epochs, None)
        epoch = self._epoch
        if epoch is None or self.session.left or epoch.number + 1 == self.plan.epochs:
            return epoch
        if self._is_over(epoch):
            next(iter(epoch), None)  # of a resumed run: all of its batches were released
            self._epoch = next(self._epochs, None)
        return self._epoch

    def _is_over(self, epoch: Epoch) -> bool:
        """Whether all steps of an epoch were taken."""
        return self.steps_done >= (epoch.number + 1) * self.steps_per_epoch

    def refuse_other_steps(self, message: str) -> None:
        """Refuse each step of the optimizer that is none of the run's, in these words: for doors
        whose optimizer is another object. By default those on gradients are refused.
        """
        self._descent.refusal = message

    # -- checkpoints, checks and costs

    def keep(self, *schedulers: Part, **others: Part) -> None:
        """Let the checkpoint hold the state of learning-rate schedulers: a resumed run goes on with
        their rates.

        Args:
            schedulers: what has a `state_dict` and a `load_state_dict`; before the first batch. Of
                a run that has been resumed they get their state at once.
            others: the same, by a name that the checkpoint has for it.

        Raises:
            BadInput: the checkpoint has something else by this name; or it holds a state of it, and
                a step was taken since.
        """
        parts = self.session.parts
        if both := sorted(parts.keys() & others.keys()):
            raise BadInput(
                f"the checkpoint has a part {both[0]!r} already: expected another name, such as "
                f"keep(my_{both[0]}=...)"
            )
        first = sum(name.startswith(_SCHEDULER) for name in self._parts)
        numbered = {
            f"{_SCHEDULER}{number}": each for number, each in enumerate(schedulers, start=first)
        }
        new = numbered | others
        if self.session.restored:
            from privlearn.runs.saved_parts import restore_late

            restore_late(new, self.session, stepped=self.steps_done > self._steps_saved)
        parts |= new
        self._parts |= new

    @property
    def kept(self) -> dict[str, Part]:
        """What `keep` was given, by the checkpoint's name of it."""
        return dict(self._parts)

    def keep_in(self, checkpoint: Checkpoint) -> None:
        """Let a checkpoint keep a run that is under way, from here on: `save_checkpoint` writes it.

        Args:
            checkpoint: a file that no other run is in; what it holds is replaced.

        Raises:
            BadInput: the run has one already, has not begun, or was left; or it has no loss yet,
                several processes, or keys that outlive it.
        """
        self.task.use(None, self.session)
        self.session.keep_in(checkpoint)
        self.task.note_facts(self.session)

    def save_checkpoint(self) -> None:
        """Write the checkpoint, if there is one, between two steps, whether it is time or not.

        A resumed run repeats the steps since then, with the same noise.

        Raises:
            BadInput: the run has no file.
        """
        session, epoch = self.session, self._epoch
        if session.file is None:
            raise BadInput(
                "this run has no checkpoint file: give checkpoint=FILE when the run is made. In "
                "Opacus' form call engine.save_checkpoint(path=FILE)"
            )
        if session.complete:
            session.keep(0, now=True)
        elif epoch is not None and epoch.begun:
            session.keep(self.steps_done - epoch.number * self.steps_per_epoch, now=True)
        elif epoch is not None and not epoch.begun:
            session.keep_epochs(self.epoch)

    def set_microbatch(self, examples: int) -> None:
        """Compute so many examples at once, before the first step of a run whose loss comes with
        it.

        Raises:
            BadInput: there is a loss, and its gradients are computed otherwise; or no number.
        """
        config = replace(self.config, microbatch=count("microbatch", examples))
        if self.task.loss is not None and config != self.config:
            raise BadInput(
                f"microbatch is {self.config.microbatch}, and the run has its loss: it can't be "
                "changed. Give microbatch= when the run is made"
            )
        self.task.compute = config

    def require_gradients(self) -> None:
        """Compare the clipped sum on made-up rows with autograd's, for every trainable parameter;
        nothing is spent.

        Raises:
            BadInput: a parameter is trained to which no gradient flows; or there is no loss yet.
            NotPerExample: the sums differ.
        """
        from privlearn.training.gradient_check import require_gradients  # for those who ask

        self.task.use(None, self.session)
        require_gradients(self.model, self.task.loss, self.task.rows)

    def spent(self, delta: float | None = None) -> Guarantee:
        """What was charged so far, priced as if the number of steps had been fixed beforehand: an
        estimate, for a log.

        What a resumed run spent before its interruption is in it, also before the first batch. A
        ledger in a file has all of the run set aside from its first batch to `close()`, and that
        counts as charged. The guarantee, which a certificate claims however early the loop is left,
        is `plan.guarantee(delta)`.

        Raises:
            BadInput: at no delta.
        """
        plan = self.plan
        delta = delta or self._delta or (plan.budget.delta if plan.budget else None)
        if delta is None:
            raise BadInput(
                "nothing says at which delta epsilon is stated: give one, for example delta=1e-5"
            )
        event = compose([self.ledger.event, *self._to_charge_again()])
        priced = guarantee(event, plan.neighbours, delta, plan.unit.group_size)
        return replace(priced, kind="estimate", rows_per_person=plan.unit.rows_per_person)

    def _to_charge_again(self) -> list[Event]:
        """What the steps before an interruption cost, as far as the ledger is charged for it again
        only when they are repeated.

        A ledger in a file has all of the run set aside.
        """
        session, plan, done = self.session, self.plan, self.session.steps_done
        if self.ledger.path or session.complete or done >= self._steps_known:
            return []
        if plan.filter is not None:
            return [plan.filter] if session.first == (0, 0) else []
        if done < self._steps_saved and session.first != (0, 0):  # whole epochs are charged already
            done = self._steps_saved - self._steps_saved % self.steps_per_epoch
        return [*self._events_of(done, self._steps_known)]

    def _events_of(self, start: int, stop: int) -> Iterator[Event]:
        """What the steps from `start` to `stop` cost."""
        length = self.steps_per_epoch
        for epoch, noise in enumerate(self.plan.noise_multipliers()):
            begin, end = (min(max(at - epoch * length, 0), length) for at in (start, stop))
            event = self.plan.epoch_event(noise)
            if end - begin == length:
                yield event
            elif begin < end:
                event = compose([event])
                # of steps, cycles or the epoch, each made at its first batch
                charges = sum(times for _, times in walk(event))
                before, after = (math.ceil(at * charges / length) for at in (begin, end))
                yield first(event, after - before)

    # -- the end

    def result(self) -> Result:
        """The trained model, and what can be published of it; ends the run. One that is left early
        says so.
        """
        if self._result is None:
            self._complete()
            self.session.stop(self._epochs)
            self._result = self._outcome()
        return self._result

    def _complete(self) -> None:
        """End the last epoch if all steps were taken and nothing asked for a batch after the
        last.
        """
        while (
            self.steps_done == self.steps
            and inspect.getgeneratorstate(self._epochs) != inspect.GEN_CLOSED
        ):
            self._next_epoch()

    def _outcome(self) -> Result:
        raise NotImplementedError

    def publish(self, out: str | Path, **options: Any) -> Path:
        """End the run and write the model with its certificate by `pv.publish`, whose other
        arguments are `options`.

        Raises:
            BadInput: no step was taken, or as `pv.publish`.
        """
        if not self.steps_done:
            raise BadInput(
                "no step was taken, so there is nothing to publish: take steps first, for batch "
                "in run.batches(): run.step(batch, loss)"
            )
        import privlearn  # publishing knows runs, and not the other way round

        return privlearn.publish(self.result(), out, **{"delta": self._delta, **options})

    def close(self, error: BaseException | None = None) -> None:
        """End the run: what was not charged is given back. One with a checkpoint keeps it, and can
        be continued.

        Args:
            error: why, where an error of this process ends it: the others then don't wait for it.
        """
        self._epochs.close()
        self.session.leave(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """However the block ends, what was not charged is given back; an interrupted run keeps its
        checkpoint.
        """
        self.session.close(self._epochs, error[1] if error else None)

    def _summary(self) -> Summary:
        plan = self.plan
        rows = plan._summary().rows
        loss = "" if self.task.loss else ", loss"
        use = f"for batch in run.batches(): run.step(batch{loss}); then run.publish(folder)"
        use = "run.publish(folder)" if self.steps_done == self.steps else use
        return Summary(
            f"Run of DP-SGD, {self.session.state}: {self.steps_done} of "
            f"{'at most ' * bool(plan.filter)}{self.steps} steps",
            [*joined(rows[:-2], 2), *rows[-2:], ("use", use)],
        )
