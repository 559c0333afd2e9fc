"""The module, the optimizer and the loader that a script in Opacus's form is given, on one run of
privlearn.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from privlearn._checks import quoted
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.parameters.frozen import FrozenState
from privlearn.core.rows import nested
from privlearn.data.padding import Padding
from privlearn.errors import BadInput, NotPerExample
from privlearn.opacus.logical_batch import LogicalBatch
from privlearn.opacus.planned_settings import NOISE, NORM, PlannedSettings, ScriptedRun
from privlearn.opacus.recorded import Recorded, Turn, Watch, computed
from privlearn.opacus.saved_loss import flattened_loss
from privlearn.opacus.script_checkpoint import ScriptCheckpoint
from privlearn.opacus.script_loss import ScriptLoss, mixing, taken_apart
from privlearn.opacus.strange_attributes import (
    RETURNED,
    GradientToCome,
    refuse_reading,
    refuse_writing,
)
from privlearn.training.clip_only import ClipOnlyRun
from privlearn.training.task import Batch, Epoch

#: The public length of rows in a first batch: of tokens and images, and of sequences of floats.
_LENGTHS = (64, 1024)
_FIRST_LENGTH = (
    "The rows have different lengths. The first batch is handed out at the public length {}, from "
    "which a number of the first loss may follow. If the model needs another one, let collate_fn "
    "pad all rows to one length, or use pv.make_private"
)


@final
class ScriptRun:
    """A run whose steps are taken by a script in Opacus's form.

    Args:
        run: whose steps the script takes.
        remake: makes it again, before the first batch: see `PlannedSettings`.
        batch_first: whether the script expects rows along the first axis of inputs; else along the
            second.
        kept_in: a file in which a new run is kept from its first step on.

    Attributes:
        planned: the noise multiplier and the clipping norm, which the script may set before the
            first batch.
        divisor: the expected batch size, which sums are divided by.
        is_last_step_skipped: whether the script's last step was that of a physical batch that is
            not the last one of its batch: no step was taken.
        gradients: what the last step left that zero_grad() was not called for: "released" ones, or
            none, "skipped".
    """

    def __init__(
        self,
        run: ScriptedRun,
        remake: Callable[..., ScriptedRun],
        *,
        batch_first: bool,
        kept_in: str | Path | None = None,
    ) -> None:
        self.planned, self._batch_first = PlannedSettings(run, remake), batch_first
        self._file: ScriptCheckpoint | None = None
        self._kept_in, self._goes_on = kept_in, False
        self._is_closed = False
        self.divisor = run.plan.sampling.expected_batch_size(run.examples)
        self._fixed: FrozenState | None = None  # what the model holds beside trained weights
        self._watch = Watch()
        self._batch: LogicalBatch | None = None
        self._first_length: int | None = None  # that rows were brought to
        self._turn: Turn | None = None
        self._loss: ScriptLoss | None = None
        self.is_last_step_skipped = False
        self.gradients: str | None = None
        self._epochs: Iterator[Epoch] | None = None
        self._current: Iterator[Batch] = iter(())

    @property
    def run(self) -> ScriptedRun:
        """The run, by a plan that has what the script set so far."""
        return self.planned.run

    def epoch(self, most: int | None = None) -> Iterator[Any]:
        """The batches of the next epoch, or what is left of one that was left, as the script's
        loader would give them.

        Args:
            most: rows that are handed out at once; None: a batch is handed out whole.

        Raises:
            BadInput: all epochs are over, or no step was taken on a batch.
        """
        if self._is_closed or self.run.state == "over":
            raise self._is_over()
        if self._turn is not None and self._turn.loss is not None:
            raise _without_step()
        if self._batch is None:
            self._draw_first()
        while self._batch is not None or self._draw():
            yield self._hand_out(most)
            if self._turn is not None and self._loss is None and self._turn.loss is None:
                yield from self._rows_in_order(most)
                return
            if self._turn is not None:
                raise _without_step()
        self._begin_next()

    def close(self, error: BaseException | None = None) -> None:
        """End the run, by an error or not: what was not charged is given back."""
        self._is_closed = True
        self.run.__exit__(type(error), error)

    def _rows_in_order(self, most: int | None) -> Iterator[Any]:
        """The rest of a pass in which a script takes no step, before its first one: rows to look
        at, in the order of the data. They are on no tape, so no step can be taken on them, and the
        batch that was drawn comes again.
        """
        assert self._batch is not None
        rows, padding = self._batch.batch.rows, getattr(self._batch.batch.rows, "padding", None)
        size = most or max(1, round(self.divisor))
        for start in range(size, len(rows), size):
            numbers = np.arange(start, min(start + size, len(rows)))
            leaves, _ = _together(self._batch.batch, numbers, padding, None)
            yield nested(self._as_the_script(leaves, rows.inputs), rows.structure)

    def _as_the_script(self, leaves: list[Any], inputs: int) -> list[Any]:
        """With the rows of inputs along the axis on which the script expects them."""
        if self._batch_first:
            return leaves
        turned = [leaf.transpose(0, 1) if leaf.dim() > 1 else leaf for leaf in leaves[:inputs]]
        return turned + leaves[inputs:]

    def _draw(self) -> bool:
        """Draw the next batch of the epoch, if there is one."""
        batch = next(self._current, None)
        if batch is not None:
            local_examples = self.run.world.own(batch.sample.indices)
            self._batch = LogicalBatch(batch, local_examples)
        return batch is not None

    def _draw_first(self) -> None:
        """Draw the next batch of the run, be it of the next epoch."""
        if self._draw():
            return
        self._begin_next()
        if not self._draw():
            raise self._is_over()

    def _is_over(self) -> BadInput:
        epochs = f"the run has {self.run.plan.epochs} epochs"
        if self.run.steps_done < self.run.steps:
            return BadInput(
                f"{epochs}, and was closed or published in number {self.run.epoch + 1}: no batch "
                "follows. Make another PrivacyEngine, or take all batches before publish()"
            )
        return BadInput(
            f"{epochs}, and all of them are over: what they cost is spent. "
            + (
                "It goes on with a saved one: count passes by `for epoch in "
                "range(engine.run.epoch, epochs)`"
                if self._goes_on
                else "Give make_private as many epochs= as there are passes over the loader"
            )
        )

    def _begin_next(self) -> None:
        """End an epoch, and with the last one the run."""
        self._epochs = iter(self.run) if self._epochs is None else self._epochs
        epoch = next(self._epochs, None)
        self._current = iter(()) if epoch is None else iter(epoch)
        if epoch is not None:
            self.planned.begin_epoch(epoch.number)

    def _hand_out(self, most: int | None) -> Any:
        """The rows of a batch, or some of them, recorded, in the nest that the collate function
        makes.
        """
        assert self._batch is not None
        self.planned.require_planned(self._batch.batch.epoch)
        batch, indices = self._batch.batch, self._batch.next_rows(most)
        self._fixed = self._fixed or FrozenState(self.run.model)
        padding = getattr(batch.rows, "padding", None)
        # without noise nothing has to be hidden
        is_first = self._loss is None and self.planned.adds_noise
        self._first_length = _public_length(batch.rows.like, padding) if is_first else None
        leaves, rows = _together(batch, indices, padding, self._first_length)
        if is_first:
            expected = max(1, round(self.divisor / self.run.world.size))
            leaves, rows = _at_size(leaves, min(most or expected, expected))
        self._turn = turn = Turn(rows, self._watch, self._on_backward)
        recorded = [turn.note(number, (), {}, leaf) for number, leaf in enumerate(leaves)]
        return nested(self._as_the_script(recorded, batch.rows.inputs), batch.rows.structure)

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's output; of a batch of the run it is computed without a graph, and what the
        model holds stays.
        """
        turn, model = self._turn, self.run.model
        recorded = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Recorded)]
        if any(leaf.turn.is_open and leaf.turn is not turn for leaf in recorded):
            raise BadInput(
                "the model was called with a batch of another loader, or an old one: expected the "
                "batch of its own loader on which the next step is taken. For several models that "
                "learn from one batch use pv.make_private"
            )
        with nullcontext() if self._fixed is None or turn is None else self._fixed.holding():
            try:
                return computed(model, args, kwargs, None)
            except Exception as error:
                if self._first_length is not None:
                    error.add_note(_FIRST_LENGTH.format(self._first_length))
                raise

    def _on_backward(self, turn: Turn, loss: Recorded, gradient: Any) -> None:
        if turn is not self._turn:
            raise BadInput(
                "backward() was called for a batch on which the step was taken already: a batch is "
                "good for one step. Compute the loss of the next batch"
            )
        if turn.loss is not None:
            raise BadInput(
                "backward() was called twice for one batch: each example's gradient is clipped "
                "once, for all that it adds. Add the losses up and call (loss1 + "
                "loss2).backward(), before optimizer.step()"
            )
        turn.loss = taken_apart(turn, loss, gradient)
        GradientToCome.put_in(self._trained())

    def _trained(self) -> list[nn.Parameter]:
        return [each for each in self.run.model.parameters() if each.requires_grad]

    def forget_gradients(self) -> None:
        """zero_grad() was called: what the last step released is forgotten."""
        self.gradients = None
        GradientToCome.remove_from(self._trained())

    def require_loss(self) -> None:
        """Raise `BadInput` unless `backward` was called of a loss of the batch in hand."""
        turn = self._turn
        if turn is not None and turn.loss is not None:
            return
        if turn is None and self._loss is not None:
            raise BadInput(
                "optimizer.step() was called again, or without a new batch: the step on the last "
                "batch was taken, and a batch is good for one step. Leave out the second step(), "
                f"and take batches from the returned loader: {RETURNED}"
            )
        raise BadInput(
            "optimizer.step() was called without a loss of a batch of the private loader: "
            "loss.backward() has to come before it, of what the returned model gives for a batch "
            f"of the returned loader. Use {RETURNED}"
        )

    def step(self) -> None:
        """Clip, charge, noise, and the optimizer's own step; of a physical batch that is not the
        last one of its batch, nothing.
        """
        self.require_loss()
        turn, in_hand = self._turn, self._batch
        assert turn is not None
        assert in_hand is not None
        self.planned.require_planned(in_hand.batch.epoch)
        loss: ScriptLoss = turn.loss
        if self._loss is None or not loss.same_as(self._loss):
            self._require_new(loss)
        else:
            loss = self._loss
        self.is_last_step_skipped = not in_hand.is_last()
        if self.is_last_step_skipped:
            in_hand.pass_rows()
            self._end(turn, loss)
            return
        batch = in_hand.batch
        kept_in, self._kept_in = self._kept_in, None
        if kept_in is not None:
            flattened_loss(loss, {})  # one that can't be saved is refused before a step is taken
        try:
            self.run.step(batch, loss)
        except (BadInput, NotPerExample) as error:
            if self._loss is None and loss.mixes_rows():
                raise mixing() from error
            raise
        self._batch = None
        self._end(turn, loss)
        if kept_in is not None:
            self._write(ScriptCheckpoint(kept_in, by_itself=True))

    def _end(self, turn: Turn, loss: ScriptLoss) -> None:
        """The script is through with what it was handed."""
        GradientToCome.remove_from(self._trained())
        turn.close()
        self._turn, self._loss = None, loss

    def _require_new(self, loss: ScriptLoss) -> None:
        """Refuse a loss whose form or numbers may follow from rows that the script has seen."""
        if self._loss is not None:
            raise BadInput(
                "a number or a tensor in the loss is another than for the batch before: it may "
                "follow from the batch's rows, and would couple them. Compute it from the batch "
                "with PyTorch's operations; for one that changes with time use pv.make_private"
                if loss.same_as(self._loss, numbers=False)
                else "the loss has another form than before: which one a batch gets may follow "
                "from how many rows or physical batches there were. Compute the loss of all "
                "batches alike; for one that changes with time use pv.make_private"
            )
        if loss.is_of_model and self._fixed is not None and self._batch is not None:
            with self._fixed.holding():
                loss.require_mean(self.run.model, self._batch.batch.rows.like)
        if loss.late:
            raise BadInput(
                "the loss was made after a number was read out of a batch (item(), print, numpy, "
                "no_grad), from which it could follow. For the first batch compute the loss first, "
                "and read numbers then; for a loss that changes use pv.make_private"
            )

    def save(self, path: str | Path | io.IOBase, values: Mapping[str, Any]) -> None:
        """Keep the run in a file, from here on, with values of the script.

        Raises:
            BadInput: no step was taken yet, one is under way, or the run is kept in another file;
                or something can't be saved.
        """
        if isinstance(self.run, ClipOnlyRun):
            raise BadInput(
                "save_checkpoint was called, and noise_multiplier is 0: a run without noise is for "
                "finding faults, and is not saved. torch.save(module.state_dict(), FILE) keeps the "
                "weights"
            )
        if self.run.world.size > 1:
            raise BadInput(
                "save_checkpoint was called, and there are several processes: it takes one. "
                "torch.save(module.state_dict(), FILE) keeps the weights; to go on with a run on "
                "several use pv.make_private(checkpoint=FILE)"
            )
        if self._loss is None or self._batch_is_begun():
            raise BadInput(
                "save_checkpoint was called before the first step, or between backward() and the "
                "step of a whole batch: a checkpoint holds the run as it is after a step. Call it "
                "after optimizer.step(), at the end of an epoch for example"
            )
        path = _path_of(path)
        file = self._file or ScriptCheckpoint(path)
        if file.path != path:
            raise BadInput(
                f"the run is kept in {quoted(str(file.path))}, and a second file would let its "
                "steps be taken twice: give save_checkpoint the same path each time"
            )
        file.values, file.by_itself = values, False
        self._write(file)

    def _write(self, file: ScriptCheckpoint) -> None:
        """Write a file, in which the run is kept from here on."""
        file.loss, file.microbatch = self._loss, self.run.config.microbatch
        if self._file is None:
            self.run.keep_in(file)
            self._file = file
        file.asked = True
        try:
            self.run.save_checkpoint()
        finally:
            file.asked = False

    def _batch_is_begun(self) -> bool:
        return (self._batch is not None and self._batch.begun) or (
            self._turn is not None and self._turn.loss is not None
        )

    def load(self, path: str | Path | io.IOBase) -> Mapping[str, Any]:
        """Go on with the run in a file, in place of the one that was made; the script's values.

        Raises:
            BadInput: a batch was drawn already, or the file holds another run, or none.
        """
        if isinstance(self.run, ClipOnlyRun):
            raise BadInput(
                "load_checkpoint was called, and noise_multiplier is 0: a run without noise is "
                "not saved. Give the noise of the run that is to go on"
            )
        path = _path_of(path)
        if self._file is not None and self._file.path == path and self._epochs is None:
            return self._file.values  # make_private was given the file
        if self.run.state != "not begun":
            raise BadInput(
                "load_checkpoint was called after a batch was drawn: expected the engine as "
                "make_private left it, since a run goes on with the noise that it would have had. "
                "Call it before the first pass over the loader"
            )
        file = ScriptCheckpoint.load(path)
        config = self.run.config
        self.planned.remake(**file.resumed({"config": config}))
        try:
            self.go_on(file)
        except BaseException:
            self.planned.remake(config=config)  # the optimizer serves the run that was made last
            raise
        return file.values

    def go_on(self, file: ScriptCheckpoint) -> None:
        """Continue the run in a file, with which it was made."""
        self.run.begin()
        self.planned.begin_epoch(self.run.epoch)
        self._loss, self._file, self._goes_on = file.loss, file, True
        self._kept_in = None

    def compute_at_once(self, rows: int) -> None:
        """Compute so many examples at once, from the first step on.

        Raises:
            BadInput: a step was taken with another number.
        """
        if self.run.config.microbatch != rows and self._loss is not None:
            raise BadInput(
                f"max_physical_batch_size is {rows}, and steps were taken with another number: "
                "give microbatch= to make_private, or one number for the whole run"
            )
        self.run.set_microbatch(rows)


