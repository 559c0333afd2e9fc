"""In one backward pass only gradients of activations flow, and this file keeps what each parameter
needs on the way.

A torch function mode sees every operation of the model, wherever it is called from. An operation
that has a rule and uses a trained parameter runs as an autograd function of ours: its backward pass
hands on the gradient of its input, and keeps each example's gradient of its parameters, or what
tells their norms. The parameters' own gradients are never computed; if autograd nevertheless finds
one, a use went unseen, and the whole way is given up.

Activation checkpointing is switched off: parts that are computed again in the backward pass would
go unseen. Memory is bounded by the number of examples that are computed at once instead.

Operations are separated by examples through their place in the batch. So a pass is used only if its
program is known to keep examples apart (`separation`): the name of the program is formed on the
way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from privlearn.core.clipping.indices import Indices
from privlearn.core.clipping.kernels import Kernels
from privlearn.core.clipping.layout import Layout, NotLayerwise
from privlearn.core.clipping.parameters.derived import Derived, tensors_in
from privlearn.core.clipping.per_example import ExampleGradients, together
from privlearn.core.clipping.separation.axis_rules import ExampleAxis
from privlearn.core.clipping.separation.program import (
    METADATA,
    Constants,
    Program,
    asks_for_all,
    asks_for_any,
    note_question,
)
from privlearn.core.clipping.separation.tracker import AxisTracker
from privlearn.core.precision import full_precision


@final
@dataclass
class Call:
    """One call of an operation: turns its tensors into one row of positions for each example.

    Attributes:
        layout: where the examples are.
        examples: how many there are.
        copies: rows of the batch that belong to one example.
        dtype: of the parameters; gradients are computed in it, whatever the operation computes in.
        keep: takes what the backward pass finds: (parameter, block of its rows, gradients).
    """

    layout: Layout
    examples: int
    copies: int
    dtype: torch.dtype
    keep: Callable[[Tensor, slice | None, ExampleGradients], None]

    def grouped(self, t: Tensor) -> Tensor:
        """`t` as (examples, rows of one example, ...)."""
        if self.layout.axis == 1:
            t = t.transpose(0, 1)
        rows = self.copies * self.layout.rows
        if len(t) != self.examples * rows:
            raise NotLayerwise(
                f"an operation on {len(t)} rows: expected {rows} for each of {self.examples} "
                "examples"
            )
        typed = t.to(self.dtype) if t.is_floating_point() else t
        return typed.reshape(self.examples, rows, *typed.shape[1:])

    def single(self, t: Tensor) -> bool:
        """Whether each example is one row of `t`, of shape (examples, features)."""
        one = self.layout.axis == 0 and self.layout.rows * self.copies == 1
        return one and t.dim() == 2 and t.shape[0] == self.examples and t.dtype == self.dtype

    def positions(self, t: Tensor) -> Tensor:
        """`t` as (examples, positions, features)."""
        return self.grouped(t).flatten(1, -2)


class Operation(Protocol):
    """One operation with parameters, as one call has them."""

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Those that are trained."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        ...

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep the parameters' gradients in `call`; return the gradient of `x` if it is
        `wanted`.
        """
        ...


class OperationFunction(torch.autograd.Function):
    """An autograd function whose backward pass keeps each example's gradients; that of others is
    not known.
    """


