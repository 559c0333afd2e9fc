"""Three ways to the gradient of every example: operation by operation, with `torch.func.vmap`, one at a time.

The last is the truth that the other two are held against, and the last resort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from privlearn.clipping.capture import Capture, Layout, NotLayerwise, moving
from privlearn.clipping.draws import Recorder, RowRandom
from privlearn.clipping.examples import ExampleGradients, Formed
from privlearn.clipping.fixed import Fixed
from privlearn.clipping.kernels import Kernels
from privlearn.clipping.operations import RULES
from privlearn.errors import NotPerExample

#: A loss of a batch: (outputs, targets) to one value for each example, shape (batch,).
Loss = Callable[[Tensor, Tensor], Tensor]
#: Gradients by parameter name (a parameter that took no part is missing), and each example's loss, shape (examples,).
Gradients = tuple[dict[str, ExampleGradients], Tensor]


@final
@dataclass(frozen=True)
class Problem:
    """What is differentiated.

    Attributes:
        model: per-example.
        loss: of a batch.
        parameters: the trained ones by name, a tied one once.
        copies: rows of inputs and targets for each example; its loss is their mean.
        autocast: the type that the model runs in, or None for that of its parameters.
        dtype: the type that inputs are brought to, or None to leave them as they are.
        random: what the examples draw.
        fixed: what the model and the loss hold beside trained parameters: after each computation it is what it was.
    """

    model: nn.Module
    loss: Loss
    parameters: dict[str, nn.Parameter]
    copies: int = 1
    autocast: torch.dtype | None = None
    dtype: torch.dtype | None = None
    random: RowRandom = field(default_factory=RowRandom)
    fixed: Fixed | None = None

    @contextmanager
    def computing(self, draws: AbstractContextManager[object]) -> Iterator[None]:
        """A block in which random numbers are drawn as `draws` says, and after which no state is left behind."""
        try:
            with draws:
                yield
        finally:
            if self.fixed:
                self.fixed.restore()

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """One loss for each example.

        Raises:
            NotPerExample: there is not one for each row.
        """
        losses = self.loss(output, y)
        if losses.shape != y.shape[:1]:
            raise NotPerExample(
                f"the loss has shape {tuple(losses.shape)} for a batch of {len(y)}: expected one value for each example, "
                f"shape ({len(y)},). Give a loss with reduction='none', and average over what is not the batch",
                shape=tuple(losses.shape),
            )
        return losses if self.copies == 1 else losses.unflatten(0, (-1, self.copies)).mean(1)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The losses of rows."""
        with self.casting(x):
            return self.losses(self.model(x), y)

    def inputs(self, x: Tensor) -> Tensor:
        """Rows as the model takes them."""
        return x.to(self.dtype) if self.dtype and x.is_floating_point() else x

    @contextmanager
    def in_double(self) -> Iterator[Problem]:
        """The same in double precision, for the block: the model's own tensors change their type and change back."""
        parameters = [p for p in self.model.parameters() if p.is_floating_point()]
        held = [(p, p.data) for p in parameters]
        buffers = [(m, n, b) for m in self.model.modules() for n, b in m._buffers.items() if b is not None]
        try:
            for parameter, data in held:
                parameter.data = data.double()
            for module, name, buffer in buffers:
                module._buffers[name] = buffer.double() if buffer.is_floating_point() else buffer
            yield replace(self, autocast=None, dtype=torch.float64, fixed=Fixed(self.model, self.loss))
        finally:
            for parameter, data in held:
                parameter.data = data
            for module, name, buffer in buffers:
                module._buffers[name] = buffer

    def casting(self, x: Tensor) -> AbstractContextManager[object]:
        """Autocast, if it is asked for."""
        return torch.autocast(x.device.type, self.autocast) if self.autocast else nullcontext()


#: Where the examples are in each operation's input; what operations that may move rows must not move; what tells the sequence
#: of all operations; and where the examples are in what each call that draws random numbers draws.
Seen = tuple[list[Layout], list[set[int]], int, list[Layout]]


def layouts(problem: Problem, kernels: Kernels, batches: Sequence[tuple[Tensor, Tensor]]) -> Seen:
    """Where the examples are in each operation's input: what explains its shapes at two batch sizes.

    Raises:
        NotLayerwise: nothing does, or examples change their places.
    """
    captures: list[Capture] = []

    def run(x: Tensor, y: Tensor) -> None:
        captures.append(Capture(RULES, list(problem.parameters.values()), kernels, len(y)))
        x = problem.inputs(x)
        with torch.enable_grad(), captures[-1]:
            problem.forward(x, y)

    drawn = layouts_of_draws(problem, batches, run)
    one, other = captures
    if one.trace != other.trace:
        raise NotLayerwise("the model calls other operations on a batch of another size")
    sizes = (len(batches[0][0]), len(batches[1][0]))
    found = [Layout.between(*shapes, sizes) for shapes in zip(one.shapes, other.shapes, strict=True)]
    return found, moving(one, other), one.trace, drawn