def _path_of(path: str | Path | io.IOBase) -> Path:
    """The path of a checkpoint; a stream is refused."""
    if isinstance(path, io.IOBase):
        raise BadInput(
            f"path is a {type(path).__name__}: expected the path of a file, beside which the run "
            "notes what noise was drawn for, so that its steps are taken once. "
            "torch.save(module.state_dict(), STREAM) keeps the weights"
        )
    return Path(path)


def _without_step() -> BadInput:
    return BadInput(
        "no step() of the returned optimizer was taken on the batch before: call loss.backward(), "
        "step() and zero_grad() for every batch, an empty one, too. To add up K batches: K times "
        "the batch_size, in a BatchMemoryManager. To evaluate, take a loader of other, public rows"
    )


def _public_length(row: Sequence[Tensor], padding: Padding | None) -> int | None:
    """The length that rows of different lengths have in the first batch; None if all have one.

    It follows from types and axes alone: tokens and images are shorter than sequences of floats.
    """
    if padding is None or not padding.varies:
        return None
    varying = [(leaf, axes) for leaf, axes in zip(row, padding.axes, strict=True) if axes]
    long = all(leaf.is_floating_point() and len(axes) == 1 for leaf, axes in varying)
    return _LENGTHS[long]


def _together(
    batch: Batch, indices: NDArray[np.int64], padding: Padding | None, length: int | None
) -> tuple[list[Tensor], int]:
    """Rows of a batch, padded to the longest, or brought to a length; one that can't be made is
    left out.
    """
    rows: Any = batch.rows
    fetched = []
    for number in indices.tolist():
        with suppress(Exception):
            fetched.append(rows.fetch(torch.tensor([number], device="cpu")))
    if padding is not None:
        examples = fetched or [tuple(rows.like)]
        equal = (
            padding.to_longest(examples) if length is None else padding.to_length(examples, length)
        )
        return [torch.cat(leaves) for leaves in zip(*equal, strict=True)], len(fetched)
    if not fetched:
        return list(rows.like), 0
    return [torch.cat(leaves) for leaves in zip(*fetched, strict=True)], len(fetched)


