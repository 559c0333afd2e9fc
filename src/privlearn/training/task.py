"""A task has rows, a network and a loss that fit each other and the plan; its constructor refuses
what does not fit.

Its epochs and batches, for a run that is driven by hand.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privlearn.core.clipping.gradients import ClippedGradients, clipped_gradients
from privlearn.core.clipping.losses import BatchShape, Loss, Losses
from privlearn.core.clipping.model_check import (
    made_up_rows,
    require_per_example,
    require_separate,
)
from privlearn.core.clipping.sharded.models import is_sharded, require_plain
from privlearn.core.devices import on_processor
from privlearn.core.plan import Plan
from privlearn.core.rows import Leaves, Rows, TensorRows, TransformedRows, Whole, ahead
from privlearn.core.sampling import Sample
from privlearn.core.schedules import Schedule, spec
from privlearn.data.dataset import Dataset, require_groups, rows_of_persons
from privlearn.errors import BadInput, SampleReused
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.front import Front
from privlearn.runs.given import (
    Given,
    OptimizerFactory,
    advising,
    by_index,
    device_of,
    gradient_clip,
    network_from,
    optimizer_from,
    require_changeable,
    require_finite,
    require_public_numbers,
    require_rows_once,
    require_same_examples,
    require_usable,
    warn_of_absent,
)
from privlearn.runs.result import Diagnostics, Scalars, accuracy_facts, choice_facts, training_facts
from privlearn.runs.session import TrainingSession

#: Of rows that are fetched by index, so many are compared when a run is resumed.
_COMPARED = 64


@final
class Task:
    """What a run of DP-SGD trains, on what.

    Args:
        session: the run's ledger, streams and checkpoint.
        model: a network, or a function from the shape of one (transformed) example to one.
        loss: of outputs and targets, or of the model and a batch; None if it comes with the first
            step (`use`).
        given: the rows.
        rates: the schedule of learning rates.
        compute: how to compute.

    Attributes:
        data: what is known of rows in memory; of rows that are fetched by index, of none.
        front: the transforms in front of the network.
        rows: the rows as the network gets them; those in memory once `fit` was called.
        persons: the rows of each example, where examples are persons.
        present: the number of examples.
        examples: the number that sums are divided by: the declared one, or the number of examples.
        divisor: the expected batch size.
        steps: steps in an epoch.
        network: what is trained.
        gradients: the clipped sums, once there is a loss.
        sums: where they are put.
        watch: private diagnostics.
        losses_take_model: whether a function that is given as a loss is one of (model, batch),
            whatever its parameters are called.
        made_up: of each of these losses, in place of its own.

    Raises:
        NotPerExample: the model or the loss couples examples.
        BadInput: whatever does not fit.
    """

    gradients: ClippedGradients
    losses_take_model = False
    made_up: Callable[[Any], Any] | None = None
    _public_facts: dict[str, Any]

    def __init__(
        self,
        session: TrainingSession,
        model: nn.Module | Callable[[tuple[int, ...]], nn.Module],
        loss: Loss | None,
        source: Given,
        rates: Schedule,
        compute: ComputeConfig,
        validation: Dataset | None = None,
    ) -> None:
        plan = session.plan
        self.plan, self.loss, self.compute = plan, loss, compute
        data, indexed = by_index(source, plan)
        self.data, self.indexed = data or _unknown(indexed), indexed
        self.x, self.y = (
            self.data.tensors() if indexed is None else (indexed.like[0], indexed.like[-1])
        )
        require_same_examples(plan, self.data, by_index=indexed is not None)
        require_rows_once(plan, source, self.data, indexed)
        self.validation = _validation_rows(plan, validation, self.data, self.x, self.y)
        rows = len(self.x) if indexed is None else len(indexed)
        self.persons = _rows_of_examples(
            plan, self.data, rows, bytes.fromhex(session.origin["persons"])
        )
        require_changeable(compute.augmentation, plan, self.x, self.y)
        self.present = (
            (len(indexed) if indexed else len(self.x))
            if self.persons is None
            else len(self.persons)
        )
        plan.sampling.require_rows(self.present)
        self.examples, self._row_key = plan.examples or self.present, b""
        session.count_examples(self.present, indexed or (self.x, self.y))
        self.front = Front(plan.front, self.data, self.x)
        self.divisor = plan.sampling.expected_batch_size(self.examples)
        self.steps = plan.sampling.steps(self.present)
        session.draws(self.present)
        require_public_numbers(self.examples, rates)
        for transform in plan.front:
            transform.require_labels(self.y)
        self.network = (
            model if isinstance(model, nn.Module) else network_from(model, self.front.shape)
        )
        require_separate(self.network)
        session.device = device_of(compute.device, self.network)
        self.network.to(session.device).train()
        session.world.copy(self.network.state_dict())
        self.watch = Diagnostics()
        self.parameters = [
            parameter for parameter in self.network.parameters() if parameter.requires_grad
        ]
        self.rows: Rows = (
            TransformedRows(indexed, self.front.modules)
            if indexed and self.front.modules
            else self._empty()
        )
        self.accuracies: list[float] = []
        if loss is not None:
            self._prepare(loss, session)
        elif session.file or plan.filter is not None:
            raise BadInput(
                "a checkpoint and a validation schedule need the loss before the first step: give "
                "it with loss= when the run is made"
            )
        if indexed is not None and indexed.fresh:
            if "rows" not in session.origin:
                session.origin["rows"] = session.streams.views.bytes(16).hex()
            self._row_key = bytes.fromhex(session.origin["rows"])

    def row_key(self, epoch: int, step: int) -> bytes:
        """What the rows of a batch that are made afresh are made from: secret, and the same when a
        run is resumed.
        """
        return hashlib.blake2b(
            f"{epoch} {step}".encode(), key=self._row_key, digest_size=16
        ).digest()

    def use(self, loss: Loss | None, session: TrainingSession) -> None:
        """Train by this loss from here on; None, or the same as before, changes nothing.

        Raises:
            NotPerExample, BadInput: as for the first one; nothing was spent on it.
        """
        # a run whose loss came with it asks for no other
        from privlearn.training.loop_losses import of_model, same_loss

        if loss is not None and self.losses_take_model:
            loss = of_model(loss, self.made_up)
        if loss is None and self.loss is None:
            raise BadInput(
                "the run was given no loss: give one to each step, step(batch, loss), or loss= once"
            )
        if loss is None or same_loss(loss, self.loss):
            return
        if session.file:
            raise BadInput(
                "a run with a checkpoint has one loss: leave the checkpoint out, or put both into "
                "one function"
            )
        before = {
            name: value for name, value in vars(self).items() if name in ("loss", "gradients")
        }
        try:
            self._prepare(loss, session)
        except BaseException:
            vars(self).update(before)
            raise
        if "gradients" in before:
            self.gradients.clip_norm = before["gradients"].clip_norm

    def _prepare(self, loss: Loss, session: TrainingSession) -> None:
        """Choose how gradients of a loss are computed; refuse it if they can't be."""
        # of losses as scripts write them; no row is fetched
        from privlearn.runs.code_digest import common_digest
        from privlearn.training.batch_losses import of_each_example
        from privlearn.training.made_up_ranges import in_accepted_ranges

        session.world.require_alike("the loss function", common_digest(loss).encode())
        loss = in_accepted_ranges(self.network, loss, self.rows)
        self.loss = of_each_example(self.network, loss, self.rows)
        self.gradients = self._gradients(session)
        self._refuse(session)
        self.sums = self.gradients.buffers()

    def _gradients(self, session: TrainingSession) -> ClippedGradients:
        assert self.loss is not None
        return clipped_gradients(
            self.network,
            self.loss,
            gradient_clip(self.plan),
            self.plan.neighbours,
            microbatch=self.compute.microbatch,
            expected=self.divisor,
            augmentation=self.compute.augmentation,
            view_seeds=session.streams.views,
            autocast=torch.bfloat16 if self.compute.precision == "bf16" else None,
            rows=self.persons,
            fast_kernels=session.fast_kernels,
            observe=self.watch.see,
            world=session.world,
        )

    def _empty(self) -> Rows:
        """No rows of the shapes and types that the network gets."""
        if self.indexed:
            return self.indexed
        x = self.front.rows
        return TensorRows((x.new_zeros(0, *self.front.shape), self.y[:0]))

    def _refuse(self, session: TrainingSession) -> None:
        """Refuse what can't be computed: on made-up rows, and on the least and largest integers of
        those in memory.
        """
        assert self.loss is not None
        where, like = device_of(None, self.network), self.rows.like
        shape = BatchShape.of(self.rows, self.loss)
        single = [leaf.new_zeros(1, *leaf.shape[1:]).to(where) for leaf in like]
        if is_sharded(self.network):  # no copy of it can be made; `prepare` looks at its losses
            require_plain(
                reacts=self.plan.reacts,
                temperature=self.plan.temperature,
                **self.compute.post_processing,
            )
        elif shape.whole or shape.inputs > 1 or len(like) != 2:
            losses = Losses(self.network, self.loss, shape)
            with advising(like[-1]):
                require_per_example(
                    losses, *single, what="the loss", made_up=shape.made_up, explain=_name_meeting
                )
        else:
            inputs = None if shape.change is None else partial(_make_up_inputs, shape, like)
            require_per_example(self.network, single[0], made_up=inputs, explain=_name_meeting)
        if not self.indexed:
            with self.gradients.fixed.holding():
                require_usable(
                    self.network,
                    self.loss,
                    like[0] if self.plan.releases else self.front.rows,
                    self.y,
                )
            warn_of_absent(self.front.rows, self.y)
        elif self.data.is_sparse:
            targets = self.data.target_tensor()
            with self.gradients.fixed.holding():
                require_usable(self.network, self.loss, like[0], targets)
            warn_of_absent(torch.from_numpy(self.data.x.stored), targets)
        self.gradients.prepare(self.rows)
        self.gradients.load_state_dict(
            session.world.once(self.gradients.state_dict, "the way of gradients")
        )
        self.gradients.warn_of_idle_processes()
        if self.plan.reacts:
            # for schedules that follow accuracies alone
            from privlearn.training.validation import require_scores

            require_scores(self.network, single[0])
        session.parts |= {
            "network": self.network,
            "gradients": self.gradients,
            "diagnostics": self.watch,
            "accuracies": Scalars(self.accuracies),
        }

    def optimizer(
        self, optimizer: OptimizerFactory | torch.optim.Optimizer | None
    ) -> torch.optim.Optimizer:
        """The optimizer that the caller chose, or SGD at the learning rate of the rules for a
        custom network.

        The rule takes the initial weights to be as long as PyTorch usually makes them: a matrix
        with n outputs has a norm of about sqrt(n / 3). This follows from shapes alone, so a resumed
        run gets the same rate.

        Raises:
            BadInput: it is none, or needs a closure or sparse gradients; or it was made of other
                parameters.
        """
        if isinstance(optimizer, torch.optim.Optimizer):
            from privlearn.runs.optimizer_parameters import require_optimizer_of  # of scripts

            require_optimizer_of(optimizer, self.network)
            return optimizer_from(lambda parameters: optimizer, self.parameters)
        if optimizer is not None:
            return optimizer_from(optimizer, self.parameters)
        from privlearn.training.rules import learning_rate  # a default, which no guarantee rests on

        norm = (
            math.sqrt(
                sum(parameter.shape[0] for parameter in self.parameters if parameter.dim() > 1) / 3
            )
            or math.inf
        )
        rate = learning_rate("SGD", self.plan, self.examples, "a custom network", norm)
        return torch.optim.SGD(self.parameters, lr=rate)

    def fit(self, session: TrainingSession) -> None:
        """Fit the transforms in front of the network that are releases on all rows, and apply
        them.
        """
        if self.indexed is not None:
            return
        with session.generators():
            self.x = self.front.fit(session, self.front.rows, self.y, self.persons)
        self.rows = TensorRows((self.x, self.y), self.data.tensors())

    def end_epoch(self, session: TrainingSession, number: int, rate: float) -> None:
        """What the model holds beside trained weights is what it was, and the curator's figures are
        summed up.

        Raises:
            BadInput: the weights are no longer finite: steps at the learning rate `rate` were too
                long. The run ends here.
        """
        self.watch.end_epoch()
        self.gradients.fixed.attributes.take()  # what a loop keeps between two steps stays
        self.gradients.fixed.restore(thoroughly=True)
        with session.or_abandon():
            require_finite(self.parameters, rate, f"epoch {number + 1} of {self.plan.epochs}")

    def facts(
        self, session: TrainingSession, optimizer: torch.optim.Optimizer, rates: Schedule
    ) -> dict[str, Any]:
        """Public values of the run, for its certificate; a resumed run must have them in common
        with it.
        """
        public_facts = {
            **training_facts(
                self.examples,
                self.plan.epochs * self.steps,
                optimizer,
                rates,
                self.front.described(),
            ),
            "precision": self.compute.precision,
            **accuracy_facts(self.compute, self.loss),
            "noise": "on a grid" if session.streams.noise.discrete else "floating point",
        }
        self._public_facts = dict(public_facts)
        if session.file or session.world.size > 1:
            self.note_facts(session)
        return public_facts

    def note_facts(self, session: TrainingSession) -> None:
        """Say what a resumed run, or another process, must have in common with this one. The key of
        the noise follows from it.
        """
        from privlearn.runs.checkpoint import facts
        from privlearn.runs.code_digest import code_digest

        copies = self.compute.augmentation
        session.facts = facts(
            self.network,
            self.loss,
            _pick_rows(self.rows) if self.indexed else (self.front.rows, self.y),
            self.persons,
            self.validation,
            copies.transform if copies else None,
            plan=self.plan,
            **{**self.compute.compared(), **self._public_facts},
        )
        session.code = {"code": code_digest(self.loss, copies, self.network)}

    def model(self) -> nn.Sequential:
        """The network behind its front, for evaluation, where it was; on the processor if a device
        was named.
        """
        if not is_sharded(self.network):
            self.network.to(
                "cpu" if self.compute.device is not None else device_of(None, self.network)
            )
        return nn.Sequential(*self.front.modules, self.network).eval()

    def chosen(self) -> dict[str, Any]:
        """The features that selections chose: released, and so free to tell."""
        return choice_facts(self.front.chain, self.data)

    def architecture(self) -> dict[str, Any]:
        """How to rebuild the model: shapes, and the table or the scans that rows came from."""
        shape, network_shape = tuple(self.data.x.shape[1:]), tuple(self.rows.like[0].shape[1:])
        if self.indexed is not None and self.indexed.padded:
            shape = network_shape = self.indexed.stated[0]  # lengths are private
        shapes = {"input_shape": list(shape), "network_input_shape": list(network_shape)}
        return shapes | self.data.origin()