class _Through(OperationFunction):
    """Runs an operation. The parameters are arguments so that autograd comes here on its way to
    them.
    """

    @staticmethod
    def forward(
        ctx: Any, operation: Operation, call: Call, x: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.operation, ctx.call = operation, call
        ctx.save_for_backward(x)
        out = operation.forward(x)
        # To autograd a tensor of its own, which may be changed in place.
        return torch.ops.aten._unsafe_view(out, list(out.shape)) if out._is_view() else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        with full_precision():
            back = ctx.operation.backward(ctx.call, x.detach(), g, ctx.needs_input_grad[2])
        return (None, None, back, *([None] * len(ctx.operation.parameters)))


#: A rule takes the arguments of the operation it is for, behind the capture, and answers like it,
#: or NotImplemented.
Rule = Callable[..., Any]


@final
@dataclass
class ParameterUses:
    """What the uses of parameters brought: for each, by identity, blocks of its rows and their
    gradients.
    """

    uses: dict[int, list[tuple[slice | None, ExampleGradients]]] = field(default_factory=dict)

    def keep(self, parameter: Tensor, rows: slice | None, gradients: ExampleGradients) -> None:
        """Add one use."""
        self.uses.setdefault(id(parameter), []).append((rows, gradients))

    def of(self, parameter: Tensor) -> ExampleGradients | None:
        """All uses of `parameter` together, or None if there was none."""
        uses = self.uses.pop(id(parameter), None)
        return together(uses, parameter.shape) if uses else None


@final
@dataclass(frozen=True, repr=False)
class BatchExamples:
    """The examples of the batch that a pass computes.

    Attributes:
        leaves: the tensors of the batch.
        examples: how many there are.
        copies: rows of the batch for each example.
    """

    leaves: Sequence[Tensor]
    examples: int
    copies: int = 1


@final
@dataclass(frozen=True)
class SeenCalls:
    """What is known of the calls of a model before a pass.

    Attributes:
        constants: tensors that are no part of the batch.
        layouts: of each call, in order; None to write down the shapes instead.
        shared: of each call, in order, whether it derives from trained parameters, and not from the
            batch.
        all_hold: the answer to questions whether something holds for all of the batch.
    """

    constants: Constants
    layouts: Sequence[Layout] | None = None
    shared: Sequence[bool] = ()
    all_hold: bool = False


class Capture(TorchFunctionMode):
    """While it is active, operations that have a rule and use a trained parameter run as ours.

    Args:
        rules: for each of torch's functions, its rule.
        trained: the trained parameters.
        kernels: for matrix products.
        batch: the examples.
        seen: what is known of the model's calls.
        tracker: follows the examples through the pass; None to only name the program.
        indices: looks at the indices of each call, where the device does not; None: all that runs
            in the pass is looked at, or nothing need be.

    Attributes:
        program: the name of what runs.
        trace: the name of the sequence of functions alone, which is the same for batches of other
            sizes.
    """

    def __init__(
        self,
        rules: dict[Any, Rule],
        trained: Sequence[Tensor],
        kernels: Kernels,
        batch: BatchExamples,
        seen: SeenCalls,
        tracker: AxisTracker | None = None,
        indices: Indices | None = None,
    ) -> None:
        super().__init__()
        self.kernels = kernels
        self.uses = ParameterUses()
        self.derived = Derived(trained)
        self.shapes: list[tuple[int, ...]] = []
        self.program = Program(seen.constants, batch.leaves, followed=tracker is not None)
        self.trace = 0
        #: Operations without a rule that were given a trained parameter, by its identity.
        self.unseen: dict[int, str] = {}
        self._rules, self._layouts = rules, seen.layouts
        self._examples, self._copies = batch.examples, batch.copies
        self._shared, self._calls = seen.shared if any(seen.shared) else (), 0
        self._trained = {id(p) for p in trained}
        self._all_hold, self._tracker = seen.all_hold, tracker
        self._indices = indices

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run `func` by its rule, or as it is."""
        kwargs = kwargs or {}
        self.trace = hash((self.trace, getattr(func, "__name__", "")))
        if func in METADATA:
            self._calls += 1
            return func(*args, **kwargs)
        self.program.call(func, args, kwargs)
        if self._indices is not None:
            with self._indices.at_call(func, args, kwargs):
                out = self._run(func, args, kwargs)
        elif self._tracker is None:
            out = self._run(func, args, kwargs)
        else:
            out = self._tracker.function(func, args, kwargs, self._run)
        self.program.number(out)
        return out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `func` gives."""
        name = getattr(func, "__name__", "")
        if asks_for_all(name, args):
            return self._all_hold and self._answer(args[0], usual=True)
        if asks_for_any(name, args):
            return self._answer(args[0], usual=False)
        self._calls += 1
        if self._shared and self._calls <= len(self._shared) and self._shared[self._calls - 1]:
            out = func(*args, **kwargs)
            self.derived.see(func, args, kwargs, out)
            note_question(name, args, out)
            return out
        rule = self._rules.get(func)
        if rule is not None:
            answer = rule(self, *args, **kwargs)
            if answer is not NotImplemented:
                return answer
        if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            raise NotLayerwise(f"there is no rule for what {func} does with rows")
        if name != "__get__":  # attributes such as its shape use nothing
            for part in tensors_in(args, kwargs):
                for root in self.derived.roots(part):
                    self.unseen.setdefault(root, name)
        out = func(*args, **kwargs)
        note_question(name, args, out)
        return out

    @property
    def follows(self) -> bool:
        """Whether the examples are followed through this pass."""
        return self._tracker is not None

    def _answer(self, answer: Tensor, *, usual: bool) -> bool:
        """The usual answer to a question about all examples, if it is the right one; of one example
        the right one.

        Raises:
            ValueError: it is not: some examples have to be computed apart from the rest.
        """
        if self._tracker is not None and self._examples > 1:
            return usual
        with torch._C.DisableTorchFunction():
            right = bool(answer)
        if right != usual and self._examples > 1:
            raise ValueError(
                "the model asks whether something holds for all or any examples of a batch"
            )
        return right

    def trains(self, *parameters: Tensor | None) -> bool:
        """Whether one of `parameters` is trained, or derived from what is."""
        for p in parameters:  # noqa: SIM110 - each operation asks several times, and a generator is three times slower
            if id(p) in self._trained or p in self.derived:
                return True
        return False

    def knows(self, *parameters: Tensor | None) -> bool:
        """Whether each of `parameters` is trained, or stays out of the gradient."""
        for p in parameters:
            if p is not None and not self.trains(p) and p.requires_grad:
                return False
        return True

    def call(self, x: Tensor, dtype: torch.dtype) -> Call:
        """What the next call of an operation has to know; `x` is its input."""
        number = len(self.shapes)
        self.shapes.append(tuple(x.shape))
        if self._layouts is None:
            layout = Layout(0, 1)
        elif number < len(self._layouts):
            layout = self._layouts[number]
        else:
            raise NotLayerwise("the model calls other operations than it did on made-up rows")
        if self._tracker is not None:
            axis = ExampleAxis(layout.axis, 1, layout.rows * self._copies)
            self._tracker.require_at(x, axis, "an operation with trained parameters")
        return Call(layout, self._examples, self._copies, dtype, self.uses.keep)

    def run(self, operation: Operation, x: Tensor, low: bool = True) -> Tensor:
        """Run `operation` on `x`.

        Args:
            operation: with the parameters of this call.
            x: its input.
            low: whether autocast runs it in its low precision; otherwise in single precision.
        """
        if self._tracker is not None:
            self._tracker.note_operation(operation)
        call = self.call(x, operation.parameters[0].dtype)
        leaves = [self.derived.leaf(p) for p in operation.parameters]
        if not torch.is_autocast_enabled(x.device.type):
            return cast(Tensor, _Through.apply(operation, call, x, *leaves))  # type: ignore[no-untyped-call]
        if x.is_floating_point():
            x = x.to(torch.get_autocast_dtype(x.device.type) if low else torch.float32)
        with no_autocast(x):
            return cast(Tensor, _Through.apply(operation, call, x, *leaves))  # type: ignore[no-untyped-call]


@final
class _Once:
    """In place of checkpoints that begin a backward pass of their own."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *args: Any) -> Any:
        """What the part gives."""
        return function(*args)


def _around(*args: Any, **kwargs: Any) -> Iterator[None]:
    """What PyTorch does before and after a part that is computed again: nothing."""
    yield


#: What `torch.utils.checkpoint.checkpoint` calls for its two kinds. PyTorch has no public switch;
#: without these names checkpoints stay as they are.
_INSTEAD: dict[str, Any] = {
    "CheckpointFunction": _Once,
    "_checkpoint_without_reentrant_generator": _around,
}


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """For the block, what is checkpointed is computed once, like everything else."""
    held = {name: getattr(checkpoint, name) for name in _INSTEAD if hasattr(checkpoint, name)}
    for name in held:
        setattr(checkpoint, name, _INSTEAD[name])
    try:
        yield
    finally:
        for name, original in held.items():
            setattr(checkpoint, name, original)


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Types are what they are for the block. Where there is no autocast anyway, this costs
    nothing.
    """
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