def _at_size(leaves: list[Tensor], size: int) -> tuple[list[Tensor], int]:
    """As many rows as are expected, some again or left out: the numbers of a first loss may follow
    from how many. (For the same reason they have a public length.)

    The step computes each example's loss from its own row, so no row counts twice in it.
    """
    rows = len(leaves[0])
    if not rows:
        return [leaf.new_zeros(size, *leaf.shape[1:]) for leaf in leaves], size
    places = torch.arange(size, device="cpu") % rows
    return [leaf[places.to(leaf.device)] for leaf in leaves], size


@final
class PrivateModule(nn.Module):
    """A model whose outputs for a batch of the loader are recorded; else it is the model,
    `_module`.
    """

    def __init__(self, script: ScriptRun) -> None:
        super().__init__()
        self._module = script.run.model
        self.__dict__["_script"] = script

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output."""
        return self.__dict__["_script"].forward(args, kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of the model: what the last step released is forgotten."""
        self.__dict__["_script"].forget_gradients()
        self._module.zero_grad(set_to_none)

    def to_standard_module(self) -> nn.Module:
        """The model that was given, which is trained in place."""
        return self._module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_module"), name)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """A copy of the model alone: a run can't be copied."""
        return copy.deepcopy(self._module, memo)


def _has_gradient(parameter: nn.Parameter) -> bool:
    return not isinstance(parameter.grad, GradientToCome | None)