def layouts_of_draws(
    problem: Problem,
    batches: Sequence[tuple[Tensor, Tensor]],
    run: Callable[[Tensor, Tensor], object] | None = None,
) -> list[Layout]:
    """Where the examples are in what each call that draws random numbers draws, when `run` computes two batches.

    Raises:
        NotLayerwise: a call draws for all examples at once.
    """
    records = []
    for x, y in batches:
        records.append(Recorder())
        with problem.computing(records[-1]):
            (run or problem.forward)(x, y)
    one, other = (record.shapes for record in records)
    if len(one) != len(other):
        raise NotLayerwise("the model draws more or fewer random numbers for a batch of another size")
    sizes = (len(batches[0][0]), len(batches[1][0]))
    return [Layout.between(*shapes, sizes) for shapes in zip(one, other, strict=True)]


@final
class Layers:
    """One backward pass in which only gradients of activations flow. For models whose operations have rules.

    Args:
        problem: what is differentiated.
        kernels: for matrix products.
        layouts: what was seen on made-up rows.
    """

    name: ClassVar[str] = "layers"

    def __init__(self, problem: Problem, kernels: Kernels, layouts: Seen) -> None:
        self._problem, self._kernels = problem, kernels
        self._layouts, self._batch, self._trace, self._drawn = layouts
        self._trained = list(problem.parameters.values())

    def __call__(self, x: Tensor, y: Tensor) -> Gradients:
        """Gradients and losses of a batch."""
        problem, copies = self._problem, self._problem.copies
        self._kernels.scratch.next_step()
        capture = Capture(RULES, self._trained, self._kernels, len(x) // copies, copies, self._layouts, self._batch)
        x = problem.inputs(x)
        with problem.computing(problem.random.together(self._drawn)):
            with torch.enable_grad():
                with capture:
                    losses = problem.forward(x, y)
                total = losses.sum()
            if capture.trace != self._trace:
                raise NotLayerwise("the model calls other operations than it did on made-up rows")
            flows: Sequence[Tensor | None] = torch.autograd.grad(total, self._trained, allow_unused=True)
        found = {}
        for (name, parameter), flow in zip(problem.parameters.items(), flows, strict=True):
            if flow is not None:
                operation = capture.unseen.get(id(parameter), "an operation")
                raise NotLayerwise(f"{name!r} is used by {operation} without a rule for it")
            gradients = capture.found.of(parameter)
            if gradients is not None:
                found[name] = gradients
        return found, losses.detach()


@final
class Vmap:
    """All examples at once through `torch.func`, for every other model."""

    name: ClassVar[str] = "vmap"

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __call__(self, x: Tensor, y: Tensor) -> Gradients:
        """Gradients and losses of a batch."""
        problem = self._problem
        model, copies, x = problem.model, problem.copies, problem.inputs(x)
        names = {id(p): name for name, p in problem.parameters.items()}
        # Every place of a tensor once, tied or not: PyTorch would fill a module that has two names twice, and then put
        # what it was filled with back in place of the parameter.
        modules = list(model.named_modules())
        places = dict(pair for n, m in modules for pair in m.named_parameters(n, False, remove_duplicate=False))
        frozen = {place: p.detach() for place, p in places.items() if id(p) not in names}
        frozen |= dict(pair for n, m in modules for pair in m.named_buffers(n, False, remove_duplicate=False))
        trains = {place: names[id(p)] for place, p in places.items() if id(p) in names}

        def single(parameters: dict[str, Tensor], rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            with problem.casting(rows):
                given = {place: parameters[name] for place, name in trains.items()} | frozen
                output = functional_call(model, given, (rows,), tie_weights=False)
                value = problem.losses(output, targets)[0]
            return value, value.detach()

        trained = {name: p.detach() for name, p in problem.parameters.items()}
        each = vmap(grad(single, has_aux=True), in_dims=(None, 0, 0), randomness="different")
        with problem.computing(problem.random.together()):
            formed, losses = each(trained, x.unflatten(0, (-1, copies)), y.unflatten(0, (-1, copies)))  # type: ignore[no-untyped-call]
        return {name: Formed(gradients) for name, gradients in formed.items()}, losses


@final
class Loop:
    """One example at a time."""

    name: ClassVar[str] = "loop"

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __call__(self, x: Tensor, y: Tensor) -> Gradients:
        """Gradients and losses of a batch."""
        problem, rows, losses = self._problem, [], []
        x = problem.inputs(x)
        for number, start in enumerate(range(0, len(x), problem.copies)):
            own = slice(start, start + problem.copies)
            with problem.computing(problem.random.alone(number)), torch.enable_grad():
                loss = problem.forward(x[own], y[own])[0]
                trained = list(problem.parameters.values())
                found = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
            rows.append(found)
            losses.append(loss.detach())
        each = zip(problem.parameters, *rows, strict=True)
        formed = {name: torch.stack([p.to_dense() if p.is_sparse else p for p in parts]) for name, *parts in each}
        return {name: Formed(gradients) for name, gradients in formed.items()}, torch.stack(losses)


Way = Layers | Vmap | Loop