def _make_up_inputs(shape: BatchShape, like: Leaves, inputs: Leaves) -> Leaves:
    """Made-up inputs, as the loss makes them beside targets."""
    (_, targets) = made_up_rows(like, 1, len(inputs[0]))
    return shape.made_up((inputs[0].to(like[0].dtype), targets.to(inputs[0].device)))[:1]


def _name_meeting(model: nn.Module, rows: Sequence[Tensor]) -> str:
    from privlearn.core.clipping.separation.meeting import (
        name_meeting,  # for the words of a refusal
    )

    return name_meeting(model, rows)


def _pick_rows(rows: Rows) -> Leaves:
    """Some rows, evenly spread: those that a resumed run compares."""
    leaves: list[Tensor] = []
    for row in torch.linspace(0, len(rows) - 1, min(_COMPARED, len(rows)), device="cpu").long()[
        :, None
    ]:
        with suppress(Exception):  # a row that can't be fetched counts as absent
            leaves += rows.fetch(row)
    return tuple(leaves)


def _unknown(rows: Rows | None) -> Dataset:
    """What is known of rows that are fetched by index: their shape, and whose they are, if that was
    said.
    """
    assert rows is not None
    x = np.zeros((0, *rows.like[0].shape[1:]), np.float32)
    return Dataset(x, groups=getattr(rows, "groups", None), name="data that are fetched by index")


