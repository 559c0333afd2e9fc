"""Two ways to the gradient of every example: with `torch.func.vmap`, and one at a time. `per_operation` has the third.

The loop is the truth that the other two are held against, and the last resort.

When two computations on made-up rows agree, and whether a loss is computed example by example.

What a batch holds in memory, and how much it may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from privlearn.clipping.capture import Layout, NotLayerwise, without_checkpoints
from privlearn.clipping.evaluation import FrozenState
from privlearn.clipping.losses import PAIR, BatchShape, Leaves, Loss, Losses, losses_of, require_one_each
from privlearn.clipping.per_example import Dense, ExampleGradients
from privlearn.clipping.randomness import Recorder, RowRandom, drawn_by, foreign_state, generators_at
from privlearn.errors import NotPerExample

#: Gradients by parameter name (a parameter that took no part is missing), and each example's loss, shape (examples,).
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
        fixed: what the model and the loss hold beside trained parameters: after each computation it is what it was.
        shape: how the tensors that are computed with make up a batch.
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

    @contextmanager
    def computing(self, draws: AbstractContextManager[object]) -> Iterator[None]:
        """A block in which random numbers are drawn as `draws` says, and after which no state is left behind."""
        try:
            with draws, without_checkpoints():
                yield
        finally:
            if self.fixed:
                self.fixed.restore()

    def losses(self, losses: Tensor, rows: int) -> Tensor:
        """One loss for each example, of those of its rows.

        Raises:
            NotPerExample: there is not one for each row.
        """
        losses = require_one_each(losses, rows)
        return losses if self.copies == 1 else losses.unflatten(0, (-1, self.copies)).mean(1)  # type: ignore[no-untyped-call]

    def forward(self, *leaves: Tensor) -> Tensor:
        """The losses of rows."""
        with self.casting(leaves[0]):
            return self.losses(losses_of(self.model, self.loss, leaves, self.shape), len(leaves[0]))

    def inputs(self, leaves: Sequence[Tensor]) -> Leaves:
        """Rows as the model takes them."""
        if self.dtype is None:
            return tuple(leaves)
        given = self.shape.inputs
        return *(leaf.to(self.dtype) if leaf.is_floating_point() else leaf for leaf in leaves[:given]), *leaves[given:]

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
            yield replace(self, autocast=None, dtype=torch.float64, fixed=FrozenState(self.model, self.loss))
        finally:
            for parameter, data in held:
                parameter.data = data
            for module, name, buffer in buffers:
                module._buffers[name] = buffer

    def casting(self, x: Tensor) -> AbstractContextManager[object]:
        """Autocast, if it is asked for."""
        return torch.autocast(x.device.type, self.autocast) if self.autocast else nullcontext()


def layouts_of_draws(
    problem: Problem,
    batches: Sequence[Leaves],
    run: Callable[..., object] | None = None,
) -> list[Layout]:
    """Where the examples are in what each call that draws random numbers draws, when `run` computes two batches.

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
        raise NotLayerwise("the model draws more or fewer random numbers for a batch of another size")
    sizes = (len(batches[0][0]), len(batches[1][0]))
    return [Layout.between(*shapes, sizes) for shapes in zip(one, other, strict=True)]


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
        # Every place of a tensor once, tied or not: PyTorch would fill a module that has two names twice, and then put
        # what it was filled with back in place of the parameter.
        modules = list(model.named_modules())
        places = dict(pair for n, m in modules for pair in m.named_parameters(n, False, remove_duplicate=False))
        frozen = {place: p.detach() for place, p in places.items() if id(p) not in names}
        frozen |= dict(pair for n, m in modules for pair in m.named_buffers(n, False, remove_duplicate=False))
        trains = {place: names[id(p)] for place, p in places.items() if id(p) in names}

        def single(parameters: dict[str, Tensor], *rows: Tensor) -> tuple[Tensor, Tensor]:
            with problem.casting(rows[0]):
                given = {place: parameters[name] for place, name in trains.items()} | frozen
                losses = functional_call(model, given, rows, tie_weights=False)
                value = problem.losses(losses, len(rows[0]))[0]
            return value, value.detach()

        trained = {name: p.detach() for name, p in problem.parameters.items()}
        each = vmap(grad(single, has_aux=True), in_dims=(None, *(0 for _ in leaves)), randomness="different")
        examples = [leaf.unflatten(0, (-1, copies)) for leaf in leaves]  # type: ignore[no-untyped-call]
        with problem.computing(problem.random.together()):
            formed, losses = each(trained, *examples)
        return {name: Dense(gradients) for name, gradients in formed.items()}, losses


