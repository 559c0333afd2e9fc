"""Private training in a loop of your own: `make_private` takes a model, an optimizer and a loader
as they are.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, final

from filelock import Timeout
from torch import Tensor, nn, optim

from privlearn._checks import checked
from privlearn._display import Described, Summary
from privlearn.core.accounting.accountant import guarantee
from privlearn.core.accounting.events import Event, compose, walk
from privlearn.core.accounting.guarantee import Adjacency, Guarantee, hollow
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.ledger_state import first
from privlearn.core.clipping.clips import Clip, Flat
from privlearn.core.clipping.losses import ModelLoss
from privlearn.core.mechanisms import matrices
from privlearn.core.mechanisms.correlated import Correlation
from privlearn.core.plan import Plan
from privlearn.core.sampling import Sampler, named
from privlearn.core.schedules import Constant, NoiseSchedule, Schedule
from privlearn.core.solving import with_least_noise
from privlearn.core.streams import Streams
from privlearn.data.torch_rows import resampled
from privlearn.descent import best_sampling
from privlearn.descent.dpsgd import Run
from privlearn.descent.task import Batch, Epoch
from privlearn.errors import BadInput, warn
from privlearn.publishing.publish import publish
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.given import ComputeArguments, require_optimizer_of, world_of
from privlearn.runs.result import SCRIPTS_RATES, PrivateDiagnostics, Result


class LoopSettings(ComputeArguments, total=False):
    """What `make_private` may be given beside a target, beyond `runs.compute.ComputeConfig`.

    Keys:
        rho: a target in zero-concentrated DP, in place of epsilon and delta.
        noise_multiplier: the noise itself, in place of a target.
        examples: the declared public number of examples; by default that of the data, which is then
            published.
        adjacency: `add_remove` (which needs `examples`), `zero_out` or `replace_one`.
        group_size: the declared most examples of one person, protected together.
        sampling: a sampler of `pv.sampling`, or its name; by default Poisson, with the loader's
            batch size expected. `best`: of those priced for the same neighbours, with any mechanism
            where none is given, what leaves the least noise in the weights. Noise that is
            correlated is tried for torch's SGD, in one process.
        schedule: of the noise over the epochs; with a target its shape.
        mechanism: `independent` noise, or noise that is correlated over steps:
            `banded:bands=8,momentum=0.9` or `mechanisms.Banded(8)`, with `cyclic-partition`,
            `cyclic-poisson` or `fixed` sampling; `bisr:bands=8` or `blt:buffers=2`, with `fixed`
            sampling.
        clip: another clip than `pv.Flat(max_grad_norm)`.
        loss: for every step; else each step is given it.
        ledger: what to charge; by default a new one with the target as its limit.
        streams: the random streams; by default seeded by the operating system.
        checkpoint: a file to keep progress in; it needs `loss`. If it is there, the run in it is
            continued.
        learning_rate_schedule: the optimizer's learning rates are multiplied by its value over its
            value at epoch 0; by default they are the script's own, which a scheduler of torch may
            change.
    """

    rho: float | None
    noise_multiplier: float | None
    examples: int | None
    adjacency: Adjacency | str | None
    group_size: int
    sampling: Sampler | str | None
    schedule: NoiseSchedule | None
    mechanism: Correlation | str | None
    clip: Clip | None
    loss: Callable[..., Tensor] | None
    ledger: Ledger | None
    streams: Streams | None
    checkpoint: Checkpoint | str | Path | None
    learning_rate_schedule: Schedule | None


_TARGET = ("epochs", "epsilon", "delta", "max_grad_norm")
_OWN = set(LoopSettings.__annotations__) - set(ComputeArguments.__annotations__)


@checked
def make_private(
    model: nn.Module,
    optimizer: Any,
    loader: Any,
    *,
    epochs: int,
    epsilon: float | None = None,
    delta: float | None = None,
    max_grad_norm: float | None = None,
    **settings: Unpack[LoopSettings],
) -> PrivateLoop:
    """Train in a loop of your own: batches are drawn from the loader's rows, each step is clipped,
    charged and noised.

    Guarantee: that of `descent.dpsgd.Run`, for the model after the last step (and after each):
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
        epochs: how many; leaving the loop earlier claims as much.
        epsilon: the target, with delta.
        delta: below one over the number of examples.
        max_grad_norm: the clipping norm of each example's gradient.
        settings: see `LoopSettings`. How to compute: `config=pv.ComputeConfig(...)`, or its fields
            by their names (`microbatch`, `precision`, `device`, ...).

    Raises:
        BadInput, NotPerExample, UnsupportedEvent, BudgetExceeded: the model, the optimizer, the
            loader or the plan can't be private, or the ledger has no room. Nothing was spent. The
            first step raises the same for the loss.

    Warns:
        PrivacyWarning: delta is one over the number of examples or more, or epsilon promises next
            to nothing.
    """
    model = _unwrapped(model)
    require_optimizer_of(optimizer, model)
    rows, batch_size = resampled(loader)
    own: dict[str, Any] = {name: settings.get(name) for name in _OWN}
    computed = {name: value for name, value in settings.items() if name not in _OWN}
    config = ComputeConfig.of(computed, (*_TARGET, *sorted(_OWN)))
    correlated = _tries_correlated(optimizer, own["streams"], config)
    plan = _plan(
        own, epochs, epsilon, delta, max_grad_norm, batch_size, len(rows), correlated=correlated
    )
    loss, rates = own["loss"], own["learning_rate_schedule"] or Constant()
    run = Run(
        plan,
        model,
        None if loss is None else _of_model(loss),
        rows,
        optimizer=lambda parameters: optimizer,
        learning_rate_schedule=rates,
        ledger=own["ledger"],
        streams=own["streams"],
        checkpoint=own["checkpoint"],
        config=config,
    )
    if (plan.budget or run.session.ledger.budget) is None:
        # of a target the session warns
        for warning in hollow(None, delta, own["examples"] or len(rows)):
            warn(warning)
    return PrivateLoop(
        run, plan, model, optimizer, delta, scripts_rates=isinstance(rates, Constant)
    )


@final
class PrivateLoop(Described):
    """A loop that a user writes around a run of DP-SGD:
    `for batch in private.batches(): private.step(batch, loss)`.

    Or epoch by epoch, `for epoch in private: for batch in epoch: private.step(batch, loss)`. As a
    context manager it is closed however the block ends.

    Attributes:
        run: the `descent.dpsgd.Run` that it drives.
        plan: what is spent, and how.
        ledger: what is charged.
        model: what is trained.
        optimizer: the one that was given.
        steps_per_epoch: batches in an epoch.
        steps: batches in all, for learning-rate schedulers that ask.
        taken: steps that were taken, also before the run was interrupted.
        epoch: epochs that are complete.
    """

    def __init__(
        self,
        run: Run,
        plan: Plan,
        model: nn.Module,
        optimizer: Any,
        delta: float | None = None,
        *,
        scripts_rates: bool = False,
    ) -> None:
        self.run, self.plan, self.model, self.optimizer, self._delta = (
            run,
            plan,
            model,
            optimizer,
            delta,
        )
        self.steps_per_epoch = run.task.steps
        self.steps = plan.epochs * self.steps_per_epoch
        self._rates = {"learning_rate_schedule": SCRIPTS_RATES} if scripts_rates else {}
        saved = run.session.saved
        self._kept: int = (
            saved.plain["epoch"] * self.steps_per_epoch + saved.plain["step"] if saved else 0
        )
        self._epoch: Epoch | None = None  # the one that was handed out last
        self._result: Result | None = None

    @property
    def ledger(self) -> Ledger:
        """What is charged."""
        return self.run.session.ledger

    @property
    def taken(self) -> int:
        """How many steps were taken."""
        return max(self.run.session.taken, self._kept)

    @property
    def epoch(self) -> int:
        """How many epochs are complete."""
        return self.taken // self.steps_per_epoch

    def __iter__(self) -> Iterator[Epoch]:
        """The epochs that are still to come, each an iterable of batches.

        Raises:
            BadInput: the run is over; or an epoch is asked for, and no batch was of the one before.
        """
        if _state(iter(self.run)) == inspect.GEN_CLOSED:
            raise BadInput(
                "all epochs are over, or the run was ended: batches() goes through all "
                f"{self.plan.epochs} epochs, once. For one epoch at a time: `for epoch in private: "
                "for batch in epoch: private.step(batch, loss)`"
            )
        handed = None
        while (epoch := self._next_epoch()) is not None:
            if epoch is handed:
                raise BadInput(
                    "the next epoch was asked for before any batch of this one: make_private gives "
                    "one loop, not a model, an optimizer and a loader. Write private = "
                    "pv.make_private(...), then `for epoch in private: for batch in epoch: "
                    "private.step(batch, loss)`"
                )
            handed = epoch
            yield epoch

    def _next_epoch(self) -> Epoch | None:
        """The next one, or again the last one if no batch of it was asked for: none is lost."""
        if self._epoch is not None and _state(iter(self._epoch)) == inspect.GEN_CREATED:
            return self._epoch
        try:
            self._epoch = next(iter(self.run), None)
        except BadInput as error:
            if not isinstance(error.__cause__, Timeout):
                raise
            raise BadInput(
                "the run in this checkpoint is under way, in another process or in a loop of this "
                "one that was not closed: let it end, or call its close(), as `with "
                "pv.make_private(...) as private:` does by itself"
            ) from error
        return self._epoch

    def batches(self) -> Iterator[Batch]:
        """The batches of all epochs that are still to come, each for one step; empty ones, too,
        take a step.

        Raises:
            BadInput: the run is over.
        """
        for epoch in self:
            yield from epoch

    def step(self, batch: Batch, loss: Callable[..., Tensor] | None = None) -> PrivateDiagnostics:
        """Clip each example's gradient, charge the ledger, add noise, and let the optimizer take a
        step.

        Args:
            batch: from `batches`, once.
            loss: a function of (model, batch) to one value for each example, shape (batch,), where
                `batch` is what the loader's collate function makes; or a loss of torch.nn with
                reduction="none" for batches (inputs, targets). It is called with parts of the
                batch, and with made-up rows before the first step. None: the one before.

        Returns:
            Private figures of the batch, for the curator's eyes: "loss" (its mean),
            "clipped_share", "examples", "left_out".

        Raises:
            NotPerExample, BadInput: the loss couples examples, or can't be computed; before
                anything is spent on the batch.
            SampleReused: a second step on one batch.
        """
        if not isinstance(batch, Batch):
            raise BadInput(
                f"step was given a {type(batch).__name__}: expected a batch of private.batches(), "
                "drawn at random and good for one step. The loss is called with its rows: "
                "step(batch, loss), loss(model, rows)"
            )
        return self.run.step(batch, None if loss is None else _of_model(loss))

    def keep(self, *schedulers: Any) -> None:
        """Let the checkpoint hold the state of learning-rate schedulers: a resumed run goes on with
        their rates.

        To be called before the first batch, with what has a `state_dict` and a `load_state_dict`.
        """
        for number, scheduler in enumerate(schedulers):
            self.run.session.parts[f"scheduler {number}"] = scheduler

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
        stated, plan = delta or self._delta, self.plan
        if stated is None:
            raise BadInput(
                "nothing says at which delta epsilon is stated: give one, for example delta=1e-5"
            )
        event = compose([self.ledger.event, *self._to_charge_again()])
        priced = guarantee(event, plan.neighbours, stated, plan.unit.group_size)
        return replace(priced, kind="estimate", rows_per_person=plan.unit.rows_per_person)

    def _to_charge_again(self) -> list[Event]:
        """What the steps in a checkpoint cost, as far as the ledger is charged for it again only
        with the first batch.

        A ledger in a file has all of the run set aside.
        """
        session, plan = self.run.session, self.plan
        if self.ledger.path or session.complete or session.taken >= self._kept:
            return []
        if plan.filter is not None:
            return [plan.filter] if session.first == (0, 0) else []
        epoch, step = divmod(self._kept, self.steps_per_epoch)
        noise = plan.noise_multipliers()
        whole = [plan.epoch_event(own) for own in noise[:epoch]] if session.first == (0, 0) else []
        if not step:
            return whole
        event = compose([plan.epoch_event(noise[epoch])])
        # of steps, cycles or the epoch, each made at its first batch
        charges = sum(times for _, times in walk(event))
        return [*whole, first(event, math.ceil(step * charges / self.steps_per_epoch))]

    def result(self) -> Result:
        """The trained model, and what can be published of it; ends the run. One that is left early
        says so.
        """
        if self._result is None:
            result = self.run.result()
            self._result = replace(result, facts=result.facts | self._rates)
        return self._result

    def publish(self, out: str | Path, **options: Any) -> Path:
        """End the run and write the model with its certificate by `pv.publish`, whose other
        arguments are `options`.
        """
        return publish(self.result(), out, **{"delta": self._delta, **options})

    def close(self) -> None:
        """End the run: what was not charged is given back. One with a checkpoint keeps it, and can
        be continued.
        """
        iter(self.run).close()

    def __enter__(self) -> PrivateLoop:
        return self

    def __exit__(self, *error: object) -> None:
        self.run.__exit__(*error)

    def _summary(self) -> Summary:
        rows = self.run._summary().rows[:-1]
        loop = (
            "for batch in private.batches(): private.step(batch, loss); then "
            "private.publish(folder)"
        )
        return Summary(
            f"Private training loop: {self.taken} of {self.steps} steps taken",
            [*rows, ("use", loop)],
        )


def _state(generator: Any) -> str:
    """Whether a generator was begun, and is over."""
    return inspect.getgeneratorstate(generator)


def _unwrapped(model: Any) -> nn.Module:
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


def _of_model(loss: Any) -> Any:
    """Functions are of (model, batch); torch's own losses are of (outputs, targets)."""
    if not callable(loss):
        raise BadInput(
            f"loss is {repr(loss)[:60]}: expected a function of (model, batch) to one value for "
            "each example, not its value. It is called by step, on parts of the batch"
        )
    return loss if isinstance(loss, nn.Module | ModelLoss) else ModelLoss(loss)