#: What a script, or torch, may set on a private optimizer.
_SETTABLE = {NOISE, NORM, "defaults", "step"}


@final
class PrivateOptimizer(torch.optim.Optimizer):
    """An optimizer whose step is a step of the run: parameters, state and groups are those of the
    one that was given.

    Attributes:
        original_optimizer: that one.
        expected_batch_size: what sums are divided by.
        planned: the noise multiplier and the clipping norm, for schedulers.
    """

    original_optimizer: torch.optim.Optimizer
    planned: PlannedSettings
    step_hook: Callable[[PrivateOptimizer], Any] | None
    _script: ScriptRun

    def __init__(self, script: ScriptRun, optimizer: torch.optim.Optimizer) -> None:
        vars(self).update(
            original_optimizer=optimizer,
            expected_batch_size=script.divisor,
            planned=script.planned,
            defaults=optimizer.defaults,
            step_hook=None,
            _script=script,
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of the optimizer that was given."""
        groups: list[dict[str, Any]] = self.original_optimizer.param_groups
        return groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """That of the optimizer that was given."""
        return self.original_optimizer.state

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return [
            each for group in self.param_groups for each in group["params"] if each.requires_grad
        ]

    @property
    def accumulated_iterations(self) -> int:
        """How many batches there are to a step: one."""
        return 1

    def attach_step_hook(self, fn: Callable[[PrivateOptimizer], Any]) -> None:
        """Call a function with this optimizer before each of its steps, when gradients are clipped,
        noised and charged. A second one takes the place of the first.
        """
        vars(self)["step_hook"] = fn

    def register_step_pre_hook(self, hook: Any) -> Any:
        """As of the optimizer that was given."""
        return self.original_optimizer.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Any) -> Any:
        """As of the optimizer that was given."""
        return self.original_optimizer.register_step_post_hook(hook)

    def __getattr__(self, name: str) -> Any:
        raise refuse_reading("optimizer", name)

    def __setattr__(self, name: str, value: Any) -> None:
        # torch's schedulers wrap `step`, and note in private names that they did
        if not (name in _SETTABLE or name.startswith("_")):
            raise refuse_writing("optimizer", name, value)
        super().__setattr__(name, value)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the epoch; it may be set before the first batch."""
        return self.planned.value(NOISE)

    @noise_multiplier.setter
    def noise_multiplier(self, value: float) -> None:
        self.planned.set(NOISE, value)

    @property
    def max_grad_norm(self) -> float:
        """The clipping norm of the epoch; it may be set before the first batch."""
        return self.planned.value(NORM)

    @max_grad_norm.setter
    def max_grad_norm(self, value: float) -> None:
        self.planned.set(NORM, value)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of the optimizer that was given: what the last step released is forgotten."""
        self._script.forget_gradients()
        self.original_optimizer.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Clip, charge, noise and descend, by the loss that `backward` was called of; a closure is
        called first.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._script.require_loss()
        self._require_cleared()
        released: list[Tensor | None] = []

        def keep(*_: Any) -> None:
            if self.step_hook is not None:
                self.step_hook(self)
            released.extend(
                None if each.grad is None else each.grad.clone() for each in self.params
            )

        hook = self.original_optimizer.register_step_pre_hook(keep)
        try:
            self._script.step()
        finally:
            hook.remove()
        self._script.gradients = "released" if released else "skipped"
        for parameter, gradient in zip(self.params, released, strict=False):
            parameter.grad = gradient
        return loss

    def _require_cleared(self) -> None:
        """Refuse a step whose gradients a script did not keep apart from those of the last one."""
        left = self._script.gradients
        if left == "skipped" or (left == "released" and any(map(_has_gradient, self.params))):
            raise BadInput(
                "zero_grad() was not called since the last step: gradients of several steps are "
                "not added up. Call optimizer.zero_grad() once for each batch, before backward() "
                "or after step()"
            )

    @property
    def is_last_step_skipped(self) -> bool:
        """Whether the last step was that of a physical batch that is not the last one of its
        batch: no step was taken, and no scheduler may be called.
        """
        return bool(self._script.is_last_step_skipped)

    _is_last_step_skipped = is_last_step_skipped

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Refused: a loader in a `BatchMemoryManager` decides which steps are skipped. In a run
        without noise the optimizer leaves the next step out.

        Raises:
            BadInput: the run adds noise.
        """
        run = self._script.run
        if isinstance(run, ClipOnlyRun):
            run.skips.append(do_skip)
            return
        raise BadInput(
            "signal_skip_step was called: the price of a step is that of the batch that was drawn, "
            "so no other steps can be skipped. Give the DataLoader the whole batch_size, and take "
            "its batches from BatchMemoryManager(max_physical_batch_size=...), which skips itself"
        )

    def state_dict(self) -> Any:
        """That of the optimizer that was given."""
        return self.original_optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Load it there."""
        self.original_optimizer.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"PrivateOptimizer({self.original_optimizer!r})"


@final
class PrivateLoader:
    """The batches of a run, epoch by epoch: each pass over it is the next epoch. What it yields is
    private.

    Attributes:
        original_loader: the loader that was given.
        dataset: the rows.
        batch_size: the expected one.
    """

    def __init__(self, script: ScriptRun, loader: Any) -> None:
        self._script, self.original_loader, self.dataset = script, loader, loader.dataset
        self.batch_size = max(1, round(script.divisor))

    @property
    def script(self) -> ScriptRun:
        """The script's run, of which the batches are."""
        return self._script

    def __iter__(self) -> Iterator[Any]:
        return self._script.epoch()

    def __getattr__(self, name: str) -> Any:
        raise refuse_reading("loader", name)

    def __len__(self) -> int:
        return self._script.run.steps_per_epoch

    @property
    def sample_rate(self) -> float:
        """The expected share of the rows in a batch."""
        return float(self._script.divisor / self._script.run.examples)

    @property
    def ledger(self) -> Ledger:
        """What its run is charged to."""
        return self._script.run.ledger