@contextmanager
def gradients_apart(parameters: Iterable[Tensor]) -> Iterator[None]:
    """For the block no parameter has a gradient (`.grad`); those that it writes are lost, and those before are put back."""
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
        problem, rows, losses = self._problem, [], []
        leaves = problem.inputs(leaves)
        for number, start in enumerate(range(0, len(leaves[0]), problem.copies)):
            own = slice(start, start + problem.copies)
            with problem.computing(problem.random.alone(number)), torch.enable_grad():
                loss = problem.forward(*(leaf[own] for leaf in leaves))[0]
                trained = list(problem.parameters.values())
                with gradients_apart(trained):  # a backward pass within, as of reversible layers, writes into them
                    row = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
                    rows.append([g if p.grad is None else g + p.grad for g, p in zip(row, trained, strict=True)])
            losses.append(loss.detach())
        each = zip(problem.parameters, *rows, strict=True)
        formed = {name: torch.stack([p.to_dense() if p.is_sparse else p for p in parts]) for name, *parts in each}
        return {name: Dense(gradients) for name, gradients in formed.items()}, torch.stack(losses)


class Backend(Protocol):
    """A way to the gradient of every example."""

    name: ClassVar[str]

    def __call__(self, *leaves: Tensor) -> Gradients:
        """Gradients and losses of a batch."""
        ...


#: Relative difference up to which two results agree.
TOLERANCE = 2e-3


def require_uncoupled(problem: Problem, rows: Leaves, batches: Sequence[Leaves]) -> tuple[bool, bool]:
    """Refuse a loss whose value for one example depends on other examples, or on earlier batches.

    Every computation starts from the same seeds, and from the state that the model and the loss had.

    Args:
        problem: what is differentiated.
        rows: a made-up batch.
        batches: two more such batches, of different sizes.

    Returns:
        Whether the model or the loss writes into the rows that it is given, and whether it draws random numbers.

    Raises:
        NotPerExample: it does, or draws random numbers from elsewhere than PyTorch.
    """
    written, drawn, foreign = False, False, False

    def losses(*leaves: Tensor) -> Tensor:
        nonlocal written, drawn, foreign
        given, device = [leaf.clone() for leaf in leaves], leaves[0].device
        with generators_at(0), problem.computing(torch.no_grad()):
            own, others = drawn_by(device), foreign_state()
            layout = problem.forward(*given)
            drawn |= not all(map(torch.equal, drawn_by(device), own))
            foreign |= foreign_state() != others
        written |= any(t._version > 0 or not torch.equal(t, own) for t, own in zip(given, leaves, strict=True))
        return layout

    together = losses(*rows)
    _require_same(losses(*rows), together)
    if foreign:
        raise NotPerExample(
            "the model or the loss draws random numbers from numpy or random, which would differ with the other examples: "
            "draw them with torch"
        )
    starts = range(0, len(rows[0]), problem.copies)
    if not drawn or not _agree_by_example(problem, rows, batches):
        alone = torch.cat([_alone(losses, rows, start, problem.copies, drawn) for start in starts])
        if not _agree(together, alone):
            raise NotPerExample(
                "the loss of one example changes with the other examples of the batch: give a loss without means, weights or "
                "normalisation over the batch"
            )
    given = problem.shape.inputs
    losses(*map(larger, rows[:given]), *rows[given:])
    _require_same(losses(*rows), together)
    return written, drawn


