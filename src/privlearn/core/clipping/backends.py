"""Three ways compute the gradient of every example: operation by operation, with `torch.func.vmap`,
and one at a time.

The loop is the truth that the other two are held against (`agreement`), and the last resort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from privlearn.core.clipping.capture import (
    BatchExamples,
    Capture,
    OperationFunction,
    SeenCalls,
    without_checkpoints,
)
from privlearn.core.clipping.indices import Indices
from privlearn.core.clipping.kernels import Kernels, UnusedKernels
from privlearn.core.clipping.layout import Layout, NotLayerwise
from privlearn.core.clipping.losses import (
    PAIR,
    BatchShape,
    Leaves,
    Loss,
    Losses,
    losses_of,
    require_one_each,
)
from privlearn.core.clipping.model_check import perturbed
from privlearn.core.clipping.operations import RULES
from privlearn.core.clipping.operations.sequential import FusedLayers
from privlearn.core.clipping.parameters.derived import CallShapes, shared_calls
from privlearn.core.clipping.parameters.frozen import FrozenState
from privlearn.core.clipping.per_example import Dense, ExampleGradients
from privlearn.core.clipping.randomness import Recorder, RowRandom
from privlearn.core.clipping.row_norms import Assumed
from privlearn.core.clipping.separation.axis_rules import ExampleAxis
from privlearn.core.clipping.separation.program import Constants
from privlearn.core.clipping.separation.tracker import (
    AxisTracker,
    ConstantValues,
    Coupled,
    CoupledElsewhere,
)
from privlearn.core.devices import PROCESSOR, on_processor
from privlearn.core.memory import is_of_memory
from privlearn.core.precision import callers_precision
from privlearn.errors import PrivlearnError, first_line

#: Gradients by parameter name (a parameter that took no part is missing), and each example's loss,
#: shape (examples,).
Gradients = tuple[dict[str, ExampleGradients], Tensor]


@final
@dataclass(frozen=True)
class Problem:
    """What is differentiated.

    Attributes:
        model: per-example.
        loss: of a batch, of outputs and targets or of the model and the batch (`clipping.losses`).
        parameters: the trained ones by name, a tied one once.
        copies: rows of inputs and targets for each example; its loss is their mean.
        autocast: the type that the model runs in, or None for that of its parameters.
        dtype: the type that inputs are brought to, or None to leave them as they are.
        random: what the examples draw.
        fixed: what the model and the loss hold beside trained parameters: after each computation it
            is what it was.
        shape: how the tensors that are computed with make up a batch.
        in_step: what a forward pass is made in, which leads to a backward pass.
        any_process: whether something holds in any of the processes that make a pass together.
        indices: looks at indices, where the device does not.
    """

    model: nn.Module
    loss: Loss
    parameters: dict[str, nn.Parameter]
    copies: int = 1
    autocast: torch.dtype | None = None
    dtype: torch.dtype | None = None
    random: RowRandom = field(default_factory=RowRandom)
    fixed: FrozenState | None = None
    shape: BatchShape = PAIR
    in_step: Callable[[], AbstractContextManager[object]] = nullcontext
    any_process: Callable[[bool], bool] = bool
    indices: Indices = field(default_factory=partial(Indices, PROCESSOR))

    @property
    def modules(self) -> list[nn.Module]:
        """The model, and the loss or what it is a method of, if that is a module."""
        owners = (self.loss, *(getattr(self.loss, name, None) for name in ("__self__", "func")))
        return [self.model, *(owner for owner in owners if isinstance(owner, nn.Module))]

    @contextmanager
    def computing(
        self, draws: AbstractContextManager[object], *, looked_at: bool = False
    ) -> Iterator[None]:
        """A block in which random numbers are drawn as `draws` says, and after which no state is
        left behind.

        All indices in it are looked at, unless they are `looked_at` call by call.
        """
        looking = nullcontext() if looked_at else self.indices.looking()
        try:
            with draws, looking, without_checkpoints():
                yield
        finally:
            if self.fixed:
                self.fixed.restore()

    def losses(self, losses: Tensor, rows: int) -> Tensor:
        """One loss for each example, of those of its rows.

        Raises:
            NotPerExample: there is not one for each row.
        """
        by_row = require_one_each(losses, rows)
        return by_row if self.copies == 1 else by_row.unflatten(0, (-1, self.copies)).mean(1)  # type: ignore[no-untyped-call]

    def forward(self, *leaves: Tensor) -> Tensor:
        """The losses of rows."""
        with self.casting(leaves[0]):
            return self.losses(losses_of(self.model, self.loss, leaves, self.shape), len(leaves[0]))

    def inputs(self, leaves: Sequence[Tensor]) -> Leaves:
        """Rows as the model takes them."""
        if self.dtype is None:
            return tuple(leaves)
        inputs = self.shape.inputs
        return *(
            leaf.to(self.dtype) if leaf.is_floating_point() else leaf for leaf in leaves[:inputs]
        ), *leaves[inputs:]

    @contextmanager
    def in_double(self) -> Iterator[Problem]:
        """The same in double precision and at perturbed weights, for the block: what is there is
        put back afterwards.

        At initial weights, a layer that begins at zero would hide all that lies behind it.
        """
        parameters = [p for p in self.model.parameters() if p.is_floating_point()]
        held = [(p, p.data) for p in parameters]
        buffers = [
            (m, n, b) for m in self.model.modules() for n, b in m._buffers.items() if b is not None
        ]
        try:
            for parameter, data in held:
                parameter.data = perturbed(data.double())
            for module, name, buffer in buffers:
                module._buffers[name] = buffer.double() if buffer.is_floating_point() else buffer
            yield replace(
                self, autocast=None, dtype=torch.float64, fixed=FrozenState(self.model, self.loss)
            )
        finally:
            for parameter, data in held:
                parameter.data = data
            for module, name, buffer in buffers:
                module._buffers[name] = buffer

    def casting(self, x: Tensor) -> AbstractContextManager[object]:
        """Autocast, if it is asked for."""
        return torch.autocast(x.device.type, self.autocast) if self.autocast else nullcontext()


def layouts_of_draws(
    problem: Problem, batches: Sequence[Leaves], run: Callable[..., object] | None = None
) -> list[Layout]:
    """Where the examples are in what each call that draws random numbers draws, when `run` computes
    two batches.

    Raises:
        NotLayerwise: a call draws for all examples at once.
    """
    records = []
    for leaves in batches:
        records.append(Recorder())
        with problem.computing(records[-1]):
            (run or problem.forward)(*leaves)
    one, other = (record.shapes for record in records)
    if len(one) != len(other):
        raise NotLayerwise(
            "the model draws more or fewer random numbers for a batch of another size"
        )
    sizes = (len(batches[0][0]), len(batches[1][0]))
    return [Layout.between(*shapes, sizes) for shapes in zip(one, other, strict=True)]


@final
@dataclass
class SeenModel:
    """What was seen of a model on made-up rows.

    Attributes:
        calls: where the examples are in each operation's input, and what is no part of a batch.
        trace: the name of the sequence of all functions.
        drawn: where the examples are in what each call that draws random numbers draws.
        fused: the containers whose layers are computed as one operation.
        verdicts: of the programs that were checked, by name: empty where examples stay apart, and
            else why not.
    """

    calls: SeenCalls
    trace: int
    drawn: list[Layout]
    fused: FusedLayers
    verdicts: dict[int, str] = field(default_factory=dict)


def layouts(problem: Problem, kernels: Kernels, batches: Sequence[Leaves]) -> SeenModel:
    """Where the examples are in each operation's input: what explains its shapes at two batch
    sizes.

    Raises:
        NotLayerwise: nothing does, or the examples of a batch are not kept apart.
    """
    try:
        return _layouts(problem, kernels, batches, all_hold=False)
    except PrivlearnError:
        raise
    except Exception:  # a model that refuses rows unless something holds for all of them
        return _layouts(problem, kernels, batches, all_hold=True)


def _layouts(
    problem: Problem, kernels: Kernels, batches: Sequence[Leaves], *, all_hold: bool
) -> SeenModel:
    def compute(leaves: Leaves, *within: AbstractContextManager[object]) -> None:
        clones = [leaf.clone() for leaf in problem.inputs(leaves)]  # the model may write into them
        with problem.computing(torch.enable_grad()), ExitStack() as stack:
            for context in within:
                stack.enter_context(context)
            problem.forward(*clones)

    trained, shapes = (
        list(problem.parameters.values()),
        [CallShapes(all_hold=all_hold) for _ in batches],
    )
    fused = FusedLayers(problem.model, trained, [partial(compute, leaves) for leaves in batches])
    for leaves, call_shapes in zip(batches, shapes, strict=True):
        compute(leaves, call_shapes, fused.under(call_shapes))
    shared = shared_calls(*shapes)
    constants = Constants(*problem.modules)
    captures: list[Capture] = []

    def run(*leaves: Tensor) -> None:
        leaves = tuple(leaf.clone() for leaf in problem.inputs(leaves))
        calls = SeenCalls(constants, shared=shared, all_hold=all_hold)
        captures.append(
            Capture(RULES, trained, kernels, BatchExamples(leaves, len(leaves[0])), calls)
        )
        with torch.enable_grad(), captures[-1], fused.under(captures[-1]):
            problem.forward(*leaves)

    drawn = layouts_of_draws(problem, batches, run)
    one, other = captures
    if len({one.trace, other.trace, *(call_shapes.trace for call_shapes in shapes)}) > 1:
        raise NotLayerwise("the model calls other operations on a batch of another size")
    sizes = (len(batches[0][0]), len(batches[1][0]))
    between = [Layout.between(*pair, sizes) for pair in zip(one.shapes, other.shapes, strict=True)]
    constants.is_open = False
    seen = SeenModel(SeenCalls(constants, between, shared, all_hold), one.trace, drawn, fused)
    for leaves in batches:
        with problem.random.made_up(len(leaves[0]) // problem.copies):
            check = SeparationCheck(problem, seen)
            check.require_apart(problem.inputs(leaves))
    return seen


@final
class SeparationCheck:
    """Whether the program that a batch runs keeps its examples apart.

    Args:
        problem: what is differentiated.
        seen: what was seen of the model on made-up rows.
    """

    def __init__(self, problem: Problem, seen: SeenModel) -> None:
        self._problem, self._seen = problem, seen

    def require_apart(self, leaves: Sequence[Tensor]) -> None:
        """Run the forward pass on `leaves`, which stay as they are, and on a batch of another size,
        on which no number in it may depend, and enter the verdict on its program.

        Raises:
            NotLayerwise: examples meet, or it is not known whether they do.
        """
        examples = len(leaves[0]) // self._problem.copies
        program, verdict = self._judge_unasked(leaves, examples) or self._judge(leaves, examples)
        self._seen.verdicts[program] = verdict
        if self._problem.any_process(bool(verdict)):
            raise _denial(verdict)

    def _judge(
        self, leaves: Sequence[Tensor], examples: int, assumed: Assumed | None = None
    ) -> tuple[int, str]:
        """The name of the program that `leaves` run, and the verdict on it.

        Raises:
            NotLayerwise: as `require_apart`.
        """
        program, notes = self._follow(leaves, examples, assumed)
        # All sizes are compared with one, four, and that with another. A single example is computed
        # as if alone, and has room for no more; processes take the same passes all the same.
        number = {1: 1, 4: 2}.get(examples, 4)
        _, other_notes = self._follow(leaves, number, assumed)
        if examples == 1 or _same_notes(notes, other_notes, assumed):
            return program, ""
        return program, "a number in the model or the loss depends on the size of the batch"

    def _judge_unasked(self, leaves: Sequence[Tensor], examples: int) -> tuple[int, str] | None:
        """The same, where a device answers at once that all is as it nearly always is; None: look
        at one thing after the other.
        """
        alone = self._problem.any_process is bool  # or all processes would have to look again
        if on_processor(leaves[0]) or not alone:
            return None
        assumed = Assumed()
        with suppress(Exception):
            judged = self._judge(leaves, examples, assumed)
            if not assumed.answers or bool(torch.stack(assumed.answers).all()):
                return judged
        return None

    def _follow(
        self, leaves: Sequence[Tensor], number: int, assumed: Assumed | None
    ) -> tuple[int, list[Any]]:
        """The name of the program that so many examples run, and how its operations are called.
        Where there are fewer, they come again.
        """
        problem, seen, copies = self._problem, self._seen, self._problem.copies
        present = len(leaves[0]) // copies
        examples = [at % present for at in range(number)]
        parts = [
            leaf.detach()[torch.arange(number * copies, device=leaf.device) % (present * copies)]
            for leaf in leaves
        ]
        tracker = AxisTracker(seen.calls.constants, parts, len(examples), seen.drawn, assumed)
        trained = list(problem.parameters.values())
        batch = BatchExamples(parts, len(examples), copies)
        capture = Capture(RULES, trained, UnusedKernels(), batch, seen.calls, tracker)
        with (
            problem.random.only(examples),
            problem.computing(problem.random.together(seen.drawn)),
            torch.enable_grad(),
            problem.in_step(),
            tracker,
        ):
            with capture, seen.fused.under(capture):
                losses = problem.forward(*parts)
            tracker.require_at(losses, ExampleAxis(0), "the loss")
            tracker.note_result(losses)
            _require_known_gradients(losses)
            if capture.trace != seen.trace:
                raise NotLayerwise("the model calls other operations than it did on made-up rows")
        return capture.program.key, [("flow", capture.program.flow), *tracker.noted]


def _same_notes(one: Sequence[Any], other: Sequence[Any], assumed: Assumed | None = None) -> bool:
    """Whether two passes noted the same; tensors on a device are assumed to be the same."""
    if len(one) != len(other):
        return False
    answers: list[Tensor] = []
    for a, b in zip(one, other, strict=True):
        if isinstance(a, ConstantValues) and isinstance(b, ConstantValues):
            if a.values.shape != b.values.shape or a.values.dtype != b.values.dtype:
                return False
            same = _are_close(a, b)
            if assumed is not None and not on_processor(a.values):
                answers.append(same)
            elif not same:
                return False
        elif isinstance(a, float) and isinstance(b, float):
            if not (math.isclose(a, b, rel_tol=1e-6) or (a != a and b != b)):
                return False
        elif type(a) is not type(b) or a != b:
            return False
    if assumed is not None and answers:
        assumed.note(torch.stack(answers).all(), lambda: None)
    return True


def _are_close(one: ConstantValues, other: ConstantValues) -> Tensor:
    """Whether all values are the same. Those that follow from weights may differ by rounding: in
    products it depends on how many there are.
    """
    a, b = one.values, other.values
    same = (a == b) | ((a != a) & (b != b))
    if one.of_weights and a.numel() and (a.is_floating_point() or a.is_complex()):
        same |= (a - b).abs() <= 1e-6 * a.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return same.all()


def _require_known_gradients(losses: Tensor) -> None:
    """Raise if the backward pass would run what no operation shows: a custom function's, or a
    compiled part's.
    """
    waiting, met = [losses.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        function = getattr(type(node), "_forward_cls", None)
        sharded = getattr(function, "__module__", "").startswith("torch.distributed.fsdp")
        custom = (
            function is not None and not sharded and not issubclass(function, OperationFunction)
        )
        compiled = "Cpp" in type(node).__name__ or "::" in type(node).__name__
        if (
            custom
            or compiled
            or (function is None and isinstance(node, torch.autograd.function.BackwardCFunction))
        ):
            raise Coupled(
                f"the backward pass of {type(node).__name__.removesuffix('Backward')} is not seen"
            )
        waiting += [following for following, _ in node.next_functions]


def _denial(verdict: str | None) -> Coupled:
    elsewhere = "a batch in another process does not keep its examples apart"
    return Coupled(verdict) if verdict else CoupledElsewhere(elsewhere)


class _NewProgram(Exception):
    """A batch runs a program that has not been checked."""


@final
class PerOperation:
    """One backward pass in which only gradients of activations flow. For models whose operations
    have rules.

    A batch is computed if the program that it runs keeps examples apart: each new program is
    checked first.

    Args:
        problem: what is differentiated.
        kernels: for matrix products.
        seen: what was seen of the model on made-up rows.
        writes: whether the model or the loss writes into the rows that it is given.
    """

    name: ClassVar[str] = "layers"

    def __init__(
        self, problem: Problem, kernels: Kernels, seen: SeenModel, *, writes: bool = False
    ) -> None:
        self._problem, self._kernels, self._seen, self._writes = problem, kernels, seen, writes
        self._trained = list(problem.parameters.values())
        #: Shapes and types of the batches so far.
        self._met = set[object]()

    def __call__(self, *leaves: Tensor) -> Gradients:
        """Gradients and losses of a batch.

        Raises:
            NotLayerwise: its examples are not kept apart, or it takes another path than made-up
                rows did.
        """
        self._kernels.scratch.next_step()
        leaves = self._problem.inputs(leaves)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        # A new program is checked before it is run, or it would be run twice; processes that
        # compute together would all have to look.
        if shapes not in self._met and self._problem.any_process is bool:
            self._met.add(shapes)
            with suppress(Exception):  # it is raised again below, where the reason is known
                SeparationCheck(self._problem, self._seen).require_apart(leaves)
        before = tuple(leaf.clone() for leaf in leaves) if self._writes else leaves
        versions = [leaf._version for leaf in before]
        try:
            return self._compute(leaves)
        except _NewProgram:
            if [leaf._version for leaf in before] != versions:
                raise NotLayerwise(
                    "the model writes into its input, as it did not on made-up rows"
                ) from None
        try:
            SeparationCheck(self._problem, self._seen).require_apart(before)
        except PrivlearnError:
            raise
        except Exception as error:  # the same pass went well unobserved, so no row is at fault
            if is_of_memory(error):
                raise
            raise NotLayerwise(
                f"whether its examples are kept apart can't be told: {first_line(error)}"
            ) from error
        try:
            return self._compute(tuple(leaf.clone() for leaf in before) if self._writes else before)
        except _NewProgram:
            raise NotLayerwise("the model runs another program on the same rows") from None

    def _compute(self, leaves: Leaves) -> Gradients:
        """The same, if the batch runs a program that is known to keep examples apart."""
        problem, seen, copies = self._problem, self._seen, self._problem.copies
        batch = BatchExamples(leaves, len(leaves[0]) // copies, copies)
        capture = Capture(
            RULES, self._trained, self._kernels, batch, seen.calls, indices=problem.indices
        )
        with problem.computing(problem.random.together(seen.drawn), looked_at=True):
            with torch.enable_grad(), problem.in_step():
                with capture, seen.fused.under(capture), callers_precision():
                    losses = problem.forward(*leaves)
                total = losses.sum()
            verdict = seen.verdicts.get(capture.program.key)
            if problem.any_process(verdict is None):
                raise _NewProgram
            if problem.any_process(bool(verdict)):
                raise _denial(verdict)
            ends = [*self._trained, *capture.derived.leaves]
            with callers_precision():
                flows = torch.autograd.grad(total, ends, allow_unused=True)
            capture.derived.hand_on(capture.uses.of, capture.uses.keep)
        by_name: dict[str, ExampleGradients] = {}
        for (name, parameter), flow in zip(problem.parameters.items(), flows, strict=False):
            if flow is not None:
                operation = capture.unseen.get(id(parameter), "an operation")
                raise NotLayerwise(f"{name!r} is used by {operation} without a rule for it")
            gradients = capture.uses.of(parameter)
            if gradients is not None:
                by_name[name] = gradients
        return by_name, losses.detach()


@final
class Vmap:
    """All examples at once through `torch.func`, for every other model."""

    name: ClassVar[str] = "vmap"

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __call__(self, *leaves: Tensor) -> Gradients:
        """Gradients and losses of a batch."""
        problem = self._problem
        copies, leaves = problem.copies, problem.inputs(leaves)
        model = Losses(problem.model, problem.loss, problem.shape)
        names = {id(p): name for name, p in problem.parameters.items()}
        # Every place of a tensor once, tied or not: PyTorch would fill a module that has two names
        # twice, and then put what it was filled with back in place of the parameter.
        modules = list(model.named_modules())
        places = dict(
            pair
            for n, m in modules
            for pair in m.named_parameters(n, False, remove_duplicate=False)
        )
        frozen = {place: p.detach() for place, p in places.items() if id(p) not in names}
        frozen |= dict(
            pair for n, m in modules for pair in m.named_buffers(n, False, remove_duplicate=False)
        )
        trains = {place: names[id(p)] for place, p in places.items() if id(p) in names}

        def single(parameters: dict[str, Tensor], *rows: Tensor) -> tuple[Tensor, Tensor]:
            with problem.casting(rows[0]):
                tensors = {place: parameters[name] for place, name in trains.items()} | frozen
                losses = functional_call(model, tensors, rows, tie_weights=False)
                value = problem.losses(losses, len(rows[0]))[0]
            return value, value.detach()

        trained = {name: p.detach() for name, p in problem.parameters.items()}
        each = vmap(
            grad(single, has_aux=True), in_dims=(None, *(0 for _ in leaves)), randomness="different"
        )
        examples = [leaf.unflatten(0, (-1, copies)) for leaf in leaves]  # type: ignore[no-untyped-call]
        with problem.computing(problem.random.together()):
            formed, losses = each(trained, *examples)
        return {name: Dense(gradients) for name, gradients in formed.items()}, losses


@contextmanager
def gradients_apart(parameters: Iterable[Tensor]) -> Iterator[None]:
    """For the block no parameter has a `.grad`; those that it writes are lost, and those before are
    put back.
    """
    held = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in held:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


@final
class Loop:
    """One example at a time."""

    name: ClassVar[str] = "loop"

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __call__(self, *leaves: Tensor) -> Gradients:
        """Gradients and losses of a batch."""
        rows, losses = zip(*self.each(*leaves), strict=True)
        each = zip(self._problem.parameters, *rows, strict=True)
        return {name: Dense(torch.stack(parts)) for name, *parts in each}, torch.stack(losses)

    def each(self, *leaves: Tensor) -> Iterator[tuple[list[Tensor], Tensor]]:
        """The gradients, in the order of the parameters, and the loss of one example after the
        other.
        """
        problem, trained = self._problem, list(self._problem.parameters.values())
        leaves = problem.inputs(leaves)
        for number, start in enumerate(range(0, len(leaves[0]), problem.copies)):
            example = slice(start, start + problem.copies)
            with problem.computing(problem.random.alone(number)), torch.enable_grad():
                loss = problem.forward(*(leaf[example] for leaf in leaves))[0]
                # a backward pass within, as of reversible layers, writes into them
                with gradients_apart(trained):
                    row = torch.autograd.grad(
                        loss, trained, allow_unused=True, materialize_grads=True
                    )
                    whole = [
                        g if p.grad is None else g + p.grad
                        for g, p in zip(row, trained, strict=True)
                    ]
            yield (
                [gradient.to_dense() if gradient.is_sparse else gradient for gradient in whole],
                loss.detach(),
            )
            del row, whole


class Backend(Protocol):
    """A way to the gradient of every example."""

    name: ClassVar[str]

    def __call__(self, *leaves: Tensor) -> Gradients:
        """Gradients and losses of a batch."""
        ...