def _plan(
    own: dict[str, Any],
    epochs: int,
    epsilon: float | None,
    delta: float | None,
    norm: float | None,
    batch_size: int,
    rows: int,
    *,
    correlated: bool,
) -> Plan:
    """The plan that the arguments of `make_private` describe; `correlated` says what `best`
    tries.
    """
    clip, noise, schedule = own["clip"], own["noise_multiplier"], own["schedule"]
    if (clip is None) == (norm is None):
        raise BadInput(
            "expected one of max_grad_norm=C, the clipping norm, and clip=, such as pv.Flat(1.0): "
            "give one"
        )
    targets = [
        name
        for name, given in (("epsilon", epsilon), ("rho", own["rho"]), ("noise_multiplier", noise))
        if given
    ]
    if len(targets) != 1:
        raise BadInput(
            f"{' and '.join(targets) or 'nothing'} says how much may be spent: expected one of "
            "epsilon=E (with delta=D), rho=R, and the noise itself, noise_multiplier=S"
        )
    if noise is not None and schedule is not None:
        raise BadInput(
            "noise_multiplier and schedule= both say what the noise is: give one of them"
        )
    examples = own["examples"] or rows

    def solved(plan: Plan) -> Plan:
        return (
            plan
            if noise is not None
            else plan.calibrate(epsilon=epsilon, delta=delta, rho=own["rho"])
        )

    def made(
        sampling: Sampler | str, mechanism: Correlation | str | None, adjacency: Adjacency | None
    ) -> Plan:
        plan = Plan(
            named(sampling, min(batch_size, examples), examples),
            epochs=epochs,
            schedule=schedule or (Constant() if noise is None else Constant(noise)),
            clip=clip or Flat(norm or 0.0),
            adjacency=adjacency,
            examples=own["examples"],
            group_size=own["group_size"] or 1,
        )
        correlations = _correlations(mechanism, chosen=noise is None)
        return with_least_noise(
            plan, correlations, solved, examples, adjust=isinstance(sampling, str)
        )

    sampling = own["sampling"] or "poisson"
    adjacency = None if own["adjacency"] is None else Adjacency.parse(own["adjacency"])
    if sampling != best_sampling.BEST:
        return made(sampling, own["mechanism"], adjacency)
    if noise is not None:
        raise BadInput(best_sampling.NO_TARGET)
    return best_sampling.least(
        made, lambda plan: plan, examples, own["mechanism"], adjacency, correlated=correlated
    )


def _tries_correlated(optimizer: Any, streams: Streams | None, config: ComputeConfig) -> bool:
    """Whether `best` tries correlated noise: it is compared as SGD's weights hold it, off the grid,
    in one process.
    """
    discrete = streams is not None and streams.noise.discrete
    return type(optimizer) is optim.SGD and not discrete and world_of(config).size == 1


def _correlations(given: Correlation | str | None, *, chosen: bool) -> Sequence[Correlation | None]:
    """What a mechanism leaves open: several numbers of bands, say, where the noise is solved
    for.
    """
    correlations = matrices.choices(given)
    if len(correlations) > 1 and not chosen:
        raise BadInput(
            f"the mechanism {given!r} leaves a number open, which is chosen where the noise is "
            f"solved for: say {matrices.spec(correlations[-1])}, or give epsilon= in place of "
            "noise_multiplier="
        )
    return correlations