def _agree_by_example(problem: Problem, rows: Leaves, batches: Sequence[Leaves]) -> bool:
    """Whether examples have the same losses by themselves and together, if each draws random numbers of its own."""
    examples, copies, random = len(rows[0]) // problem.copies, problem.copies, problem.random
    random.active = True
    random.take(np.arange(examples, dtype=np.uint64))
    with torch.no_grad():
        try:
            drawn = layouts_of_draws(problem, batches)
            with problem.computing(random.together(drawn)):
                together = problem.forward(*(leaf.clone() for leaf in rows))
        except NotLayerwise:
            return False
        alone = []
        for number in range(examples):
            own = slice(number * copies, (number + 1) * copies)
            with problem.computing(random.alone(number)):
                alone.append(problem.forward(*(leaf[own].clone() for leaf in rows)))
    return _agree(together, torch.cat(alone))


def _agree(together: Tensor, alone: Tensor) -> bool:
    usable = alone.isfinite()
    return close(together[usable], alone[usable], rounding_of(alone[usable]))


def _alone(losses: Callable[..., Tensor], rows: Leaves, start: int, copies: int, drawn: bool) -> Tensor:
    """The loss of the example whose rows begin at `start`, by itself.

    If random numbers are drawn, they depend on the size of the batch: then beside others than before.
    """
    own = slice(start, start + copies)
    if not drawn:
        return losses(*(leaf[own] for leaf in rows))
    others = [leaf.roll(copies, 0) for leaf in rows]
    for leaf, given in zip(others, rows, strict=True):
        leaf[own] = given[own]
    return losses(*others)[start // copies :][:1]


def _require_same(again: Tensor, losses: Tensor) -> None:
    """Refuse losses that differ from those of the same rows before; on a GPU sums may be taken in another order."""
    rounding = 0.0 if losses.device.type == "cpu" else 1e3 * torch.finfo(losses.dtype).eps
    if not torch.allclose(again, losses, rtol=rounding, atol=0.0, equal_nan=True):
        raise NotPerExample(
            "the loss of the same rows differs from one call to the next, with the same seeds: the model or the loss keeps "
            "something of earlier batches. Keep it in buffers (register_buffer), which are put back after each batch, or "
            "leave it out"
        )


def larger(rows: Tensor) -> Tensor:
    """Rows with other numbers, where they are no indices: what keeps a maximum, say, comes to another."""
    return 2 * rows if rows.is_floating_point() else rows


def rounding_of(values: Tensor) -> float:
    """A difference that tells nothing about values of this size."""
    return math.sqrt(torch.finfo(values.dtype).eps) * float(values.abs().max()) if values.numel() else 0.0


def close(one: Tensor, other: Tensor, rounding: float) -> bool:
    """Whether two results agree, apart from `rounding`."""
    return torch.allclose(one.double(), other.double(), rtol=TOLERANCE, atol=rounding)


#: Bytes that one physical batch may hold, unless its size is given; on a GPU, a share of what is free.
_WORKING_SET, _FREE_SHARE = 1 << 28, 0.5


def held_by(way: Backend, *leaves: Tensor) -> int:
    """Bytes that `way` holds at the end of a batch's backward pass, about."""
    holding = _Held()
    with nullcontext() if isinstance(way, Vmap) else holding:  # torch.func allows no hooks
        computed, _ = way(*leaves)
    return holding.bytes + sum(gradients.nbytes for gradients in computed.values())


class _Held(torch.autograd.graph.saved_tensors_hooks):
    """Adds up the bytes that autograd holds for the backward pass, each piece of memory once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        super().__init__(self._see, lambda tensor: tensor)

    def _see(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            with torch._C.DisableTorchFunction():  # these calls are none of the model's
                storage = tensor.untyped_storage()
                self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def bytes(self) -> int:
        """What is held."""
        return sum(self._sizes.values())


def room(device: torch.device) -> int:
    """Bytes that one physical batch may hold."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _FREE_SHARE)
    return _WORKING_SET