def _validation_rows(
    plan: Plan, validation: Dataset | None, data: Dataset, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The public rows that the plan's schedule looks at, if it does
    (`training.validation.public_rows`).

    Raises:
        BadInput: rows that nothing looks at, or that are not fit.
    """
    if plan.reacts:
        # for schedules that follow accuracies alone
        from privlearn.training.validation import public_rows

        return public_rows(plan, validation, data, x, y)
    if validation is not None:
        raise BadInput(
            "validation= is for validation schedules, and the schedule is "
            f"{spec(plan.schedule).partition(':')[0]}: nothing looks at these rows. Leave them "
            "out, or use a schedule that looks (validation:k=0.7)"
        )
    return None


def _rows_of_examples(plan: Plan, data: Dataset, rows: int, key: bytes) -> Tensor | None:
    """Where examples are persons: the rows that stand for each, shape (persons,
    rows_per_person).
    """
    if plan.rows_per_person is None:
        return None
    groups = np.asarray(data.groups)
    require_groups(data.name, groups, rows)
    return torch.from_numpy(rows_of_persons(groups, plan.rows_per_person, key))


@final
@dataclass(frozen=True, eq=False, repr=False)
class Batch(Whole):
    """One batch that was sampled, good for one step.

    Attributes:
        sample: which examples were drawn, private.
        rows: where they are fetched from.
        epoch: the number of its epoch.
        step: its number in the epoch.
        number: its number in the run.
        noise_multiplier: the noise of its release.
    """

    sample: Sample
    rows: Rows
    epoch: int
    step: int
    number: int
    noise_multiplier: float

    def require_unused(self, session: TrainingSession) -> None:
        """Raise `BadInput` unless the run is under way, and `SampleReused` if a step was taken on
        this batch.
        """
        session.require_open()
        if self.sample.used:
            raise SampleReused(
                f"a step was taken on {self} already: a batch is good for one step, because its "
                "sampling is accounted for once. Take the next batch of the epoch"
            )

    def __len__(self) -> int:
        raise TypeError(
            "how many examples a sampled batch has is private, as the examples are: sums are "
            "divided by the expected batch size, plan.sampling.expected_batch_size(examples). For "
            "the curator's eyes, len(batch.sample) says it"
        )

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return (
            f"Batch(epoch {self.epoch}, step {self.step}, noise multiplier "
            f"{self.noise_multiplier:.4g})"
        )


def require_batch(batch: object) -> None:
    """Raise `BadInput` for what is no batch of a run: its rows, say."""
    if not isinstance(batch, Batch):
        raise BadInput(
            f"step was given a {type(batch).__name__}: expected a batch of the run, as in `for "
            "batch in private.batches(): private.step(batch, loss)`. It was drawn at random, and "
            "is good for one step. The loss is called with its rows, as loss(model, rows)"
        )


@final
class Epoch:
    """One epoch of a run: its batches, each for one step.

    Attributes:
        number: from 0.
        noise_multiplier: the noise of its releases.
        steps: how many batches it has.
        done: whether all batches were handed out.
    """

    def __init__(
        self, session: TrainingSession, task: Task, number: int, noise_multiplier: float
    ) -> None:
        self.number, self.noise_multiplier, self.steps = number, noise_multiplier, task.steps
        self.done = False
        self._batches = self._draw(session, task)

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def __len__(self) -> int:
        return self.steps

    @property
    def begun(self) -> bool:
        """Whether a batch was asked for."""
        return inspect.getgeneratorstate(self._batches) != inspect.GEN_CREATED

    def require_done(self) -> None:
        """Raise `BadInput` if the next epoch is asked for before all batches of this one were."""
        if not self.done:
            raise BadInput(
                f"epoch {self.number} was left before its last batch: go through all of its "
                "batches, or end the run with run.result()"
            )

    def __repr__(self) -> str:
        return (
            f"Epoch({self.number}: {self.steps} batches, noise multiplier "
            f"{self.noise_multiplier:.4g})"
        )

    def _draw(self, session: TrainingSession, task: Task) -> Generator[Batch]:
        drawn = session.drawn(self.number, self.noise_multiplier, task.present)
        for step, sample, rows in _with_rows(drawn, task, self.number, session):
            session.keep(step)
            number = self.number * self.steps + step
            batch = Batch(sample, rows, self.number, step, number, self.noise_multiplier)
            yield batch
            if session.steps_done != number + 1:
                raise BadInput(
                    f"no step was taken on {batch}: call run.step(batch) once, before the next "
                    "batch is asked for"
                )
        session.end_batches()
        self.done = True


def _with_rows(
    drawn: Iterator[tuple[int, Sample]], task: Task, number: int, session: TrainingSession
) -> Iterator[tuple[int, Sample, Rows]]:
    """Each sample with its rows, which are fetched ahead where that gains time: those of this
    process, made afresh from a batch's key.
    """
    indexed = task.indexed
    by_workers = indexed is not None and bool(indexed.workers or indexed.fresh)
    if task.persons is not None or (on_processor(session.device) and not by_workers):
        for step, sample in drawn:
            yield step, sample, task.rows
        return
    waiting: deque[tuple[int, Sample]] = deque()  # drawn, and fetched ahead: a few

    def indices() -> Iterator[NDArray[np.int64]]:
        for step, sample in drawn:
            waiting.append((step, sample))
            yield session.world.read(sample.indices)

    if by_workers:
        fetched = ahead(task.rows, indices(), lambda place: task.row_key(number, waiting[-1][0]))
    else:
        from privlearn.training.pinned_rows import fetch_ahead  # for accelerators alone

        fetched = fetch_ahead(task.rows, indices(), session.device, task.divisor)
    for rows in fetched:
        yield *waiting.popleft(), rows
